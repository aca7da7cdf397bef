"""Consuming: deliveries, prefetch, get, cancelling, exclusive and prioritised consumers, fairness."""

import time

import pytest
from pika import spec
from words import (
    Inbox,
    assert_empty,
    bodies,
    channel_closes,
    consumers,
    depth,
    eventually,
    fetch,
    publish,
    round_trip,
)


def fill(channel, queue, count):
    """Publishes messages 0, 1, 2 …"""
    for number in range(count):
        publish(channel, queue, str(number))
    round_trip(channel)


def texts(count, start=0):
    return [str(number) for number in range(start, start + count)]


# Deliveries


def test_a_delivery_says_where_it_came_from(channel, queue):
    channel.queue_bind(queue, "amq.topic", "a.*")
    inbox = Inbox(channel, queue, consumer_tag="mine")
    publish(channel, "a.b", exchange="amq.topic")
    ((method, _, _),) = inbox.wait(1)
    assert (method.consumer_tag, method.delivery_tag) == ("mine", 1)
    assert (method.exchange, method.routing_key, method.redelivered) == ("amq.topic", "a.b", False)


def test_the_server_makes_a_consumer_tag(wire, queue):
    wire.open().open_channel()
    made = wire.call(1, spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk).consumer_tag
    assert made.startswith("amq.ctag-") and len(made) == len("amq.ctag-") + 22


def test_delivery_tags_count_over_all_consumers_and_gets_of_a_channel(channel, queue, name):
    other = name()
    channel.queue_declare(other, durable=True)
    fill(channel, queue, 2)
    fill(channel, other, 1)
    assert fetch(channel, other)[0].delivery_tag == 1
    inbox = Inbox(channel, queue)
    inbox.wait(2)
    assert inbox.tags == [2, 3]


def test_order_is_kept(channel, queue):
    inbox = Inbox(channel, queue, auto_ack=True)
    fill(channel, queue, 500)
    inbox.wait(500)
    assert inbox.bodies == texts(500)


def test_consumers_are_served_in_turn(channel, queue):
    inboxes = [Inbox(channel, queue, auto_ack=True) for _ in range(3)]
    fill(channel, queue, 30)
    for inbox in inboxes:
        inbox.wait(10)
    assert inboxes[0].bodies[:2] == ["0", "3"]


def test_consume_without_waiting(wire, channel, queue):
    fill(channel, queue, 1)
    wire.open().open_channel()
    wire.send_method(1, spec.Basic.Consume(queue=queue, consumer_tag="t", nowait=True))
    assert wire.expect(spec.Basic.Deliver).consumer_tag == "t"


def test_arguments_that_are_accepted_and_ignored(channel, queue):
    fill(channel, queue, 1)
    Inbox(channel, queue, arguments={"x-cancel-on-ha-failover": True, "x-other": "thing"}).wait(1)


def test_no_ack_settles_on_delivery(connection, channel, queue):
    other = connection.channel()
    inbox = Inbox(other, queue, auto_ack=True)
    fill(channel, queue, 3)
    inbox.wait(3)
    other.close()
    assert_empty(channel, queue)


def test_no_ack_ignores_prefetch(channel, queue):
    channel.basic_qos(prefetch_count=1)
    fill(channel, queue, 5)
    Inbox(channel, queue, auto_ack=True).wait(5)


def test_acking_a_no_ack_delivery_is_406(channel, queue):
    fill(channel, queue, 1)
    Inbox(channel, queue, auto_ack=True).wait(1)
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        channel.basic_ack(1)
        round_trip(channel)


# Prefetch


def test_prefetch_holds_back_until_acks(channel, queue):
    fill(channel, queue, 10)
    channel.basic_qos(prefetch_count=3)
    inbox = Inbox(channel, queue)
    inbox.wait(3)
    inbox.stays(3)
    channel.basic_ack(2)
    inbox.wait(4)
    inbox.stays(4, 0.1)
    channel.basic_ack(4, multiple=True)
    inbox.wait(7)
    assert inbox.bodies == texts(7)


def test_prefetch_is_per_consumer(channel, queue):
    fill(channel, queue, 10)
    channel.basic_qos(prefetch_count=2)
    one, two = Inbox(channel, queue), Inbox(channel, queue)
    one.wait(2)
    two.wait(2)
    one.stays(2, 0.2)
    two.stays(2, 0.1)


