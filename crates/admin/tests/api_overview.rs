//! The overview, nodes, vhosts and health checks over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_log::disk::FaultyDisk;
use serde_json::json;

#[tokio::test]
async fn the_overview_says_what_there_is() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    let publish = json!({"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"});
    managed.expect(200, "POST", "/api/exchanges/%2F/amq.default/publish", Some(publish)).await;
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    let shown = managed.get("/api/overview").await;
    assert_eq!((&shown["product_name"], &shown["cluster_name"]), (&json!("Nexo"), &json!("nexo")));
    assert!(shown["rabbitmq_version"].as_str().unwrap().starts_with("3.13."), "{shown}");
    assert_eq!(
        shown["object_totals"],
        json!({"channels": 1, "connections": 1, "consumers": 0, "exchanges": 7, "queues": 1})
    );
    assert_eq!(
        (&shown["queue_totals"]["messages"], &shown["queue_totals"]["messages_ready"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(shown["message_stats"]["publish"], json!(1));
    assert!(shown["message_stats"]["publish_details"]["rate"].is_number());
    assert_eq!(column(&shown["listeners"], "protocol"), ["amqp", "http"]);
    assert_eq!(column(&shown["listeners"], "port"), [managed.amqp.port(), managed.http.port()]);
    let history = managed.get("/api/overview?msg_rates_age=60&msg_rates_incr=5").await;
    assert!(history["message_stats"]["ack_details"]["samples"].is_array(), "{history}");
    managed.expect(400, "GET", "/api/overview?msg_rates_age=0&msg_rates_incr=5", None).await;
    assert_eq!(managed.get("/api/cluster-name").await, json!({"name": "nexo"}));
    assert_eq!(managed.get("/api/extensions").await, json!([]));
    assert_eq!(managed.get("/api/auth").await, json!({"oauth_enabled": false}));
}

#[tokio::test]
async fn there_is_one_node_and_one_vhost() {
    let managed = Managed::start().await;
    let nodes = managed.get("/api/nodes").await;
    let name = nodes[0]["name"].as_str().unwrap();
    assert!(name.starts_with("nexo@") && nodes[0]["running"] == json!(true), "{nodes}");
    assert!(
        nodes[0]["mem_used"].as_u64().unwrap() > 0 && nodes[0]["fd_total"].as_u64().unwrap() > 0,
        "{nodes}"
    );
    assert_eq!(managed.get(&format!("/api/nodes/{name}")).await["name"], json!(name));
    assert!(managed.get(&format!("/api/nodes/{name}/memory")).await["memory"]["total"]["rss"].is_u64());
    managed.expect(404, "GET", "/api/nodes/other", None).await;
    let vhosts = managed.get("/api/vhosts").await;
    assert_eq!((column(&vhosts, "name"), &vhosts[0]["tracing"]), (vec![json!("/")], &json!(false)));
    assert_eq!(vhosts[0]["cluster_state"][name], json!("running"));
    assert_eq!(managed.get("/api/vhosts/%2F").await["name"], json!("/"));
}

#[tokio::test]
async fn a_broker_that_is_well_passes_every_check() {
    let managed = Managed::start().await;
    for check in [
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "ready-to-serve-clients",
        "node-is-quorum-critical",
        "node-is-mirror-sync-critical",
        "protocol-listener/amqp",
        "protocol-listener/http",
    ] {
        let shown = managed.get(&format!("/api/health/checks/{check}")).await;
        assert_eq!(shown["status"], json!("ok"), "{check}");
    }
    let port = managed.amqp.port();
    let shown = managed.get(&format!("/api/health/checks/port-listener/{port}")).await;
    assert_eq!(shown, json!({"status": "ok", "port": port}));
    let missing = managed.expect(503, "GET", "/api/health/checks/port-listener/1", None).await.json();
    assert_eq!((&missing["status"], &missing["missing"]), (&json!("failed"), &json!(1)));
    managed.expect(400, "GET", "/api/health/checks/port-listener/x", None).await;
    managed.expect(503, "GET", "/api/health/checks/protocol-listener/mqtt", None).await;
}

#[tokio::test]
async fn a_message_is_sent_through_a_queue_to_see_whether_a_virtual_host_lives() {
    let managed = Managed::start().await;
    let quorum = json!({"default_queue_type": "quorum"});
    managed.expect(201, "PUT", "/api/vhosts/quorum", Some(quorum)).await;
    for vhost in ["%2F", "quorum"] {
        for delivered in 1..=2 {
            let path = format!("/api/aliveness-test/{vhost}");
            assert_eq!(managed.get(&path).await, json!({"status": "ok"}));
            let queue = managed.get(&format!("/api/nexo/queues/{vhost}/aliveness-test")).await;
            assert_eq!((&queue["ready"], &queue["leased"]), (&json!(0), &json!(0)));
            assert_eq!(queue["totals"]["acked"], json!(delivered));
        }
    }
    managed.expect(404, "GET", "/api/aliveness-test/none", None).await;
    // It is asked in the name of whoever asks.
    let ann = json!({"password": "ann", "tags": "monitoring"});
    managed.expect(201, "PUT", "/api/users/ann", Some(ann)).await;
    assert_eq!(managed.call_as("ann", "GET", "/api/aliveness-test/%2F", None).await.status, 401);
    let reads = json!({"configure": "", "write": "", "read": ".*"});
    managed.expect(201, "PUT", "/api/permissions/%2F/ann", Some(reads)).await;
    assert_eq!(managed.call_as("ann", "GET", "/api/aliveness-test/%2F", None).await.status, 401);
    // A queue that is otherwise than the check wants it is left alone.
    managed.expect(204, "DELETE", "/api/queues/%2F/aliveness-test", None).await;
    managed.expect(201, "PUT", "/api/queues/%2F/aliveness-test", Some(json!({"durable": true}))).await;
    managed.expect(400, "GET", "/api/aliveness-test/%2F", None).await;
}

#[tokio::test]
async fn what_needs_nothing_done_is_answered() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    let detailed = managed.get("/api/queues/detailed").await;
    assert_eq!(column(&detailed, "name"), ["q"]);
    managed.expect(204, "POST", "/api/rebalance/queues", None).await;
    let node = managed.get("/api/overview").await["node"].as_str().unwrap().to_owned();
    managed.expect(204, "POST", &format!("/api/vhosts/%2F/start/{node}"), None).await;
    managed.expect(400, "POST", "/api/vhosts/%2F/start/other@node", None).await;
    managed.expect(400, "POST", &format!("/api/vhosts/none/start/{node}"), None).await;
}

#[tokio::test]
async fn the_cluster_is_called_otherwise() {
    let managed = Managed::start().await;
    managed.expect(204, "PUT", "/api/cluster-name", Some(json!({"name": "ours"}))).await;
    assert_eq!(managed.get("/api/cluster-name").await, json!({"name": "ours"}));
    assert_eq!(managed.get("/api/global-parameters/cluster_name").await["value"], json!("ours"));
    for wrong in [json!({}), json!({"name": 1})] {
        managed.expect(400, "PUT", "/api/cluster-name", Some(wrong)).await;
    }
    assert_eq!(managed.get("/api/overview").await["cluster_name"], json!("ours"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_an_alarm() {
    let disk = FaultyDisk::new();
    let managed = Managed::start_on(&disk).await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({"durable": true}))).await;
    disk.set_bytes_max(Some(disk.used_bytes()));
    let publish = json!({"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x".repeat(1000),
        "payload_encoding": "string"});
    let mut published = 0;
    while managed.call("POST", "/api/exchanges/%2F/amq.default/publish", Some(publish.clone())).await.status
        == 200
    {
        published += 1;
        assert!(published < 5_000, "the disk never fills");
    }
    let failed = managed.expect(503, "GET", "/api/health/checks/alarms", None).await.json();
    assert_eq!((&failed["status"], &failed["alarms"][0]["resource"]), (&json!("failed"), &json!("disk")));
    managed.expect(503, "GET", "/api/health/checks/ready-to-serve-clients", None).await;
    assert_eq!(managed.get("/api/nodes").await[0]["disk_free_alarm"], json!(true));
    disk.set_bytes_max(None);
    managed.until("/api/health/checks/alarms", |shown| shown["status"] == json!("ok")).await;
}

#[tokio::test]
async fn vhosts_are_made_changed_limited_and_deleted() {
    let managed = Managed::start().await;
    let asked = json!({"description": "for tests", "tags": "a,b", "default_queue_type": "quorum"});
    managed.expect(201, "PUT", "/api/vhosts/test%20one", Some(asked)).await;
    managed.expect(204, "PUT", "/api/vhosts/test%20one", Some(json!({"description": "other"}))).await;
    let shown = managed.get("/api/vhosts/test%20one").await;
    assert_eq!((&shown["description"], &shown["tags"]), (&json!("other"), &json!(["a", "b"])));
    assert_eq!(shown["default_queue_type"], json!("quorum"));
    managed.expect(201, "PUT", "/api/queues/test%20one/q", Some(json!({"durable": true}))).await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    assert_eq!(managed.get("/api/queues/test%20one/q").await["type"], json!("quorum"));
    assert_eq!(managed.get("/api/queues/test%20one").await.as_array().unwrap().len(), 1);
    assert_eq!(managed.get("/api/queues").await.as_array().unwrap().len(), 2);
    managed.expect(204, "PUT", "/api/vhost-limits/test%20one/max-queues", Some(json!({"value": 1}))).await;
    assert_eq!(
        managed.get("/api/vhost-limits").await,
        json!([{"vhost": "test one", "value": {"max-queues": 1}}])
    );
    managed.expect(400, "PUT", "/api/queues/test%20one/r", Some(json!({}))).await;
    managed.expect(204, "DELETE", "/api/vhost-limits/test%20one/max-queues", None).await;
    assert_eq!(managed.get("/api/vhost-limits/test%20one").await, json!([]));
    managed.expect(400, "PUT", "/api/vhost-limits/test%20one/max-fun", Some(json!({"value": 1}))).await;
    managed
        .expect(201, "POST", "/api/bindings/test%20one/e/amq.topic/q/q", Some(json!({"routing_key": "k"})))
        .await;
    let publish = json!({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"});
    let sent =
        managed.expect(200, "POST", "/api/exchanges/test%20one/amq.topic/publish", Some(publish)).await;
    assert_eq!(sent.json(), json!({"routed": true}));
    assert_eq!(managed.get("/api/vhosts/test%20one").await["messages"], json!(1));
    assert_eq!(managed.get("/api/vhosts/%2F").await["messages"], json!(0));
    managed.expect(204, "DELETE", "/api/vhosts/test%20one", None).await;
    managed.expect(404, "DELETE", "/api/vhosts/test%20one", None).await;
    managed.expect(404, "GET", "/api/queues/test%20one", None).await;
}

#[tokio::test]
async fn logins_are_counted_and_can_be_from_the_beginning() {
    let managed = Managed::start().await;
    let node = managed.get("/api/overview").await["node"].as_str().unwrap().to_owned();
    let path = format!("/api/auth/attempts/{node}");
    let of = async |protocol: &str| {
        let shown = managed.get(&path).await;
        let all = shown.as_array().unwrap();
        let one = all.iter().find(|one| one["protocol"] == protocol).unwrap();
        [&one["auth_attempts"], &one["auth_attempts_succeeded"], &one["auth_attempts_failed"]]
            .map(|count| count.as_u64().unwrap())
    };
    assert_eq!(of("amqp091").await, [0, 0, 0]);
    let _client = managed.client().await;
    let wrong =
        nexo_amqp_client::Login { password: "wrong".to_owned(), ..nexo_amqp_client::Login::default() };
    let patience = std::time::Duration::from_secs(30);
    assert!(nexo_amqp_client::Client::connect(managed.amqp, &wrong, patience).await.is_err());
    assert_eq!(of("amqp091").await, [2, 1, 1]);
    let before = of("http").await;
    assert_eq!(managed.call_as("ann", "GET", "/api/queues", None).await.status, 401);
    let after = of("http").await;
    assert_eq!(after[2] - before[2], 1);
    managed.expect(204, "DELETE", &path, None).await;
    assert_eq!((of("amqp091").await, of("http").await), ([0, 0, 0], [2, 2, 0]));
    assert_eq!(managed.get(&format!("{path}/source")).await, json!([]));
    managed.expect(204, "DELETE", &format!("{path}/source"), None).await;
    managed.expect(404, "GET", "/api/auth/attempts/other@node", None).await;
    managed.expect(404, "DELETE", "/api/auth/attempts/other@node", None).await;
}

#[tokio::test]
async fn without_tls_no_certificate_expires() {
    let managed = Managed::start().await;
    let check = "/api/health/checks/certificate-expiration";
    assert_eq!(managed.get(&format!("{check}/100/years")).await, json!({"status": "ok"}));
    managed.expect(400, "GET", &format!("{check}/soon/weeks"), None).await;
    managed.expect(400, "GET", &format!("{check}/1/fortnights"), None).await;
}
