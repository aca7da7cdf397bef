"""What the tests say, in words: publish, fetch, wait for deliveries, expect an error."""

import time
from contextlib import contextmanager

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from wire import PATIENCE


def publish(channel, queue, body="hello", exchange="", **properties):
    """Publishes a message; `queue` is the routing key."""
    channel.basic_publish(exchange, queue, body, pika.BasicProperties(**properties))


def round_trip(channel):
    """Returns once the broker has read everything sent on this channel before."""
    channel.exchange_declare("amq.direct", passive=True)


def fetch(channel, queue, timeout=PATIENCE, auto_ack=True):
    """The next message of a queue, waiting for it: (method, properties, body)."""
    end = time.monotonic() + timeout
    while True:
        got = channel.basic_get(queue, auto_ack=auto_ack)
        if got[0] is not None:
            return got
        assert time.monotonic() < end, f"no message in queue '{queue}'"
        time.sleep(0.02)


def bodies(channel, queue, count, timeout=PATIENCE):
    """The bodies of the next messages of a queue, which are acknowledged."""
    return [fetch(channel, queue, timeout)[2].decode() for _ in range(count)]


def everything(channel, queue):
    """The bodies of all that is ready in a queue, which are acknowledged."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2].decode())
    return found


def depth(channel, queue):
    """How many messages are ready. RabbitMQ may answer before it has counted what was just published."""
    return channel.queue_declare(queue, passive=True).method.message_count


def consumers(channel, queue):
    """How many consumers a queue has."""
    return channel.queue_declare(queue, passive=True).method.consumer_count


def assert_empty(channel, queue):
    assert channel.basic_get(queue, auto_ack=True) == (None, None, None)


def eventually(check, timeout=PATIENCE):
    """Waits until this is true."""
    end = time.monotonic() + timeout
    while not (result := check()):
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.02)
    return result


class Inbox:
    """A consumer that keeps what it is sent."""

    def __init__(self, channel, queue, auto_ack=False, **options):
        self.channel = channel
        self.messages = []
        self.tag = channel.basic_consume(queue, self._take, auto_ack=auto_ack, **options)

    def _take(self, _channel, method, properties, body):
        self.messages.append((method, properties, body))

    @property
    def bodies(self):
        return [body.decode() for _, _, body in self.messages]

    @property
    def tags(self):
        return [method.delivery_tag for method, _, _ in self.messages]

    def wait(self, count, timeout=PATIENCE):
        """Waits until this many messages have come in all."""
        end = time.monotonic() + timeout
        while len(self.messages) < count:
            left = end - time.monotonic()
            assert left > 0, f"{len(self.messages)} of {count} messages came: {self.bodies}"
            self.channel.connection.process_data_events(min(left, 0.1))
        return self.messages

    def stays(self, count, seconds=0.3):
        """Nothing more comes within this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.channel.connection.process_data_events(left)
        assert len(self.messages) == count, self.bodies


@contextmanager
def channel_closes(code, text):
    """The body of the block makes the broker close the channel so."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


@contextmanager
def connection_closes(code, text):
    """The body of the block makes the broker close the connection so."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)