def test_prefetch_counts_for_consumers_started_later(channel, queue):
    fill(channel, queue, 10)
    channel.basic_qos(prefetch_count=1)
    one = Inbox(channel, queue)
    one.wait(1)
    channel.basic_qos(prefetch_count=4)
    two = Inbox(channel, queue)
    two.wait(4)
    one.stays(1, 0.2)


def test_global_prefetch_is_for_the_whole_channel(channel, queue):
    fill(channel, queue, 10)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    one, two = Inbox(channel, queue), Inbox(channel, queue)
    eventually(lambda: pump(channel) or len(one.messages) + len(two.messages) == 3)
    pump(channel, 0.3)
    assert len(one.messages) + len(two.messages) == 3
    channel.basic_ack(0, multiple=True)
    eventually(lambda: pump(channel) or len(one.messages) + len(two.messages) == 6)


def test_global_prefetch_goes_round_among_queues(channel, name):
    queues = [name() for _ in range(3)]
    channel.basic_qos(prefetch_count=1, global_qos=True)
    inboxes = []
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        fill(channel, queue, 100)
        inboxes.append(Inbox(channel, queue))
    for count in range(1, 91):
        eventually(lambda: pump(channel) or sum(len(inbox.messages) for inbox in inboxes) == count)
        channel.basic_ack(0, multiple=True)
    # RabbitMQ asks the queues from a random one on.
    assert all(len(inbox.messages) >= 10 for inbox in inboxes)


def test_a_consumer_without_acks_waits_while_global_prefetch_is_used_up(channel, name):
    acked, free = name(), name()
    channel.basic_qos(prefetch_count=1, global_qos=True)
    for queue in (acked, free):
        channel.queue_declare(queue, durable=True)
    inbox = Inbox(channel, acked)
    fill(channel, acked, 1)
    inbox.wait(1)
    other = Inbox(channel, free, auto_ack=True)
    fill(channel, free, 3)
    other.stays(0, 0.3)
    channel.basic_ack(inbox.tags[0])
    other.wait(3)


def test_global_prefetch_can_be_raised_and_lifted_on_the_way(channel, queue):
    # Celery raises its prefetch so for every task with an ETA.
    fill(channel, queue, 10)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    inbox = Inbox(channel, queue)
    inbox.wait(1)
    inbox.stays(1, 0.2)
    channel.basic_qos(prefetch_count=4, global_qos=True)
    inbox.wait(4)
    inbox.stays(4, 0.2)
    channel.basic_qos(prefetch_count=0, global_qos=True)
    inbox.wait(10)


def test_global_prefetch_can_be_lowered_below_what_is_held(channel, queue):
    fill(channel, queue, 20)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    inbox = Inbox(channel, queue)
    inbox.wait(5)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    for tag in inbox.tags[:3]:
        channel.basic_ack(tag)
    inbox.stays(5, 0.2)
    channel.basic_ack(inbox.tags[3])
    inbox.wait(6)
    inbox.stays(6, 0.2)


def test_global_prefetch_can_be_lowered_before_it_is_used(channel, queue):
    channel.basic_qos(prefetch_count=5, global_qos=True)
    inbox = Inbox(channel, queue)
    fill(channel, queue, 1)
    inbox.wait(1)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    fill(channel, queue, 10)
    inbox.wait(2)
    inbox.stays(2, 0.2)
    channel.basic_qos(prefetch_count=0, global_qos=True)
    inbox.wait(11)
    # Lifted, and set again with more held than it allows.
    channel.basic_qos(prefetch_count=3, global_qos=True)
    fill(channel, queue, 5)
    for tag in inbox.tags[:8]:
        channel.basic_ack(tag)
    inbox.stays(11, 0.2)
    channel.basic_ack(inbox.tags[8])
    inbox.wait(12)
    inbox.stays(12, 0.2)


@pytest.mark.parametrize("ending", ["cancelled", "its queue deleted"])
def test_global_prefetch_comes_back_from_a_consumer_that_is_gone(channel, name, ending):
    # Whatever was on its way to a consumer when that ended must not count for ever.
    channel.basic_qos(prefetch_count=3, global_qos=True)
    for _ in range(10):
        queue = name()
        channel.queue_declare(queue, durable=True)
        for number in range(5):
            publish(channel, queue, str(number))
        inbox = Inbox(channel, queue)
        if ending == "cancelled":
            channel.basic_cancel(inbox.tag)
        channel.queue_delete(queue)
        pump(channel)
        # A client gives back what reached it.
        channel.basic_nack(0, multiple=True, requeue=True)
    queue = name()
    channel.queue_declare(queue, durable=True)
    for number in range(5):
        publish(channel, queue, str(number))
    inbox = Inbox(channel, queue)
    inbox.wait(3)
    inbox.stays(3, 0.2)


