"""Acknowledging: ack, nack and reject, one or many, what comes back, where, and in what order."""

import pytest
from pika import spec
from words import Inbox, assert_empty, bodies, channel_closes, depth, eventually, fetch, publish, round_trip


@pytest.fixture
def filled(channel, queue):
    """The queue with messages 0 to 5."""
    for number in range(6):
        publish(channel, queue, str(number))
    round_trip(channel)
    return queue


def take(channel, queue, count):
    """Takes messages without settling them; their tags."""
    return [fetch(channel, queue, auto_ack=False)[0].delivery_tag for _ in range(count)]


# Settling


def test_ack_one(connection, channel, filled):
    tags = take(channel, filled, 3)
    channel.basic_ack(tags[1])
    channel.close()
    assert bodies(connection.channel(), filled, 5) == ["0", "2", "3", "4", "5"]


def test_ack_multiple_takes_all_up_to_the_tag(connection, channel, filled):
    tags = take(channel, filled, 4)
    channel.basic_ack(tags[2], multiple=True)
    channel.close()
    assert bodies(connection.channel(), filled, 3) == ["3", "4", "5"]


def test_tag_zero_with_multiple_takes_all(connection, channel, filled):
    take(channel, filled, 4)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert bodies(connection.channel(), filled, 2) == ["4", "5"]


def test_tag_zero_with_multiple_and_nothing_held_is_fine(channel):
    channel.basic_ack(0, multiple=True)
    channel.basic_nack(0, multiple=True)
    round_trip(channel)


@pytest.mark.parametrize(
    "settle",
    [
        lambda channel: channel.basic_ack(77),
        lambda channel: channel.basic_ack(77, multiple=True),
        lambda channel: channel.basic_nack(77),
        lambda channel: channel.basic_nack(77, multiple=True),
        lambda channel: channel.basic_reject(77),
    ],
    ids=["ack", "ack multiple", "nack", "nack multiple", "reject"],
)
def test_an_unknown_tag_is_406(channel, filled, settle):
    take(channel, filled, 2)
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 77"):
        settle(channel)
        round_trip(channel)


def test_tag_zero_alone_is_406(channel, filled):
    take(channel, filled, 2)
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 0"):
        channel.basic_ack(0)
        round_trip(channel)


def test_settling_twice_is_406(channel, filled):
    (tag,) = take(channel, filled, 1)
    channel.basic_ack(tag)
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        channel.basic_ack(tag)
        round_trip(channel)


def test_multiple_up_to_a_settled_tag_is_406_although_older_ones_are_held(channel, filled):
    tags = take(channel, filled, 3)
    channel.basic_ack(tags[1])
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 2"):
        channel.basic_ack(tags[1], multiple=True)
        round_trip(channel)


def test_multiple_up_to_a_settled_tag_with_nothing_older_held_is_406(channel, filled):
    tags = take(channel, filled, 3)
    channel.basic_ack(tags[1], multiple=True)
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 2"):
        channel.basic_ack(tags[1], multiple=True)
        round_trip(channel)


