//! Who may have the broker send messages, or ask for jobs, by itself. It is asked when a schedule is set, of whoever sets it: he must
//! be allowed to send such a message, or to ask for such a job, himself. Afterwards the schedule goes on, whatever becomes of him.

use nexo_broker::schedule::Action;
use nexo_broker::topology::{ExchangeKind, Matching};

use crate::identity::{Identity, Refused};
use crate::{Permission, Resource, Tag};

impl Identity {
    /// Whether he may have this done by a schedule: who may send the message himself, as AMQP asks for it, or ask for the job.
    ///
    /// # Errors
    /// If not.
    pub fn may_schedule(&self, action: &Action) -> Result<(), Refused> {
        match action {
            Action::Push { queue, .. } => {
                self.may(queue.vhost_str(), Permission::Write, Resource::queue(queue.as_str()))
            }
            Action::Ask { queue, .. } => {
                self.may(queue.vhost_str(), Permission::Write, Resource::queue(queue.as_str()))
            }
            Action::Publish { exchange, routing_key, .. } => {
                let (vhost, name) = (exchange.vhost_str(), exchange.as_str());
                self.may(vhost, Permission::Write, Resource::exchange(name))?;
                let spec = self.broker.exchange(exchange);
                match spec.is_some_and(|spec| spec.kind == ExchangeKind::Plain(Matching::Topic)) {
                    true => self.may_topic(vhost, Permission::Write, name, routing_key.as_bytes()),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether he may stop, resume or delete a schedule that does this: who may set it, and policymakers of its virtual host.
    ///
    /// # Errors
    /// If not.
    pub fn may_stop_schedule(&self, vhost: &str, action: &Action) -> Result<(), Refused> {
        let looks_after =
            self.is(Tag::ADMINISTRATOR) || (self.is(Tag::POLICYMAKER) && self.may_enter(vhost).is_ok());
        if looks_after { Ok(()) } else { self.may_schedule(action) }
    }

    /// Whether he may know that there is a schedule: who may come in.
    ///
    /// # Errors
    /// If not.
    pub fn may_see_schedules(&self, vhost: &str) -> Result<(), Refused> {
        if self.is(Tag::ADMINISTRATOR) { Ok(()) } else { self.may_enter(vhost) }
    }
}
