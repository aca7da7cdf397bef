"""What needs a hand on the broker itself: alarms that block publishers, and a restart.

Commands that the environment names do it: AMQP_BLOCK_COMMAND raises an alarm, AMQP_UNBLOCK_COMMAND ends it,
AMQP_RESTART_COMMAND stops the broker, starts it again on the same data and returns when it is ready.
"""

import time

import pytest
from pika import spec
from wire import Wire
from words import assert_empty, bodies, channel_closes, publish, round_trip


def test_publishers_are_blocked_and_unblocked(url, queue, command):
    with Wire(url) as wire:
        wire.open(capabilities={"connection.blocked": True}).open_channel()
        command("AMQP_BLOCK_COMMAND")
        try:
            # RabbitMQ tells a connection when it publishes while the alarm is on.
            wire.send(wire.publish_bytes(1, "", queue, b"held back"))
            blocked = wire.expect(spec.Connection.Blocked, 10)
            assert blocked.reason in ("low on disk", "low on memory")
        finally:
            command("AMQP_UNBLOCK_COMMAND")
        wire.expect(spec.Connection.Unblocked, 10)
        wire.call(1, spec.Basic.Qos(), spec.Basic.QosOk)


def test_whoever_publishes_to_nowhere_is_blocked_too(url, name, command):
    with Wire(url) as wire:
        wire.open(capabilities={"connection.blocked": True}).open_channel()
        command("AMQP_BLOCK_COMMAND")
        try:
            wire.send(wire.publish_bytes(1, "", name("missing"), b"lost"))
            wire.expect(spec.Connection.Blocked, 10)
        finally:
            command("AMQP_UNBLOCK_COMMAND")
        wire.expect(spec.Connection.Unblocked, 10)


def test_consumers_are_served_while_publishers_are_blocked(connect, channel, queue, command):
    for number in range(3):
        publish(channel, queue, str(number))
    round_trip(channel)
    consumer = connect().channel()
    command("AMQP_BLOCK_COMMAND")
    try:
        assert bodies(consumer, queue, 3) == ["0", "1", "2"]
    finally:
        command("AMQP_UNBLOCK_COMMAND")


def test_a_commit_waits_while_publishers_are_blocked(url, channel, queue, command):
    with Wire(url) as wire:
        wire.open(capabilities={"connection.blocked": True}).open_channel()
        wire.call(1, spec.Tx.Select(), spec.Tx.SelectOk)
        command("AMQP_BLOCK_COMMAND")
        try:
            wire.send(wire.publish_bytes(1, "", queue, b"held back"))
            wire.send_method(1, spec.Tx.Commit())
            wire.expect(spec.Connection.Blocked, 10)
        finally:
            command("AMQP_UNBLOCK_COMMAND")
        # In either order.
        told = [wire.next_frame(10).method().NAME for _ in range(2)]
        assert sorted(told) == ["Connection.Unblocked", "Tx.CommitOk"]
    assert bodies(channel, queue, 1) == ["held back"]


@pytest.mark.timeout(90)
def test_what_survives_a_restart(connect, name, command):
    durable, transient, quorum, kept, lost = name("dq"), name("tq"), name("qq"), name("dx"), name("tx")
    channel = connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(durable, durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare(quorum, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare(transient)
    channel.exchange_declare(kept, "topic", durable=True)
    channel.exchange_declare(lost, "topic")
    channel.queue_bind(durable, kept, "a.*")
    channel.queue_bind(quorum, kept, "a.*")
    publish(channel, durable, "transient", delivery_mode=1)
    publish(channel, durable, "persistent", delivery_mode=2)
    publish(channel, durable, "urgent", delivery_mode=2, priority=3)
    publish(channel, quorum, "transient here too", delivery_mode=1)

    command("AMQP_RESTART_COMMAND")
    connection = wait_for(connect)

    channel = connection.channel()
    assert bodies(channel, durable, 2) == ["urgent", "persistent"]
    assert_empty(channel, durable)
    # A quorum queue writes everything down, whatever the delivery mode.
    assert bodies(channel, quorum, 1) == ["transient here too"]
    channel.queue_declare(durable, durable=True, arguments={"x-max-priority": 3})
    publish(channel, "a.b", "still bound", exchange=kept)
    assert bodies(channel, durable, 1) == ["still bound"]
    assert bodies(channel, quorum, 1) == ["still bound"]
    with channel_closes(404, f"NOT_FOUND - no queue '{transient}' in vhost '/'"):
        channel.queue_declare(transient, passive=True)
    with channel_closes(404, f"NOT_FOUND - no exchange '{lost}' in vhost '/'"):
        connection.channel().exchange_declare(lost, passive=True)


def wait_for(connect):
    """A connection, as soon as the broker takes one."""
    end = time.monotonic() + 30
    while True:
        try:
            return connect()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
