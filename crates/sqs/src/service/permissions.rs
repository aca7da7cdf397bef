//! Permissions: statements of a queue's policy.

use super::access::Need;
use super::{Context, Service, required};
use crate::fault::{Fault, FaultCode};
use crate::limits::ENTRY_ID_MAX;
use crate::policy;
use crate::request::{Action, AddPermission, RemovePermission};
use crate::response::Response;
use crate::text::Text;

impl Service {
    pub(super) async fn add_permission(
        &self,
        context: &Context,
        request: AddPermission<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Configure)?;
        let label = required(request.label, "Label")?;
        let accounts = request.aws_account_ids.ok_or_else(|| Fault::missing("AWSAccountIds"))?;
        let actions = request.actions.filter(|actions| !actions.is_empty());
        let actions = actions.ok_or_else(|| Fault::missing("Actions"))?;
        if accounts.is_empty() {
            return Err(Fault::value("PrincipalId", "[]", "Unable to verify."));
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
        let is_owners = |name: &&Text<'_>| Action::named(name).is_some_and(is_owners);
        if let Some(action) = actions.iter().find(is_owners) {
            let reason = "Only the queue owner is allowed to invoke this action.";
            return Err(Fault::value("ActionName", &format!("SQS:{action}"), reason));
        }
        let arn = self.arn_of(context, queue.name());
        let accounts: Vec<&str> = accounts.iter().map(|account| &**account).collect();
        let actions: Vec<&str> = actions.iter().map(|action| &**action).collect();
        let add = |policy: Option<&str>| policy::with_statement(policy, &arn, &label, &accounts, &actions);
        let mut settings = (*queue.settings).clone();
        let policy = add(settings.policy.as_deref())?;
        policy::check(&policy, self.limits())?;
        settings.policy = Some(policy);
        settings.check_size()?;
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
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Configure)?;
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

/// Whether nobody but the owner of a queue can be permitted to do it.
const fn is_owners(action: Action) -> bool {
    match action {
        Action::AddPermission
        | Action::CancelMessageMoveTask
        | Action::CreateQueue
        | Action::DeleteQueue
        | Action::ListMessageMoveTasks
        | Action::ListQueueTags
        | Action::ListQueues
        | Action::RemovePermission
        | Action::SetQueueAttributes
        | Action::StartMessageMoveTask
        | Action::TagQueue
        | Action::UntagQueue => true,
        Action::ChangeMessageVisibility
        | Action::ChangeMessageVisibilityBatch
        | Action::DeleteMessage
        | Action::DeleteMessageBatch
        | Action::GetQueueAttributes
        | Action::GetQueueUrl
        | Action::ListDeadLetterSourceQueues
        | Action::PurgeQueue
        | Action::ReceiveMessage
        | Action::SendMessage
        | Action::SendMessageBatch => false,
    }
}
