//! Policies, operator policies and parameters in a file of definitions. As in RabbitMQ, operator policies and limits of virtual
//! hosts are parameters there.

use nexo_broker::policy::{PolicyKind, PolicyRecord};
use nexo_types::VhostName;
use serde_json::{Map, Value};

use super::plan::{items, told};
use crate::api::Api;
use crate::api::access::Visible;
use crate::api::body::Fields;
use crate::api::error::ApiError;
use crate::api::parameters::{self, ParameterChange, change_of, value_of};
use crate::api::policies::{all_in, policy_of};

/// The limits of a virtual host as a file has them.
pub(super) type LimitsAsked = (VhostName, Map<String, Value>);

/// What a file asks for: policies and parameters, and limits of virtual hosts.
type Asked = (Vec<PolicyRecord>, Vec<LimitsAsked>);

/// The policies of an export.
pub(super) fn policies(api: &Api, vhosts: &Visible) -> Value {
    all_in(api, PolicyKind::Regular, |vhost| vhosts.has_name(vhost)).into()
}

/// The parameters of an export.
pub(super) fn parameters(api: &Api, vhosts: &Visible) -> Value {
    parameters::all_that(api, |vhost, _, _| vhosts.has(vhost)).into()
}

/// The parameters of the whole broker in an export.
pub(super) fn globals(api: &Api) -> Value {
    parameters::globals(api).into()
}

/// What a file says of policies and parameters of virtual hosts.
pub(super) fn read(
    file: &Map<String, Value>,
    vhost_of: impl Fn(&Map<String, Value>) -> Result<VhostName, ApiError>,
) -> Result<Asked, ApiError> {
    let (mut changes, mut limits) = (Vec::new(), Vec::new());
    for item in items(file, "parameters")? {
        let (vhost, name) = (vhost_of(item)?, item.text("name")?);
        let change = change_of(vhost.clone(), item.text("component")?, name, value_of(item)?);
        match change.map_err(|error| told(&error, "parameter", name))? {
            ParameterChange::Policies(change) => changes.push(change),
            ParameterChange::Limits(asked) => limits.push((vhost, asked)),
        }
    }
    for item in items(file, "policies")? {
        let (vhost, name, kind) = (vhost_of(item)?, item.text("name")?, PolicyKind::Regular);
        let policy = policy_of(kind, name, item).map_err(|error| told(&error, "policy", name))?.into();
        changes.push(PolicyRecord::Put { kind, vhost, policy });
    }
    Ok((changes, limits))
}

/// What a file says of parameters of the whole broker.
pub(super) fn read_globals(file: &Map<String, Value>) -> Result<Vec<PolicyRecord>, ApiError> {
    let read = items(file, "global_parameters")?.map(|item| {
        let (name, value) = (item.text("name")?.into(), value_of(item)?.to_string().into());
        Ok(PolicyRecord::PutGlobal { name, value })
    });
    read.collect()
}