def test_both_prefetches_hold(channel, queue):
    fill(channel, queue, 20)
    channel.basic_qos(prefetch_count=3)
    channel.basic_qos(prefetch_count=4, global_qos=True)
    one = Inbox(channel, queue)
    one.wait(3)
    two = Inbox(channel, queue)
    two.wait(1)
    pump(channel, 0.2)
    assert (len(one.messages), len(two.messages)) == (3, 1)


def test_get_is_not_held_back_by_prefetch(channel, queue):
    fill(channel, queue, 3)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    assert [fetch(channel, queue, auto_ack=False)[2] for _ in range(3)] == [b"0", b"1", b"2"]


def pump(channel, seconds=0.02):
    channel.connection.process_data_events(seconds)


# Get


def test_get_tells_how_many_are_left(channel, queue):
    fill(channel, queue, 3)
    for left in (2, 1, 0):
        method, _, _ = channel.basic_get(queue, auto_ack=True)
        assert method.message_count == left
    assert_empty(channel, queue)


def test_get_empty_has_an_empty_cluster_id(wire, queue):
    wire.open().open_channel()
    wire.send_method(1, spec.Basic.Get(queue=queue))
    assert wire.next_frame().payload == b"\0\x3c\0\x48\0"


def test_get_with_no_ack_settles(connection, channel, queue):
    fill(channel, queue, 1)
    channel.basic_get(queue, auto_ack=True)
    channel.close()
    assert_empty(connection.channel(), queue)


# Cancelling


def test_cancel_stops_deliveries_and_keeps_what_was_delivered(channel, queue):
    fill(channel, queue, 2)
    channel.basic_qos(prefetch_count=2)
    inbox = Inbox(channel, queue)
    inbox.wait(2)
    channel.basic_cancel(inbox.tag)
    assert consumers(channel, queue) == 0
    publish(channel, queue, "later")
    round_trip(channel)
    eventually(lambda: depth(channel, queue) == 1)
    channel.basic_ack(0, multiple=True)
    channel.close()


def test_cancelling_an_unknown_tag_is_fine(wire):
    wire.open().open_channel()
    assert (
        wire.call(1, spec.Basic.Cancel(consumer_tag="nobody"), spec.Basic.CancelOk).consumer_tag == "nobody"
    )


def test_a_cancelled_tag_can_be_used_again(channel, queue):
    for _ in range(2):
        inbox = Inbox(channel, queue, consumer_tag="again")
        channel.basic_cancel(inbox.tag)


def test_the_same_tag_on_two_channels(connection, queue):
    for _ in range(2):
        Inbox(connection.channel(), queue, consumer_tag="same")


def test_the_server_cancels_when_the_queue_goes(wire, channel, queue):
    wire.open(capabilities={"consumer_cancel_notify": True}).open_channel()
    wire.call(1, spec.Basic.Consume(queue=queue, consumer_tag="mine"), spec.Basic.ConsumeOk)
    channel.queue_delete(queue)
    cancel = wire.expect(spec.Basic.Cancel)
    assert (cancel.consumer_tag, cancel.nowait) == ("mine", True)
    wire.call(1, spec.Basic.Qos(), spec.Basic.QosOk)


def test_no_cancel_for_a_client_that_does_not_know_it(wire, channel, queue):
    wire.open().open_channel()
    wire.call(1, spec.Basic.Consume(queue=queue, consumer_tag="mine"), spec.Basic.ConsumeOk)
    channel.queue_delete(queue)
    with pytest.raises(TimeoutError):
        wire.next_frame(0.5)


def test_deleting_ones_own_queue_cancels_before_the_answer_or_after(channel, queue):
    told = []
    inbox = Inbox(channel, queue)
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    channel.queue_delete(queue)
    eventually(lambda: pump(channel) or told == [inbox.tag])


# Exclusive consumers


