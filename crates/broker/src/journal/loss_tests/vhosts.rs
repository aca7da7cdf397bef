//! A virtual host whose deletion is lost, in part or whole: it is finished, or never happened.

use nexo_core::topology::VhostSpec;
use nexo_types::VhostName;

use super::*;

fn vhost() -> VhostName {
    VhostName::new("v").unwrap()
}

fn in_vhost(text: &str) -> QueueName {
    QueueName::at(&vhost(), text).unwrap()
}

/// Deletes a virtual host with three queues, and loses all but the first so many frames of that.
async fn lose_deletion(kept: usize) -> Broker {
    let (broker, fake) = with_queue(QueueConfig::default()).await;
    broker.put_vhost(&vhost(), VhostSpec::default()).await.unwrap();
    for text in ["a", "b", "c"] {
        broker.create_queue(&in_vhost(text), QueueConfig::default()).await.unwrap();
        broker.push(&in_vhost(text), vec![NewMessage::new(text)]).await.unwrap();
    }
    fake.set_pace(Pace::Held);
    let deleting = broker.clone();
    let deletion = tokio::spawn(async move { deleting.delete_vhost(&vhost()).await });
    // It itself, three queues, and its end.
    while fake.pending() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fake.lose_behind(kept);
    assert!(deletion.await.unwrap().is_err(), "nobody is told that it is gone");
    fake.set_pace(Pace::AtOnce);
    rebuilt(&broker, &fake).await;
    broker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_is_lost_in_part_is_finished() {
    for kept in 1..4 {
        let broker = lose_deletion(kept).await;
        while broker.topology_outline().vhosts.contains_key(&vhost()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(broker.shared.catalog.all().len(), 1, "{kept} frames were kept");
        assert!(broker.queue_stats(&name("q")).is_ok());
        assert!(broker.put_vhost(&vhost(), VhostSpec::default()).await.unwrap(), "its name is free");
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_is_lost_whole_never_happened() {
    let broker = lose_deletion(0).await;
    assert_eq!(broker.vhost(&vhost()).unwrap().queues, 3);
    for text in ["a", "b", "c"] {
        let popped = broker.pop(&in_vhost(text), request(9, Millis(10_000))).await.unwrap();
        assert_eq!(bodies(&popped), [text]);
    }
    broker.shutdown().await;
}