def test_a_tag_belongs_to_its_channel(connection, channel, filled):
    (tag,) = take(channel, filled, 1)
    with channel_closes(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        other = connection.channel()
        other.basic_ack(tag)
        round_trip(other)


def test_an_unknown_tag_gives_everything_back(connection, channel, filled):
    take(channel, filled, 3)
    with pytest.raises(Exception):
        channel.basic_ack(77)
        round_trip(channel)
    other = connection.channel()
    eventually(lambda: depth(other, filled) == 6)


# Coming back


def test_nack_with_requeue_puts_a_message_back_in_its_place(channel, filled):
    tags = take(channel, filled, 3)
    channel.basic_nack(tags[1], requeue=True)
    method, _, body = fetch(channel, filled)
    assert (body, method.redelivered) == (b"1", True)
    assert fetch(channel, filled)[2] == b"3"


def test_all_put_back_out_of_order_come_in_their_first_order(channel, filled):
    tags = take(channel, filled, 4)
    for tag in (tags[2], tags[0], tags[3], tags[1]):
        channel.basic_reject(tag, requeue=True)
    assert bodies(channel, filled, 6) == ["0", "1", "2", "3", "4", "5"]


def test_nack_multiple_with_requeue(channel, filled):
    tags = take(channel, filled, 4)
    channel.basic_nack(tags[2], multiple=True, requeue=True)
    assert bodies(channel, filled, 5) == ["0", "1", "2", "4", "5"]


def test_nack_and_reject_without_requeue_drop(connection, channel, filled):
    tags = take(channel, filled, 4)
    channel.basic_nack(tags[0], requeue=False)
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_nack(0, multiple=True, requeue=False)
    round_trip(channel)
    channel.close()
    assert bodies(connection.channel(), filled, 2) == ["4", "5"]


def test_redelivered_is_set_only_on_what_was_delivered(channel, filled):
    tags = take(channel, filled, 2)
    channel.basic_nack(tags[1], multiple=True, requeue=True)
    flags = [fetch(channel, filled)[0].redelivered for _ in range(4)]
    assert flags == [True, True, False, False]


@pytest.mark.parametrize("how", ["channel", "connection"])
def test_what_was_held_comes_back_when_the_consumer_goes(connect, channel, filled, how):
    connection = connect()
    consumer = connection.channel()
    inbox = Inbox(consumer, filled)
    inbox.wait(6)
    consumer.basic_ack(inbox.tags[2])
    round_trip(consumer)
    if how == "channel":
        consumer.close()
    else:
        connection.close()
    eventually(lambda: depth(channel, filled) == 5)
    got = [fetch(channel, filled) for _ in range(5)]
    assert [body.decode() for _, _, body in got] == ["0", "1", "3", "4", "5"]
    assert all(method.redelivered for method, _, _ in got)


def test_what_was_sent_and_never_read_comes_back_too(wire, channel, filled):
    wire.open().open_channel()
    wire.call(1, spec.Basic.Consume(queue=filled), spec.Basic.ConsumeOk)
    wire.expect(spec.Basic.Deliver)
    wire.socket.close()
    eventually(lambda: depth(channel, filled) == 6)
    assert bodies(channel, filled, 6) == ["0", "1", "2", "3", "4", "5"]


def test_messages_coming_back_go_to_other_consumers_at_once(connection, channel, filled):
    holder, other = connection.channel(), connection.channel()
    Inbox(holder, filled).wait(6)
    waiting = Inbox(other, filled)
    waiting.stays(0, 0.1)
    holder.close()
    waiting.wait(6)
    assert waiting.bodies == ["0", "1", "2", "3", "4", "5"]


def test_a_requeued_message_may_come_to_the_same_consumer(channel, queue):
    inbox = Inbox(channel, queue)
    publish(channel, queue, "again")
    inbox.wait(1)
    channel.basic_nack(inbox.tags[0], requeue=True)
    inbox.wait(2)
    assert inbox.tags == [1, 2]
    assert [method.redelivered for method, _, _ in inbox.messages] == [False, True]


# Recover


def test_recover_sends_again_to_the_channels_consumers(channel, filled):
    inbox = Inbox(channel, filled)
    inbox.wait(6)
    channel.basic_ack(inbox.tags[0])
    channel.basic_recover(requeue=True)
    inbox.wait(11)
    assert inbox.bodies[6:] == ["1", "2", "3", "4", "5"]
    assert inbox.tags[6:] == [7, 8, 9, 10, 11]
    assert all(method.redelivered for method, _, _ in inbox.messages[6:])


def test_recover_puts_back_what_was_got(channel, filled):
    take(channel, filled, 3)
    channel.basic_recover(requeue=True)
    eventually(lambda: depth(channel, filled) == 6)
    with channel_closes(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        channel.basic_ack(1)
        round_trip(channel)


def test_recover_async_has_no_answer(wire, channel, filled):
    wire.open().open_channel()
    wire.call(1, spec.Basic.Get(queue=filled), spec.Basic.GetOk)
    wire.read_content()
    wire.send_method(1, spec.Basic.RecoverAsync(requeue=True))
    wire.call(1, spec.Basic.Qos(), spec.Basic.QosOk)
    eventually(lambda: depth(channel, filled) == 6)


# Quorum queues count deliveries


@pytest.fixture
def quorum(channel, name):
    """A quorum queue with a delivery limit of two and a dead-letter queue behind it."""
    queue, dead = name(), name("dead")
    channel.queue_declare(dead, durable=True)
    channel.queue_declare(
        queue,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    return queue, dead


@pytest.mark.parametrize("how", ["get", "consume"])
def test_x_delivery_count_tells_how_often_it_came_back(channel, quorum, how):
    queue, _ = quorum
    publish(channel, queue, headers={"mine": 1})
    seen = []
    inbox = Inbox(channel, queue) if how == "consume" else None
    for turn in range(3):
        if inbox:
            method, properties, _ = inbox.wait(turn + 1)[turn]
        else:
            method, properties, _ = fetch(channel, queue, auto_ack=False)
        seen.append((properties.headers, method.redelivered))
        channel.basic_nack(method.delivery_tag, requeue=True)
    first = {"get": {"x-delivery-count": 0}, "consume": {}}[how]
    assert seen == [
        ({"mine": 1, **first}, False),
        ({"mine": 1, "x-delivery-count": 1}, True),
        ({"mine": 1, "x-delivery-count": 2}, True),
    ]


def test_beyond_the_delivery_limit_it_is_dead_lettered(channel, quorum):
    queue, dead = quorum
    publish(channel, queue, "poison")
    for _ in range(3):
        method, _, _ = fetch(channel, queue, auto_ack=False)
        channel.basic_nack(method.delivery_tag, requeue=True)
    _, properties, body = fetch(channel, dead)
    assert body == b"poison"
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert properties.headers["x-first-death-reason"] == "delivery_limit"
    assert_empty(channel, queue)


def test_a_closed_channel_counts_towards_the_limit(connection, channel, quorum):
    queue, dead = quorum
    publish(channel, queue, "poison")
    for _ in range(3):
        consumer = connection.channel()
        Inbox(consumer, queue).wait(1)
        consumer.close()
    assert bodies(channel, dead, 1) == ["poison"]


def test_without_a_dead_letter_exchange_the_limit_drops(channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 0})
    publish(channel, queue)
    method, _, _ = fetch(channel, queue, auto_ack=False)
    channel.basic_nack(method.delivery_tag, requeue=True)
    round_trip(channel)
    eventually(lambda: depth(channel, queue) == 0)
    assert_empty(channel, queue)


def test_a_classic_queue_does_not_count(channel, queue):
    publish(channel, queue)
    for _ in range(3):
        method, properties, _ = fetch(channel, queue, auto_ack=False)
        assert properties.headers is None
        channel.basic_nack(method.delivery_tag, requeue=True)


def test_a_message_with_ttl_zero_that_is_requeued_has_expired(channel, queue):
    inbox = Inbox(channel, queue)
    publish(channel, queue, "now or never", expiration="0")
    inbox.wait(1)
    channel.basic_nack(inbox.tags[0], requeue=True)
    inbox.stays(1, 0.3)
    assert_empty(channel, queue)