def test_an_exclusive_consumer_stays_alone(connection, queue):
    channel = connection.channel()
    only = Inbox(channel, queue, exclusive=True)
    refused = f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    for exclusive in (False, True):
        with channel_closes(403, refused):
            connection.channel().basic_consume(queue, print, exclusive=exclusive)
    channel.basic_cancel(only.tag)
    Inbox(channel, queue)


def test_exclusive_is_refused_where_others_consume(connection, queue):
    Inbox(connection.channel(), queue)
    with channel_closes(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        connection.channel().basic_consume(queue, print, exclusive=True)


def test_get_is_let_through_beside_an_exclusive_consumer(connection, channel, queue):
    other = connection.channel()
    other.basic_qos(prefetch_count=1)
    Inbox(other, queue, exclusive=True)
    fill(channel, queue, 2)
    assert fetch(channel, queue)[2] == b"1"


# Priorities of consumers


def test_the_higher_priority_is_served_while_it_has_room(channel, queue):
    channel.basic_qos(prefetch_count=2)
    low = Inbox(channel, queue)
    high = Inbox(channel, queue, arguments={"x-priority": 10})
    fill(channel, queue, 5)
    high.wait(2)
    low.wait(2)
    assert (high.bodies, low.bodies) == (["0", "1"], ["2", "3"])
    channel.basic_ack(high.tags[0])
    high.wait(3)
    low.stays(2, 0.1)


def test_a_priority_may_be_negative(channel, queue):
    low = Inbox(channel, queue, auto_ack=True, arguments={"x-priority": -5})
    normal = Inbox(channel, queue, auto_ack=True)
    fill(channel, queue, 3)
    normal.wait(3)
    low.stays(0, 0.1)


def test_a_priority_that_is_no_number_is_406(channel, queue):
    with channel_closes(
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{queue}' in vhost '/': "
        '"expected integer, got longstr"',
    ):
        channel.basic_consume(queue, print, arguments={"x-priority": "high"})


# Single active consumer


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_single_active_consumer_gets_all_until_it_goes(channel, connection, name, kind):
    queue = name()
    channel.queue_declare(
        queue, durable=True, arguments={"x-single-active-consumer": True, "x-queue-type": kind}
    )
    first, second = connection.channel(), connection.channel()
    active, waiting = Inbox(first, queue), Inbox(second, queue)
    fill(channel, queue, 4)
    active.wait(4)
    waiting.stays(0, 0.2)
    for tag in active.tags[:2]:
        first.basic_ack(tag)
    first.close()
    waiting.wait(2)
    assert waiting.bodies == ["2", "3"]
    assert all(method.redelivered for method, _, _ in waiting.messages)


def test_a_cancelled_active_consumer_hands_over_new_messages(channel, connection, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    first, second = connection.channel(), connection.channel()
    active, waiting = Inbox(first, queue), Inbox(second, queue)
    fill(channel, queue, 1)
    active.wait(1)
    first.basic_cancel(active.tag)
    publish(channel, queue, "next")
    waiting.wait(1)
    assert waiting.bodies == ["next"]
    assert depth(channel, queue) == 0


def test_single_active_consumer_does_not_mix_with_exclusive(channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    with channel_closes(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        channel.basic_consume(queue, print, exclusive=True)


# Consumers that take too long


@pytest.mark.nexo_only("the timeout is the broker's, not a queue's, before 3.12")
def test_a_consumer_that_holds_too_long_loses_its_channel(connection, channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-consumer-timeout": 1000})
    fill(channel, queue, 1)
    slow = connection.channel()
    inbox = Inbox(slow, queue)
    inbox.wait(1)
    text = (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {slow.channel_number} timed out. "
        "Timeout value used: 1000 ms. This timeout value can be configured, see consumers doc guide to learn more"
    )
    with channel_closes(406, text):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            round_trip(slow)
            time.sleep(0.1)
    method, _, _ = fetch(channel, queue)
    assert method.redelivered


# A consumer that does not read


def test_a_consumer_that_does_not_read_holds_up_nobody(wire, connection, channel, queue):
    wire.open().open_channel()
    wire.call(1, spec.Basic.Consume(queue=queue, consumer_tag="deaf", no_ack=True), spec.Basic.ConsumeOk)
    body = b"x" * 100_000
    for _ in range(300):
        publish(channel, queue, body)
    round_trip(channel)
    other = connection.channel()
    made = other.queue_declare("", exclusive=True).method.queue
    fill(other, made, 10)
    assert bodies(other, made, 10) == texts(10)
