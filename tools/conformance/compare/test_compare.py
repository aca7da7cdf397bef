"""The same random acts on two brokers: whatever the one answers, the other must.

AMQP_URL is the broker that is judged, AMQP_REFERENCE_URL the one that is right. COMPARE_SEEDS names the runs, for
example to repeat one that failed: COMPARE_SEEDS="7 8". After every act the queues of both must come to hold the same
number of messages; dead letters take a moment.
"""

import os
import random
import time

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError

SEEDS = [int(seed) for seed in os.environ.get("COMPARE_SEEDS", "1 2 3 4 5 6").split()]
ACTS = 300
KEYS = ["a", "a.b", "a.*", "#", "b.#", "*.b", ""]
BUILT_IN = ["amq.topic", "amq.direct", ""]


class Side:
    """One of the two brokers: a channel that acts, and one that looks."""

    def __init__(self, url):
        self.url = url
        self.connect()

    def connect(self):
        parameters = pika.URLParameters(self.url)
        parameters.heartbeat = 0
        self.connection = pika.BlockingConnection(parameters)
        self.looking = self.connection.channel()
        self.open_channel()

    def open_channel(self):
        self.channel = self.connection.channel()
        # A confirm says that the message is in its queues, so that what follows finds it.
        self.channel.confirm_delivery()
        self.held = []

    def act(self, act):
        """What comes of an act: an answer, or an error by its code and text."""
        try:
            return act(self)
        except ChannelClosedByBroker as closed:
            self.open_channel()
            return closed.reply_code, closed.reply_text
        except ConnectionClosedByBroker as closed:
            self.connect()
            return "connection", closed.reply_code, closed.reply_text
        except NackError:
            return "refused"
        except UnroutableError:
            return "returned"

    def counts(self, queues):
        """How many messages each queue has; None where there is no such queue."""
        found = []
        for queue in queues:
            try:
                found.append(self.looking.queue_declare(queue, passive=True).method.message_count)
            except ChannelClosedByBroker:
                self.looking = self.connection.channel()
                found.append(None)
        return found


