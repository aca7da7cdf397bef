//! Permissions: statements of a queue's policy.

use super::{Context, Service, required};
use crate::fault::{Fault, FaultCode};
use crate::limits::ENTRY_ID_MAX;
use crate::policy;
use crate::request::{Action, AddPermission, RemovePermission};
use crate::response::Response;

impl Service {
    pub(super) async fn add_permission(
        &self,
        context: &Context,
        request: AddPermission<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref())?;
        let label = required(request.label, "Label")?;
        let accounts = request.aws_account_ids.unwrap_or_default();
        let actions = request.actions.unwrap_or_default();
        if accounts.is_empty() {
            return Err(Fault::missing("AWSAccountIds"));
        }
        if actions.is_empty() {
            return Err(Fault::missing("Actions"));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if label.is_empty() || label.len() > ENTRY_ID_MAX || !label.bytes().all(allowed) {
            let reason = "Must be 1 to 80 alphanumeric characters, hyphens and underscores.";
            return Err(Fault::value("Label", &label, reason));
        }
        let (count, max) = (actions.len(), self.limits().permission_actions);
        if count > max {
            let message = format!("{count} Actions were found, maximum allowed is {max}.");
            return Err(Fault::new(FaultCode::OverLimit, message));
        }
        if let Some(action) = actions.iter().find(|name| &***name != "*" && Action::named(name).is_none()) {
            let reason = "Please refer to the appropriate WSDL for a list of valid actions.";
            return Err(Fault::value("ActionName", &format!("SQS:{action}"), reason));
        }
        let arn = self.arn_of(context, queue.name());
        let accounts: Vec<&str> = accounts.iter().map(|account| &**account).collect();
        let actions: Vec<&str> = actions.iter().map(|action| &**action).collect();
        let add = |policy: Option<&str>| policy::with_statement(policy, &arn, &label, &accounts, &actions);
        add(queue.settings.policy.as_deref())?;
        self.change_kept(queue.name(), |kept| {
            // If another has just added the same label, that one stays.
            if let Ok(policy) = add(kept.settings.policy.as_deref()) {
                kept.settings.policy = Some(policy);
            }
        })
        .await?;
        Ok(Response::Done)
    }

    pub(super) async fn remove_permission(
        &self,
        context: &Context,
        request: RemovePermission<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref())?;
        let label = required(request.label, "Label")?;
        policy::without_statement(queue.settings.policy.as_deref(), &label)?;
        self.change_kept(queue.name(), |kept| {
            if let Ok(policy) = policy::without_statement(kept.settings.policy.as_deref(), &label) {
                kept.settings.policy = policy;
            }
        })
        .await?;
        Ok(Response::Done)
    }
}
