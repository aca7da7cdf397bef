//! A cluster over the management API: what is told and asked, who may, and what health says of a node.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Answer, Served};
use nexo_admin::{
    AdminOptions, Answering, ClusterControl, ClusterFigures, ClusterHealth, ClusterRefused, ClusterReport,
    Drain, RemoveIf,
};
use nexo_log::disk::FaultyDisk;
use serde_json::{Value, json};

/// A cluster that notes what it is asked.
#[derive(Debug, Default)]
struct Told {
    asked: Mutex<Vec<String>>,
    has_leader: Mutex<bool>,
    unready: Mutex<Option<String>>,
}

impl Told {
    fn note<T: Send + 'static>(&self, what: String, answer: T) -> Answering<'_, T> {
        self.asked.lock().unwrap().push(what);
        Box::pin(std::future::ready(answer))
    }
}

impl ClusterControl for Told {
    fn report(&self) -> Answering<'_, ClusterReport> {
        let report = ClusterReport {
            cluster: "c".to_owned(),
            node: "a".to_owned(),
            leader: Some("a".to_owned()),
            term: 7,
            health: ClusterHealth::AtRisk,
            risk: "one node votes".to_owned(),
            nodes: Vec::new(),
            groups: Vec::new(),
        };
        self.note("report".to_owned(), report)
    }

    fn figures(&self) -> ClusterFigures {
        ClusterFigures { has_leader: *self.has_leader.lock().unwrap(), term: 7, ..ClusterFigures::default() }
    }

    fn unready(&self) -> Option<String> {
        self.unready.lock().unwrap().clone()
    }

    fn transfer(&self, to: Option<String>) -> Answering<'_, Result<String, ClusterRefused>> {
        self.note(format!("transfer {to:?}"), to.ok_or(ClusterRefused::Unavailable("nobody can".to_owned())))
    }

    fn drain(&self, node: String, wanted: Drain) -> Answering<'_, Result<(), ClusterRefused>> {
        self.note(format!("{wanted:?} {node}"), Ok(()))
    }

    fn remove(&self, node: String, when: RemoveIf) -> Answering<'_, Result<(), ClusterRefused>> {
        let answer = match when {
            RemoveIf::Safe => Err(ClusterRefused::Refused("it would stop".to_owned())),
            RemoveIf::Always => Ok(()),
        };
        self.note(format!("remove {node}"), answer)
    }
}

async fn served(cluster: Option<Arc<Told>>) -> Served {
    let cluster = cluster.map(|cluster| cluster as Arc<dyn ClusterControl>);
    Served::start_with(&FaultyDisk::new(), AdminOptions { cluster, ..AdminOptions::default() }).await
}

/// As guest, who is an administrator.
async fn ask(served: &Served, method: &str, path: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    served.ask(&request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_by_itself_is_in_no_cluster() {
    let served = served(None).await;
    let answer = ask(&served, "GET", "/api/nexo/cluster", "").await;
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("this broker is not in a cluster"), "{}", answer.body);
    assert_eq!(served.get("/health/ready").await.0, 200);
    assert_eq!(served.get("/health/live").await.0, 200);
    assert!(!served.get("/metrics").await.1.contains("nexo_cluster_"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_a_cluster_reaches_it() {
    let told = Arc::new(Told::default());
    let served = served(Some(Arc::clone(&told))).await;
    let shown: Value =
        serde_json::from_str(&ask(&served, "GET", "/api/nexo/cluster", "").await.body).unwrap();
    assert_eq!(
        (&shown["leader"], &shown["term"], &shown["health"]),
        (&json!("a"), &json!(7), &json!("at_risk"))
    );
    let moved = ask(&served, "POST", "/api/nexo/cluster/transfer", r#"{"to": "b"}"#).await;
    assert_eq!((moved.status, moved.body.as_str()), (200, r#"{"leader":"b"}"#));
    assert_eq!(ask(&served, "POST", "/api/nexo/cluster/transfer", "").await.status, 503);
    assert_eq!(ask(&served, "POST", "/api/nexo/cluster/nodes/b/drain", "").await.status, 204);
    assert_eq!(
        ask(&served, "POST", "/api/nexo/cluster/nodes/b/drain", r#"{"drain": false}"#).await.status,
        204
    );
    let refused = ask(&served, "DELETE", "/api/nexo/cluster/nodes/c", "").await;
    assert!(refused.status == 409 && refused.body.contains("it would stop"), "{}", refused.body);
    assert_eq!(ask(&served, "DELETE", "/api/nexo/cluster/nodes/c?force=true", "").await.status, 204);
    let asked = told.asked.lock().unwrap().clone();
    let expected =
        ["report", "transfer Some(\"b\")", "transfer None", "Begin b", "End b", "remove c", "remove c"];
    assert_eq!(asked, expected);
    let stranger = served.get("/api/nexo/cluster").await;
    assert_eq!(stranger.0, 401, "nobody is told who does not log in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_leader_is_alive_and_not_ready() {
    let told = Arc::new(Told::default());
    *told.unready.lock().unwrap() = Some("no node is known to lead".to_owned());
    let served = served(Some(Arc::clone(&told))).await;
    for path in ["/health", "/health/ready"] {
        let (status, body) = served.get(path).await;
        assert!(status == 503 && body.contains("no node is known to lead"), "{path}: {status} {body}");
    }
    assert_eq!(served.get("/health/live").await.0, 200);
    *told.has_leader.lock().unwrap() = true;
    *told.unready.lock().unwrap() = Some("this node is drained".to_owned());
    assert_eq!(served.get("/health").await.0, 200, "it still takes messages");
    let (status, body) = served.get("/health/ready").await;
    assert!(status == 503 && body.contains("drained"), "{status} {body}");
    *told.unready.lock().unwrap() = None;
    assert_eq!(served.get("/health/ready").await.0, 200);
    assert!(served.get("/metrics").await.1.contains("nexo_cluster_term 7"));
}