class Acts:
    """Random acts on a few names, each with a text that tells what it is."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.queues = [f"compare.{seed}.q{number}" for number in range(4)]
        self.exchanges = [f"compare.{seed}.x{number}" for number in range(3)]

    def next(self):
        acts = {
            self.declare_queue: 10,
            self.declare_exchange: 6,
            self.bind: 10,
            self.unbind: 3,
            self.bind_exchange: 4,
            self.unbind_exchange: 1,
            self.publish: 26,
            self.get: 18,
            self.settle: 15,
            self.purge: 2,
            self.delete_queue: 2,
            self.delete_exchange: 1,
            self.recover: 1,
            self.reopen: 1,
        }
        return self.random.choices(list(acts), list(acts.values()))[0]()

    def queue(self):
        return self.random.choice(self.queues)

    def exchange(self):
        return self.random.choice(self.exchanges + BUILT_IN)

    def key(self):
        return self.random.choice(KEYS)

    def chance(self, share):
        return self.random.random() < share

    def some(self, **choices):
        """Some of these, each with the share and one of the values given."""
        return {
            key.replace("_", "-"): self.random.choice(values)
            for key, (share, values) in choices.items()
            if self.chance(share)
        }

    def declare_queue(self):
        queue, durable, auto_delete = self.queue(), self.chance(0.7), self.chance(0.1)
        arguments = self.some(
            x_max_length=(0.3, [0, 1, 2, 3]),
            x_overflow=(0.2, ["drop-head", "reject-publish", "reject-publish-dlx", "nonsense"]),
            x_dead_letter_exchange=(0.4, ["", self.exchanges[0], "nowhere"]),
            x_dead_letter_routing_key=(0.3, [*self.queues, "a.b"]),
            x_max_priority=(0.2, [0, 1, 5, 300]),
            x_message_ttl=(0.1, [0, 100_000, -1]),
            x_single_active_consumer=(0.05, [True]),
        )
        return f"declare queue {queue} {durable=} {auto_delete=} {arguments}", lambda side: (
            side.channel.queue_declare(
                queue, durable=durable, auto_delete=auto_delete, arguments=arguments
            ).method.message_count
        )

    def declare_exchange(self):
        exchange, kind = self.exchange(), self.random.choice(["direct", "topic", "fanout", "headers"])
        internal = self.chance(0.1)
        arguments = self.some(alternate_exchange=(0.3, self.exchanges))
        return f"declare exchange {exchange} {kind} {internal=} {arguments}", lambda side: (
            side.channel.exchange_declare(exchange, kind, internal=internal, arguments=arguments).method.NAME
        )

    def binding_arguments(self):
        return self.random.choice(
            [None, {"x-match": "any", "h": 1}, {"x-match": "all", "h": 1, "s": "t"}, {"h": 2}, {"x-match": "bad"}]
        )

    def bind(self):
        queue, exchange, key, arguments = self.queue(), self.exchange(), self.key(), self.binding_arguments()
        return f"bind {queue} to {exchange} by '{key}' {arguments}", lambda side: (
            side.channel.queue_bind(queue, exchange, key, arguments=arguments).method.NAME
        )

    def unbind(self):
        queue, exchange, key, arguments = self.queue(), self.exchange(), self.key(), self.binding_arguments()
        return f"unbind {queue} from {exchange} by '{key}' {arguments}", lambda side: (
            side.channel.queue_unbind(queue, exchange, key, arguments=arguments).method.NAME
        )

    def bind_exchange(self):
        to, exchange, key = self.exchange(), self.exchange(), self.key()
        return f"bind exchange {to} to {exchange} by '{key}'", lambda side: (
            side.channel.exchange_bind(to, exchange, key).method.NAME
        )

    def unbind_exchange(self):
        to, exchange, key = self.exchange(), self.exchange(), self.key()
        return f"unbind exchange {to} from {exchange} by '{key}'", lambda side: (
            side.channel.exchange_unbind(to, exchange, key).method.NAME
        )

    def publish(self):
        exchange, key = self.exchange(), self.random.choice(KEYS + self.queues)
        body, mandatory = str(self.random.randrange(1_000_000)), self.chance(0.5)
        properties = self.some(
            priority=(0.4, [0, 1, 3, 9]),
            expiration=(0.1, ["100000", "bad", "-5"]),
            headers=(
                0.5,
                [
                    {"h": 1},
                    {"h": 1, "s": "t"},
                    {"h": 2, "x": None},
                    {"CC": ["a"]},
                    {"CC": [self.queues[0]]},
                    {"CC": "bad"},
                ],
            ),
        )
        return f"publish {body} to '{exchange}' by '{key}' {mandatory=} {properties}", lambda side: (
            side.channel.basic_publish(
                exchange, key, body, pika.BasicProperties(**properties), mandatory=mandatory
            )
        )

    def get(self):
        queue, auto_ack = self.queue(), self.chance(0.4)

        def get(side):
            method, properties, body = side.channel.basic_get(queue, auto_ack=auto_ack)
            if method is None:
                return None
            if not auto_ack:
                side.held.append(method.delivery_tag)
            return body, method.redelivered, method.exchange, method.routing_key, told(properties)

        return f"get from {queue} {auto_ack=}", get

    def settle(self):
        place, how = self.random.random(), self.random.choice(["ack", "nack", "reject"])
        multiple, requeue = self.chance(0.3) and how != "reject", self.chance(0.6)

        def settle(side):
            if not side.held:
                return "nothing to settle"
            tag = side.held[int(place * len(side.held))]
            side.held = [held for held in side.held if (held > tag if multiple else held != tag)]
            if how == "ack":
                side.channel.basic_ack(tag, multiple=multiple)
            elif how == "nack":
                side.channel.basic_nack(tag, multiple=multiple, requeue=requeue)
            else:
                side.channel.basic_reject(tag, requeue=requeue)
            # Read by the broker before anything else is.
            side.channel.basic_qos()
            return tag, len(side.held)

        return f"{how} {multiple=} {requeue=}", settle

    def purge(self):
        queue = self.queue()
        return f"purge {queue}", lambda side: side.channel.queue_purge(queue).method.message_count

    def delete_queue(self):
        queue, if_unused, if_empty = self.queue(), self.chance(0.5), self.chance(0.5)
        return f"delete queue {queue} {if_unused=} {if_empty=}", lambda side: (
            side.channel.queue_delete(queue, if_unused=if_unused, if_empty=if_empty).method.message_count
        )

    def delete_exchange(self):
        exchange, if_unused = self.exchange(), self.chance(0.5)
        return f"delete exchange {exchange} {if_unused=}", lambda side: (
            side.channel.exchange_delete(exchange, if_unused=if_unused).method.NAME
        )

    def recover(self):
        def recover(side):
            side.held = []
            side.channel.basic_recover(requeue=True)

        return "recover", recover

    def reopen(self):
        def reopen(side):
            side.channel.close()
            side.open_channel()

        return "close the channel and open another", reopen


def told(properties):
    """The properties that are set, without the time of a death and in a fixed order."""
    found = {key: value for key, value in vars(properties).items() if value is not None}
    headers = dict(found.get("headers") or {})
    if isinstance(headers.get("x-death"), list):
        headers["x-death"] = [
            sorted((key, value) for key, value in death.items() if key != "time")
            for death in headers["x-death"]
        ]
    found["headers"] = sorted(headers.items())
    return sorted(found.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_both_answer_the_same(seed):
    sides = [Side(os.environ[variable]) for variable in ("AMQP_REFERENCE_URL", "AMQP_URL")]
    acts, history = Acts(seed), []
    clean(sides, acts)
    try:
        for number in range(ACTS):
            text, act = acts.next()
            right, judged = (side.act(act) for side in sides)
            history.append(f"{number}: {text}: {right}")
            assert judged == right, "\n".join(history[-30:])
            assert agree(sides, acts.queues), "\n".join(history[-30:])
    finally:
        clean(sides, acts)


def agree(sides, queues, timeout=10):
    """Whether both come to have the same number of messages in every queue."""
    end = time.monotonic() + timeout
    while True:
        right, judged = (side.counts(queues) for side in sides)
        if right == judged:
            return True
        if time.monotonic() > end:
            print(f"queues hold {judged} messages, and should hold {right}")
            return False
        time.sleep(0.02)


def clean(sides, acts):
    for side in sides:
        side.open_channel()
        for queue in acts.queues:
            side.channel.queue_delete(queue)
        for exchange in acts.exchanges:
            side.channel.exchange_delete(exchange)
