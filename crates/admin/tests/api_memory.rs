//! The memory watermark over the management API: how it is shown, changed, and what an alarm looks like.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::Managed;
use nexo_broker::{BrokerOptions, MemoryHigh};
use nexo_log::disk::FaultyDisk;
use serde_json::json;

async fn managed() -> Managed {
    let plenty = MemoryHigh::Bytes(1 << 40);
    let options = BrokerOptions { owns_process: true, memory_high: plenty, ..BrokerOptions::new("faulty") };
    Managed::start_with(&FaultyDisk::new(), options).await
}

#[tokio::test]
async fn the_watermark_is_shown_and_changed() {
    let managed = managed().await;
    let shown = managed.get("/api/nexo/memory").await;
    assert_eq!((&shown["absolute_bytes"], &shown["limit_bytes"]), (&json!(1u64 << 40), &json!(1u64 << 40)));
    assert_eq!((&shown["alarm"], shown.get("high")), (&json!(false), None));
    let total = shown["total_bytes"].as_u64().unwrap();
    let changed = managed.expect(200, "PUT", "/api/nexo/memory", Some(json!({"high": 0.5}))).await.json();
    assert_eq!((&changed["high"], &changed["limit_bytes"]), (&json!(0.5), &json!(total / 2)));
    assert_eq!(managed.get("/api/nodes").await[0]["mem_limit"], json!(total / 2));
    for wrong in [json!({}), json!({"high": 2}), json!({"absolute_bytes": -1})] {
        managed.expect(400, "PUT", "/api/nexo/memory", Some(wrong)).await;
    }
    assert_eq!(managed.get("/api/nexo/memory").await["high"], json!(0.5), "what was wrong changed nothing");
}

#[tokio::test]
async fn a_memory_alarm_shows_everywhere_and_goes() {
    let managed = managed().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    let set = managed.expect(200, "PUT", "/api/nexo/memory", Some(json!({"absolute_bytes": 0}))).await.json();
    assert_eq!(set["alarm"], json!(true), "it counts at once");
    for (check, reason) in [
        ("alarms", "There are alarms in effect in the cluster"),
        ("local-alarms", "There are alarms in effect on the node"),
    ] {
        let path = format!("/api/health/checks/{check}");
        let failed = managed.expect(503, "GET", &path, None).await.json();
        assert_eq!((&failed["status"], &failed["reason"]), (&json!("failed"), &json!(reason)));
        assert_eq!(failed["alarms"].as_array().unwrap().len(), 1);
        assert_eq!(failed["alarms"][0]["resource"], json!("memory"));
    }
    let node = &managed.get("/api/nodes").await[0];
    assert_eq!((&node["mem_alarm"], &node["disk_free_alarm"]), (&json!(true), &json!(false)));
    // Consumers are served, so nothing takes the broker out of service.
    managed.expect(200, "GET", "/api/health/checks/ready-to-serve-clients", None).await;
    let health = managed.get("/health").await;
    assert_eq!(health["status"], json!("degraded"));
    assert!(health["reason"].as_str().unwrap().contains("memory_high"), "{health}");
    let metrics = managed.expect(200, "GET", "/metrics", None).await.text;
    assert!(metrics.contains("\nnexo_memory_alarm 1"), "{metrics}");
    let publish = json!({"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"});
    managed.expect(503, "POST", "/api/exchanges/%2F/amq.default/publish", Some(publish.clone())).await;
    let failed = managed.expect(503, "GET", "/api/aliveness-test/%2F", None).await.json();
    assert_eq!(failed["status"], json!("failed"));
    assert!(failed["reason"].as_str().unwrap().contains("memory"), "{failed}");
    managed.expect(200, "PUT", "/api/nexo/memory", Some(json!({"absolute_bytes": 1u64 << 40}))).await;
    assert_eq!(managed.get("/api/health/checks/alarms").await["status"], json!("ok"));
    managed.expect(200, "POST", "/api/exchanges/%2F/amq.default/publish", Some(publish)).await;
}
