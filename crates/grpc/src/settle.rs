//! Saying something about delivered messages: received, done, failed, more time. One shape for the four calls
//! and for the same actions on a subscription.

use nexo_access::Identity;
use nexo_broker::{Broker, Receipt, SettleError};
use nexo_types::{Millis, Timestamp, limits};
use tonic::Status;

use crate::access;
use crate::fields;
use crate::proto;
use crate::status::Failure;

/// What is said. Equal ones can share a call to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Received,
    Ack,
    Nack { delay: Option<Millis> },
    Reject,
    Unseen,
    Extend { visibility: Millis },
}

/// What is said, and about which deliveries.
#[derive(Debug)]
pub(crate) struct Settle {
    pub(crate) verb: Verb,
    pub(crate) receipts: Vec<String>,
}

impl Settle {
    fn new(verb: Verb, receipts: Vec<String>) -> Result<Self, Failure> {
        fields::count("receipts", receipts.len(), limits::SETTLE_BATCH_MAX)?;
        Ok(Self { verb, receipts })
    }

    /// Does it. One result for each receipt, in order, once it is durable.
    pub(crate) async fn run(self, broker: &Broker, identity: &Identity) -> Vec<proto::SettleResult> {
        let invalid = |error| Failure::invalid(format!("receipts: {error}"));
        let parsed: Vec<_> =
            self.receipts.iter().map(|text| text.parse::<Receipt>().map_err(invalid)).collect();
        let known: Vec<Receipt> =
            parsed.iter().filter_map(|receipt| receipt.as_ref().ok().copied()).collect();
        let queue_of =
            |receipt: &Receipt| broker.queue_by_id(receipt.queue).map(|queue| queue.name().clone());
        let mut allowed = access::may_settle(identity, queue_of, &known).into_iter();
        let parsed: Vec<Result<Receipt, Failure>> = parsed
            .into_iter()
            .map(|parsed| {
                let receipt = parsed?;
                allowed.next().expect("each receipt was asked for").map(|()| receipt)
            })
            .collect();
        let good: Vec<Receipt> = parsed.iter().filter_map(|receipt| receipt.as_ref().ok().copied()).collect();
        let mut outcomes = self.verb.apply(broker, &good).await.into_iter();
        let results = self.receipts.into_iter().zip(parsed).map(|(receipt, parsed)| {
            let outcome = match parsed {
                Ok(_) => outcomes.next().expect("the broker answers every receipt").map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            match outcome {
                Ok(until) => {
                    proto::SettleResult { receipt, error: None, lease_until_ms: until.map(|until| until.0) }
                }
                Err(failure) => {
                    proto::SettleResult { receipt, error: Some(failure.into()), lease_until_ms: None }
                }
            }
        });
        results.collect()
    }

    /// As [`Self::run`] for a call of its own: a single receipt that fails is the failure of the call.
    pub(crate) async fn call(
        self,
        broker: &Broker,
        identity: &Identity,
    ) -> Result<Vec<proto::SettleResult>, Status> {
        let mut results = self.run(broker, identity).await;
        if let [proto::SettleResult { error: error @ Some(_), .. }] = results.as_mut_slice()
            && let Some(error) = error.take()
        {
            return Err(Status::new(error.code.into(), error.message));
        }
        Ok(results)
    }
}

impl Verb {
    async fn apply(
        self,
        broker: &Broker,
        receipts: &[Receipt],
    ) -> Vec<Result<Option<Timestamp>, SettleError>> {
        fn some(results: Vec<Result<Timestamp, SettleError>>) -> Vec<Result<Option<Timestamp>, SettleError>> {
            results.into_iter().map(|result| result.map(Some)).collect()
        }
        fn none(results: Vec<Result<(), SettleError>>) -> Vec<Result<Option<Timestamp>, SettleError>> {
            results.into_iter().map(|result| result.map(|()| None)).collect()
        }
        if receipts.is_empty() {
            return Vec::new();
        }
        match self {
            Self::Received => some(broker.received(receipts).await),
            Self::Ack => none(broker.ack(receipts).await),
            Self::Nack { delay } => none(broker.nack(receipts, delay).await),
            Self::Reject => none(broker.reject(receipts).await),
            Self::Unseen => none(broker.return_unseen(receipts).await),
            Self::Extend { visibility } => some(broker.extend(receipts, visibility).await),
        }
    }
}

impl TryFrom<proto::ReceivedRequest> for Settle {
    type Error = Failure;

    fn try_from(request: proto::ReceivedRequest) -> Result<Self, Failure> {
        Self::new(Verb::Received, request.receipts)
    }
}

impl TryFrom<proto::AckRequest> for Settle {
    type Error = Failure;

    fn try_from(request: proto::AckRequest) -> Result<Self, Failure> {
        Self::new(Verb::Ack, request.receipts)
    }
}

impl TryFrom<proto::NackRequest> for Settle {
    type Error = Failure;

    fn try_from(request: proto::NackRequest) -> Result<Self, Failure> {
        if request.unseen {
            if request.delay_ms.is_some() || request.dead_letter {
                return Err(Failure::invalid("delay_ms and dead_letter must be left out when unseen is set"));
            }
            return Self::new(Verb::Unseen, request.receipts);
        }
        if request.dead_letter {
            if request.delay_ms.is_some() {
                return Err(Failure::invalid("delay_ms must be left out when dead_letter is set".to_owned()));
            }
            return Self::new(Verb::Reject, request.receipts);
        }
        let delay = request
            .delay_ms
            .map(|delay| fields::in_range("delay_ms", delay, 0, limits::DELAY_MAX.0).map(Millis))
            .transpose()?;
        Self::new(Verb::Nack { delay }, request.receipts)
    }
}

impl TryFrom<proto::ExtendRequest> for Settle {
    type Error = Failure;

    fn try_from(request: proto::ExtendRequest) -> Result<Self, Failure> {
        Self::new(Verb::Extend { visibility: fields::lease(request.visibility_ms)? }, request.receipts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_each_call_are_checked_before_the_broker_is_asked() {
        let receipts = vec!["1-2-3".to_owned()];
        let extend = proto::ExtendRequest { receipts: receipts.clone(), visibility_ms: 0 };
        assert_eq!(
            Settle::try_from(extend).unwrap_err().message,
            "visibility_ms must be between 1 and 31622400000; it is 0"
        );
        let nack = proto::NackRequest { receipts, delay_ms: Some(u64::MAX), ..Default::default() };
        assert_eq!(
            Settle::try_from(nack).unwrap_err().message,
            "delay_ms must be between 0 and 3162240000000; it is 18446744073709551615"
        );
        let ack = proto::AckRequest { receipts: vec![] };
        assert_eq!(
            Settle::try_from(ack).unwrap_err().message,
            "receipts must hold between 1 and 10000 items; it holds 0"
        );
    }
}
