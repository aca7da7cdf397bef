//! A virtual host as it is printed.

use comfy_table::Table;
use nexo_grpc::proto;
use serde::Serialize;

use super::{Figures, columns};

/// Everything about a virtual host. A limit that is not set is left out.
#[derive(Debug, Serialize)]
pub(crate) struct VhostView {
    name: String,
    description: String,
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_queue_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_connections: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_queues: Option<i64>,
    queues: u64,
    connections: u64,
}

impl From<proto::Vhost> for VhostView {
    fn from(vhost: proto::Vhost) -> Self {
        let config = vhost.config.unwrap_or_default();
        Self {
            name: vhost.name,
            description: config.description.unwrap_or_default(),
            tags: config.tags.unwrap_or_default().tags,
            default_queue_type: config.default_queue_type.filter(|kind| !kind.is_empty()),
            max_connections: config.max_connections.filter(|max| *max >= 0),
            max_queues: config.max_queues.filter(|max| *max >= 0),
            queues: vhost.queues,
            connections: vhost.connections,
        }
    }
}

impl VhostView {
    pub(crate) fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add("name", &self.name)
            .add("description", &self.description)
            .add("tags", self.tags.join(", "))
            .add("default queue type", self.default_queue_type.as_deref().unwrap_or("none"))
            .add("queues", of(self.queues, self.max_queues))
            .add("connections", of(self.connections, self.max_connections));
        figures
    }
}

/// Virtual hosts, one a line.
pub(crate) fn vhost_table(vhosts: &[VhostView]) -> Table {
    let mut table = columns(&["NAME", "QUEUES", "CONNECTIONS", "DESCRIPTION"]);
    for vhost in vhosts {
        table.add_row([
            vhost.name.clone(),
            of(vhost.queues, vhost.max_queues),
            of(vhost.connections, vhost.max_connections),
            vhost.description.clone(),
        ]);
    }
    table
}

/// A figure, with its limit if it has one.
fn of(figure: u64, max: Option<i64>) -> String {
    max.map_or_else(|| figure.to_string(), |max| format!("{figure} of {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_beside_its_figure() {
        let config =
            proto::VhostConfig { max_queues: Some(3), max_connections: Some(-1), ..Default::default() };
        let vhost = proto::Vhost { name: "acme".into(), config: Some(config), queues: 2, connections: 1 };
        let view = VhostView::from(vhost);
        assert!(view.figures().to_string().contains("queues              2 of 3\n"), "{}", view.figures());
        let text = vhost_table(&[view]).to_string();
        assert_eq!(
            text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>(),
            ["acme", "2", "of", "3", "1"]
        );
    }
}
