//! The place of policies and parameters in a file of definitions. Limits of virtual hosts are parameters there; others have no
//! place in the broker yet: an export has none, and an import counts those that it leaves out.

use nexo_broker::VhostInfo;
use nexo_types::VhostName;
use serde_json::{Map, Value, json};

use super::plan::{Left, items};
use crate::api::access::Visible;
use crate::api::body::Fields;
use crate::api::error::ApiError;
use crate::api::vhosts::{has_limits, limits_value};

/// The component of RabbitMQ to which limits of virtual hosts belong.
const VHOST_LIMITS: &str = "vhost-limits";

/// The limits of a virtual host as a file has them.
#[derive(Clone, Debug)]
pub(super) struct LimitsAsked {
    pub(super) vhost: VhostName,
    pub(super) max_connections: Option<u64>,
    pub(super) max_queues: Option<u64>,
}

/// The policies of an export.
pub(super) fn policies(_: &Visible) -> Value {
    json!([])
}

/// The parameters of an export.
pub(super) fn parameters(vhosts: &[VhostInfo]) -> Value {
    let limited = vhosts.iter().filter(|vhost| has_limits(vhost));
    let shown = limited.map(|vhost| {
        json!({
            "component": VHOST_LIMITS,
            "name": "limits",
            "vhost": vhost.name.as_str(),
            "value": limits_value(vhost),
        })
    });
    shown.collect()
}

/// What a file says of policies and parameters: the limits of virtual hosts, and how much else there is.
pub(super) fn read(
    file: &Map<String, Value>,
    vhost_of: impl Fn(&Map<String, Value>) -> Result<VhostName, ApiError>,
) -> Result<(Vec<LimitsAsked>, Vec<Left>), ApiError> {
    let (mut limits, mut others) = (Vec::new(), 0);
    for item in items(file, "parameters")? {
        if item.text("component")? != VHOST_LIMITS {
            others += 1;
            continue;
        }
        let value = item.table("value")?;
        let limit = |name| value.whole(name).map(|value| value.and_then(|value| u64::try_from(value).ok()));
        let (max_connections, max_queues) = (limit("max-connections")?, limit("max-queues")?);
        limits.push(LimitsAsked { vhost: vhost_of(item)?, max_connections, max_queues });
    }
    let global = items(file, "global_parameters")?;
    // Every file of RabbitMQ names its cluster; there is nothing to be done about that.
    let is_own = |item: &&Map<String, Value>| {
        let name = item.get("name").and_then(Value::as_str).unwrap_or_default();
        !matches!(name, "cluster_name" | "internal_cluster_id")
    };
    let left = [
        Left { kind: "policies", count: items(file, "policies")?.count() },
        Left { kind: "parameters", count: others },
        Left { kind: "global_parameters", count: global.filter(is_own).count() },
    ];
    Ok((limits, left.into_iter().filter(|left| left.count > 0).collect()))
}
