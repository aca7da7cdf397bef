//! What is in the fixture of format 3: what format 2 has, and messages that several queues share.

use nexo_broker::Broker;

use crate::common::*;
use crate::format_2::{self, is_over};
use crate::story::{ROUNDS, SHARED_BYTES, SHARING, shared_body};

/// Checks everything, and settles what clients hold.
pub(crate) async fn check(broker: &Broker, receipts: &[String]) {
    assert_eq!(receipts.len(), 2 * 6);
    for round in ROUNDS {
        let queue = |text: &str| name(&format!("{round} {text}"));
        let left = |text: &str| broker.queue_stats(&queue(text)).unwrap();
        let held = left(SHARING[2]);
        let is_back = is_over(held.created_at);
        assert_eq!((left(SHARING[0]).ready, left(SHARING[1]).ready, left(SHARING[1]).acked), (2, 1, 1));
        assert_eq!((held.ready, held.leased), if is_back { (2, 0) } else { (1, 1) });
        assert_eq!(left(SHARING[0]).bytes, 2 * (SHARED_BYTES as u64 + 1), "each knows what waits in it");
        for (text, numbers) in
            SHARING.into_iter().zip([&[0, 1][..], &[1], if is_back { &[0, 1] } else { &[1] }])
        {
            let expected: Vec<String> = numbers.iter().copied().map(shared_body).collect();
            assert!(bodies(&broker.peek(&queue(text), 9).await.unwrap()) == expected, "{round} {text}");
        }
    }
    format_2::check(broker, receipts, &SHARING).await;
    for round in ROUNDS {
        let held = broker.queue_stats(&name(&format!("{round} {}", SHARING[2]))).unwrap();
        assert_eq!(held.leased, 0, "its receipt was good, or its lease is over");
    }
}

/// What is left after [`check`] and a restart.
pub(crate) async fn check_again(broker: &Broker) {
    format_2::check_again(broker, &SHARING).await;
    for round in ROUNDS {
        let all = pop(broker, &name(&format!("{round} {}", SHARING[0])), 9).await;
        assert!(bodies(&all) == [shared_body(0), shared_body(1)], "{round}");
    }
}
