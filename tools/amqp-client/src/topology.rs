//! Queues, exchanges and bindings, on top of [`Client`]'s methods. Many are asked for at once: each answer is waited for,
//! but not before the next question.

use nexo_amqp::codec::method::{exchange, queue};

use crate::client::Client;
use crate::error::Error;
use crate::methods::{self, short};

impl Client {
    /// Declares durable queues.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn declare_queues(&mut self, channel: u16, names: &[String]) -> Result<(), Error> {
        for name in names {
            let declare = queue::Declare { durable: true, ..methods::declare_queue(short(name)?) };
            self.add(channel, &declare);
        }
        self.expect_all(names.len(), "queue.declare-ok").await
    }

    /// Deletes queues.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn delete_queues(&mut self, channel: u16, names: &[String]) -> Result<(), Error> {
        for name in names {
            self.add(channel, &methods::delete_queue(short(name)?));
        }
        self.expect_all(names.len(), "queue.delete-ok").await
    }

    /// Binds queues to an exchange: their names and the keys.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn bind<'a>(
        &mut self,
        channel: u16,
        exchange: &str,
        bindings: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), Error> {
        let count = bindings.len();
        for (queue, key) in bindings {
            self.add(channel, &methods::bind(short(queue)?, short(exchange)?, short(key)?));
        }
        self.expect_all(count, "queue.bind-ok").await
    }

    /// Declares a transient exchange.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn declare_exchange(&mut self, channel: u16, name: &str, kind: &str) -> Result<(), Error> {
        let declare = methods::declare_exchange(short(name)?, short(kind)?);
        self.call(channel, &declare, "exchange.declare-ok").await?;
        Ok(())
    }

    /// Deletes an exchange.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn delete_exchange(&mut self, channel: u16, name: &str) -> Result<(), Error> {
        self.call(channel, &methods::delete_exchange(short(name)?), "exchange.delete-ok").await?;
        Ok(())
    }

    /// Asks for something that every broker has, to see that a channel is answered.
    ///
    /// # Errors
    /// If it is not.
    pub async fn round_trip(&mut self, channel: u16) -> Result<(), Error> {
        let declare = methods::declare_exchange(short("amq.direct")?, short("direct")?);
        let declare = exchange::Declare { passive: true, ..declare };
        self.call(channel, &declare, "exchange.declare-ok").await?;
        Ok(())
    }
}
