"""Publisher confirms and transactions."""

import struct
import time

import pytest
from pika import spec
from words import assert_empty, bodies, channel_closes, depth, eventually, fetch, publish, round_trip


@pytest.fixture
def confirming(wire):
    """A bare connection with channel 1 in confirm mode."""
    wire.open().open_channel()
    wire.call(1, spec.Confirm.Select(), spec.Confirm.SelectOk)
    return wire


def settled(wire, count):
    """Reads acks and nacks until this many publishes are settled: [(tag, acked)], in the order they came."""
    told, open_tags = [], set(range(1, count + 1))
    while open_tags:
        method = wire.next_frame(10).method()
        acked = isinstance(method, spec.Basic.Ack)
        assert acked or isinstance(method, spec.Basic.Nack), method
        if method.multiple:
            tags = sorted(tag for tag in open_tags if tag <= method.delivery_tag)
        else:
            tags = [method.delivery_tag]
        assert set(tags) <= open_tags, "a publish was settled twice"
        open_tags -= set(tags)
        told += [(tag, acked) for tag in tags]
    return told


def test_tags_count_from_one_on_each_channel(confirming, queue):
    confirming.send(confirming.publish_bytes(1, "", queue, b"one"))
    assert confirming.expect(spec.Basic.Ack).delivery_tag == 1
    confirming.send(confirming.publish_bytes(1, "", queue, b"two"))
    assert confirming.expect(spec.Basic.Ack).delivery_tag == 2
    confirming.open_channel(2)
    confirming.call(2, spec.Confirm.Select(), spec.Confirm.SelectOk)
    confirming.send(confirming.publish_bytes(2, "", queue, b"one"))
    assert confirming.expect(spec.Basic.Ack).delivery_tag == 1


def test_counting_starts_with_select(wire, queue):
    wire.open().open_channel()
    wire.send(wire.publish_bytes(1, "", queue, b"before"))
    wire.call(1, spec.Confirm.Select(), spec.Confirm.SelectOk)
    wire.send(wire.publish_bytes(1, "", queue, b"after"))
    assert wire.expect(spec.Basic.Ack).delivery_tag == 1


def test_selecting_twice_changes_nothing(confirming, queue):
    confirming.send(confirming.publish_bytes(1, "", queue, b"one"))
    confirming.expect(spec.Basic.Ack)
    confirming.call(1, spec.Confirm.Select(), spec.Confirm.SelectOk)
    confirming.send(confirming.publish_bytes(1, "", queue, b"two"))
    assert confirming.expect(spec.Basic.Ack).delivery_tag == 2


@pytest.mark.parametrize("persistent", [True, False])
def test_every_one_of_many_is_confirmed_once(confirming, channel, queue, persistent):
    properties = struct.pack(">HB", 0x1000, 2 if persistent else 1)
    confirming.send(b"".join(confirming.publish_bytes(1, "", queue, b"x", properties) for _ in range(2000)))
    assert all(acked for _, acked in settled(confirming, 2000))
    eventually(lambda: depth(channel, queue) == 2000)


def test_many_at_once_are_confirmed_with_multiple(confirming, queue):
    confirming.send(
        b"".join(confirming.publish_bytes(1, "", queue, b"x", b"\x10\x00\x02") for _ in range(500))
    )
    acks = 0
    while True:
        ack = confirming.expect(spec.Basic.Ack, 10)
        acks += 1
        if ack.delivery_tag == 500:
            break
    assert acks < 500


def test_unroutable_is_confirmed(confirming):
    confirming.send(confirming.publish_bytes(1, "amq.direct", "nobody", b"x"))
    assert confirming.expect(spec.Basic.Ack).delivery_tag == 1


