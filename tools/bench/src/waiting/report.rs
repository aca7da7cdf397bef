//! What waiting came to.

use super::hall::Hall;
use super::ledger::Woken;
use super::{Rested, WaitingOptions};
use crate::chart::{Axis, Chart, Curve, Scale};
use crate::percentiles::{Percentiles, curve};
use crate::process::Used;
use crate::report::{Figures, Report, mib, thousands};

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Waiting {
    /// What was asked for.
    pub options: WaitingOptions,
    /// How long everybody waited while nothing was sent, in seconds.
    pub rest_seconds: f64,
    /// Processor time meanwhile, and memory at the end of it.
    pub rest_used: Used,
    /// Messages that were sent.
    pub messages: u64,
    /// How many receivers they woke.
    pub woken: Woken,
    /// Messages that came to a receiver of another queue.
    pub strayed: u64,
    /// Receivers that got an answer without a message before their time was over.
    pub false_alarms: u64,
    /// Waits that began anew because their time was over.
    pub renewed: u64,
    /// From the moment a message was due to the moment a receiver had it.
    pub wake_time: Option<Percentiles>,
    /// From the moment a message was due to its confirm.
    pub send_time: Option<Percentiles>,
    /// Processor time from the first message to the last.
    pub sending_used: Used,
    /// Percentiles and microseconds, from send to wake.
    pub wake_curve: Vec<(f64, f64)>,
}

impl Waiting {
    pub(super) fn new(options: &WaitingOptions, hall: &Hall, rested: Rested, sending_used: Used) -> Self {
        Self {
            options: options.clone(),
            rest_seconds: rested.time.as_secs_f64(),
            rest_used: rested.used,
            messages: hall.ledger.sent(),
            woken: hall.ledger.sums(),
            strayed: hall.ledger.strayed,
            false_alarms: hall.false_alarms,
            renewed: hall.renewed,
            wake_time: Percentiles::of_nanos(&hall.ledger.wake_nanos),
            send_time: Percentiles::of_nanos(&hall.send_nanos),
            sending_used,
            wake_curve: curve(&hall.ledger.wake_nanos),
        }
    }
}

impl Report for Waiting {
    fn title(&self) -> String {
        let WaitingOptions { receivers, queues, rate, .. } = self.options;
        let [receivers, rate] = [receivers, rate].map(|number| thousands(f64::from(number)));
        let queues =
            if queues == 1 { "one queue".into() } else { format!("{} queues", thousands(f64::from(queues))) };
        format!("{receivers} receivers waiting at {queues}, {rate} messages a second")
    }

    fn figures(&self) -> Figures {
        let Woken { one, none, several } = self.woken;
        let [messages, one, none, several, strayed] =
            [self.messages, one, none, several, self.strayed].map(|count| thousands(count as f64));
        let mut figures = Figures::default();
        figures
            .add_some("send → wake", self.wake_time)
            .add_some("send → confirm", self.send_time)
            .add(
                "receivers woken",
                format!("exactly one by {one} of {messages} messages, none by {none}, several by {several}"),
            )
            .add(
                "woken wrongly",
                format!("{} without a message, {strayed} by another queue's", self.false_alarms),
            );
        let millis = |seconds: f64| format!("{:.0} ms in {:.1} s", seconds * 1000.0, self.rest_seconds);
        figures
            .add_some("broker's processor, all waiting", self.rest_used.broker_processor_seconds.map(millis))
            .add("load's processor, all waiting", millis(self.rest_used.load_processor_seconds))
            .add_some("broker's memory, all waiting", self.rest_used.broker_resident_bytes.map(mib));
        let each = |seconds: f64| format!("{:.0} µs a message", seconds * 1e6 / self.messages.max(1) as f64);
        figures
            .add_some("broker's processor, sending", self.sending_used.broker_processor_seconds.map(each))
            .add("waits that began anew", thousands(self.renewed as f64));
        figures
    }

    fn charts(&self) -> Vec<Chart> {
        vec![Chart {
            title: "From send to wake by percentile".into(),
            x: Axis::new("percentile", Scale::Nines),
            y: Axis::new("microseconds", Scale::Logarithmic),
            curves: vec![Curve { name: "send → wake".into(), points: self.wake_curve.clone() }],
        }]
    }
}