def test_a_full_queue_nacks_what_it_does_not_take(confirming, channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    confirming.send(b"".join(confirming.publish_bytes(1, "", queue, b"x") for _ in range(5)))
    told = dict(settled(confirming, 5))
    assert told == {1: True, 2: True, 3: True, 4: False, 5: False}
    eventually(lambda: depth(channel, queue) == 3)


def test_a_quorum_queue_confirms(confirming, channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    confirming.send(b"".join(confirming.publish_bytes(1, "", queue, b"x") for _ in range(200)))
    assert all(acked for _, acked in settled(confirming, 200))


def test_a_message_that_expires_at_once_is_confirmed(confirming, queue):
    confirming.send(confirming.publish_bytes(1, "", queue, b"x", b"\x01\x00\x010"))
    assert confirming.expect(spec.Basic.Ack).delivery_tag == 1


def test_select_without_waiting(wire, queue):
    wire.open().open_channel()
    wire.send_method(1, spec.Confirm.Select(nowait=True))
    wire.send(wire.publish_bytes(1, "", queue, b"x"))
    wire.expect(spec.Basic.Ack)


# Transactions


def test_nothing_is_seen_before_commit(connection, channel, queue):
    channel.tx_select()
    publish(channel, queue, "1")
    publish(channel, queue, "2")
    round_trip(channel)
    other = connection.channel()
    assert_empty(other, queue)
    channel.tx_commit()
    assert bodies(other, queue, 2) == ["1", "2"]


def test_rollback_forgets_publishes(connection, channel, queue):
    channel.tx_select()
    publish(channel, queue, "forgotten")
    channel.tx_rollback()
    publish(channel, queue, "kept")
    channel.tx_commit()
    other = connection.channel()
    assert bodies(other, queue, 1) == ["kept"]
    assert_empty(other, queue)


def test_acks_count_from_commit(connection, channel, queue):
    other = connection.channel()
    publish(other, queue, "message")
    channel.tx_select()
    method, _, _ = fetch(channel, queue, auto_ack=False)
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    # Rolled back, the message is held as before and can be settled again.
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    channel.close()
    assert_empty(other, queue)


def test_an_ack_that_was_not_committed_is_undone_by_closing(connection, channel, queue):
    other = connection.channel()
    publish(other, queue, "message")
    channel.tx_select()
    method, _, _ = fetch(channel, queue, auto_ack=False)
    channel.basic_ack(method.delivery_tag)
    channel.close()
    method, _, _ = fetch(other, queue)
    assert method.redelivered


def test_a_reject_counts_from_commit(connection, channel, queue):
    other = connection.channel()
    publish(other, queue, "message")
    channel.tx_select()
    method, _, _ = fetch(channel, queue, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=True)
    round_trip(channel)
    time.sleep(0.05)
    assert_empty(other, queue)
    channel.tx_commit()
    assert bodies(other, queue, 1) == ["message"]


def test_a_commit_fails_if_a_queue_refuses(connection, channel, queue):
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.tx_select()
    for body in ["1", "2"]:
        publish(channel, queue, body)
    with channel_closes(406, "PRECONDITION_FAILED - partial tx completion"):
        channel.tx_commit()
    eventually(lambda: depth(connection.channel(), queue) == 1)


def test_closing_the_channel_rolls_back(connection, channel, queue):
    channel.tx_select()
    publish(channel, queue, "forgotten")
    channel.close()
    other = connection.channel()
    round_trip(other)
    assert_empty(other, queue)


def test_select_may_be_repeated(channel, queue):
    channel.tx_select()
    publish(channel, queue, "1")
    channel.tx_select()
    channel.tx_commit()
    eventually(lambda: depth(channel, queue) == 1)


@pytest.mark.parametrize("operation", ["tx_commit", "tx_rollback"])
def test_commit_and_rollback_need_select(channel, operation):
    with channel_closes(406, "PRECONDITION_FAILED - channel is not transactional"):
        getattr(channel, operation)()


def test_a_channel_is_not_both(connection):
    channel = connection.channel()
    channel.tx_select()
    with channel_closes(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        channel.confirm_delivery()
    channel = connection.channel()
    channel.confirm_delivery()
    with channel_closes(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        channel.tx_select()


def test_mandatory_returns_at_commit(wire):
    wire.open().open_channel()
    wire.call(1, spec.Tx.Select(), spec.Tx.SelectOk)
    wire.send_method(1, spec.Basic.Publish(exchange="amq.direct", routing_key="nobody", mandatory=True))
    wire.send_frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0))
    wire.send_method(1, spec.Tx.Commit())
    wire.expect(spec.Basic.Return)
    wire.read_content()
    wire.expect(spec.Tx.CommitOk)
