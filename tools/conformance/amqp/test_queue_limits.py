"""What a queue lets go of: message and queue TTL, lengths, what happens at the limit, and priorities."""

import time

import pytest
from pika.exceptions import NackError
from words import (
    Inbox,
    assert_empty,
    bodies,
    channel_closes,
    depth,
    eventually,
    everything,
    fetch,
    publish,
    round_trip,
)


@pytest.fixture
def declare(channel, name):
    """Declares a durable queue with these arguments."""

    def declare(**arguments):
        queue = name()
        spelled = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        channel.queue_declare(queue, durable=True, arguments=spelled)
        return queue

    return declare


# Time to live


def test_a_message_expires_after_the_queues_ttl(channel, declare):
    dead = declare()
    queue = declare(message_ttl=200, dead_letter_exchange="", dead_letter_routing_key=dead)
    publish(channel, queue)
    # It was there: else it could not have gone on.
    _, properties, _ = fetch(channel, dead)
    assert properties.headers["x-death"][0]["reason"] == "expired"
    assert depth(channel, queue) == 0


def test_a_message_expires_after_its_own_expiration(channel, queue):
    publish(channel, queue, "short", expiration="150")
    publish(channel, queue, "long", expiration="60000")
    publish(channel, queue, "for ever")
    eventually(lambda: depth(channel, queue) == 2)
    assert bodies(channel, queue, 2) == ["long", "for ever"]


@pytest.mark.parametrize(("ttl", "expiration"), [(150, "60000"), (60000, "150")])
def test_the_shorter_of_both_counts(channel, declare, ttl, expiration):
    queue = declare(message_ttl=ttl)
    publish(channel, queue, expiration=expiration)
    eventually(lambda: depth(channel, queue) == 0)


def test_a_ttl_of_zero_expires_unless_a_consumer_takes_it_at_once(channel, connection, declare):
    queue = declare(message_ttl=0)
    publish(channel, queue, "nobody is here")
    round_trip(channel)
    assert_empty(channel, queue)
    inbox = Inbox(connection.channel(), queue)
    publish(channel, queue, "somebody is here")
    inbox.wait(1)
    assert inbox.bodies == ["somebody is here"]


def test_a_delivered_message_does_not_expire_until_it_comes_back(channel, declare):
    queue = declare(message_ttl=200)
    # One who waits for it has it before it can expire.
    inbox = Inbox(channel, queue)
    publish(channel, queue)
    ((method, _, _),) = inbox.wait(1)
    channel.basic_cancel(inbox.tag)
    time.sleep(0.4)
    channel.basic_nack(method.delivery_tag, requeue=True)
    eventually(lambda: depth(channel, queue) == 0)
    assert_empty(channel, queue)


def test_the_expiration_property_is_delivered_as_it_came(channel, queue):
    publish(channel, queue, expiration="60000")
    assert fetch(channel, queue)[1].expiration == "60000"


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        ("abc", "no_integer"),
        ("-1", "{value_negative,-1}"),
        (str(1 << 40), "{value_too_large,1099511627776}"),
        ("10s", '{leftover_string,"s"}'),
        ("", "no_integer"),
    ],
)
def test_wrong_expiration_is_406(channel, queue, expiration, reason):
    with channel_closes(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}"):
        publish(channel, queue, expiration=expiration)
        round_trip(channel)


def test_an_unused_queue_expires(connection, name):
    queue = name()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-expires": 300})
    publish(channel, queue)
    with channel_closes(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        # To ask may keep it, so it is not asked for too soon.
        for _ in range(20):
            time.sleep(0.9)
            channel.queue_declare(queue, passive=True)


def test_a_consumer_keeps_a_queue_from_expiring(connection, name):
    queue = name()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-expires": 300})
    Inbox(channel, queue)
    time.sleep(0.9)
    assert depth(channel, queue) == 0


def test_get_and_redeclare_keep_a_queue_from_expiring(channel, name):
    # Together longer than the queue would last, each far shorter: a busy machine adds to it.
    queue, arguments = name(), {"x-expires": 2000}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for _ in range(3):
        time.sleep(0.3)
        channel.basic_get(queue, auto_ack=True)
        time.sleep(0.3)
        channel.queue_declare(queue, durable=True, arguments=arguments)
        time.sleep(0.3)
        channel.queue_declare(queue, passive=True)


# Length


def test_the_oldest_go_when_the_queue_is_full(channel, declare):
    queue = declare(max_length=3)
    for number in range(5):
        publish(channel, queue, str(number))
    round_trip(channel)
    eventually(lambda: depth(channel, queue) == 3)
    assert bodies(channel, queue, 3) == ["2", "3", "4"]


def test_length_counts_ready_messages_only(channel, declare):
    queue = declare(max_length=2)
    publish(channel, queue, "held")
    held, _, _ = fetch(channel, queue, auto_ack=False)
    for number in range(2):
        publish(channel, queue, str(number))
    round_trip(channel)
    eventually(lambda: depth(channel, queue) == 2)
    # Back at the head, it is the one too many.
    channel.basic_reject(held.delivery_tag, requeue=True)
    round_trip(channel)
    eventually(lambda: depth(channel, queue) == 2)
    assert bodies(channel, queue, 2) == ["0", "1"]


def test_a_length_of_zero_keeps_nothing(channel, declare):
    queue = declare(max_length=0)
    publish(channel, queue)
    round_trip(channel)
    assert_empty(channel, queue)


def test_length_in_bytes_counts_bodies(channel, declare):
    queue = declare(max_length_bytes=100)
    for letter in "abcd":
        publish(channel, queue, letter * 40, headers={"not": "counted" * 50})
    round_trip(channel)
    assert everything(channel, queue) == ["c" * 40, "d" * 40]


def test_both_lengths_hold(channel, declare):
    queue = declare(max_length=3, max_length_bytes=10)
    for body in ["aaaaaaaa", "bbbb", "cccc", "d", "e"]:
        publish(channel, queue, body)
    round_trip(channel)
    assert everything(channel, queue) == ["cccc", "d", "e"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_nacks_the_publisher(connection, channel, declare, overflow):
    queue = declare(max_length=2, overflow=overflow)
    confirming = connection.channel()
    confirming.confirm_delivery()
    publish(confirming, queue, "1")
    publish(confirming, queue, "2")
    with pytest.raises(NackError):
        publish(confirming, queue, "3")
    assert bodies(channel, queue, 1) == ["1"]
    publish(confirming, queue, "4")
    assert bodies(channel, queue, 2) == ["2", "4"]


def test_a_full_queue_drops_what_nobody_wants_confirmed(channel, declare):
    queue = declare(max_length=1, overflow="reject-publish")
    publish(channel, queue, "1")
    publish(channel, queue, "2")
    round_trip(channel)
    assert bodies(channel, queue, 1) == ["1"]
    assert_empty(channel, queue)


def test_one_full_queue_of_two_is_a_nack_and_the_other_keeps_its_copy(connection, channel, declare, name):
    full, roomy, exchange = declare(max_length=1, overflow="reject-publish"), declare(), name("x")
    channel.exchange_declare(exchange, "fanout")
    for queue in (full, roomy):
        channel.queue_bind(queue, exchange)
    channel.confirm_delivery()
    publish(channel, "", "1", exchange=exchange)
    with pytest.raises(NackError):
        publish(channel, "", "2", exchange=exchange)
    other = connection.channel()
    assert bodies(other, full, 1) == ["1"]
    assert bodies(other, roomy, 2) == ["1", "2"]


def test_rejected_publishes_are_dead_lettered_only_by_the_dlx_mode(channel, declare):
    dead = declare()
    for overflow, expected in [("reject-publish", 0), ("reject-publish-dlx", 1)]:
        queue = declare(
            max_length=1, overflow=overflow, dead_letter_exchange="", dead_letter_routing_key=dead
        )
        for number in range(2):
            publish(channel, queue, f"{overflow} {number}")
        round_trip(channel)
        time.sleep(0.1)
        eventually(lambda: depth(channel, dead) == expected)
    _, properties, body = fetch(channel, dead)
    assert body == b"reject-publish-dlx 1"
    assert properties.headers["x-death"][0]["reason"] == "maxlen"


def test_a_quorum_queue_drops_its_head_also_in_the_dlx_mode(connection, channel, declare):
    dead = declare()
    queue = declare(
        queue_type="quorum",
        max_length=2,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key=dead,
    )
    confirming = connection.channel()
    confirming.confirm_delivery()
    for number in range(4):
        publish(confirming, queue, str(number))
    eventually(lambda: depth(channel, dead) == 2)
    assert bodies(channel, dead, 2) == ["0", "1"]
    assert bodies(channel, queue, 2) == ["2", "3"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_delivery_limit_of_nothing_is_one_delivery(channel, declare, limit):
    queue = declare(queue_type="quorum", delivery_limit=limit)
    publish(channel, queue)
    method, _, _ = fetch(channel, queue, auto_ack=False)
    channel.basic_nack(method.delivery_tag, requeue=True)
    round_trip(channel)
    time.sleep(0.2)
    assert_empty(channel, queue)


# Priorities


def test_higher_priorities_first_and_in_order_within_one(channel, declare):
    queue = declare(max_priority=10)
    for number, priority in enumerate([1, 5, 5, 0, 10, 1]):
        publish(channel, queue, f"{priority}-{number}", priority=priority)
    round_trip(channel)
    assert bodies(channel, queue, 6) == ["10-4", "5-1", "5-2", "1-0", "1-5", "0-3"]


def test_no_priority_is_the_lowest_and_too_high_is_the_highest(channel, declare):
    queue = declare(max_priority=5)
    publish(channel, queue, "none")
    publish(channel, queue, "zero", priority=0)
    publish(channel, queue, "five", priority=5)
    publish(channel, queue, "200", priority=200)
    publish(channel, queue, "one", priority=1)
    round_trip(channel)
    assert bodies(channel, queue, 5) == ["five", "200", "one", "none", "zero"]


def test_the_priority_property_is_delivered_as_it_came(channel, declare):
    queue = declare(max_priority=5)
    publish(channel, queue, priority=200)
    assert fetch(channel, queue)[1].priority == 200


def test_a_requeued_message_keeps_its_place_among_its_priority(channel, declare):
    queue = declare(max_priority=5)
    for body, priority in [("low", 1), ("high 1", 5), ("high 2", 5)]:
        publish(channel, queue, body, priority=priority)
    round_trip(channel)
    method, _, body = fetch(channel, queue, auto_ack=False)
    assert body == b"high 1"
    channel.basic_nack(method.delivery_tag, requeue=True)
    assert bodies(channel, queue, 3) == ["high 1", "high 2", "low"]


def test_priority_means_nothing_without_max_priority(channel, queue):
    publish(channel, queue, "first", priority=0)
    publish(channel, queue, "second", priority=9)
    assert bodies(channel, queue, 2) == ["first", "second"]


def test_a_full_priority_queue_drops_from_its_head_the_highest(channel, declare):
    # The head is what would be delivered next, so the most urgent goes first; RabbitMQ documents it so.
    queue = declare(max_priority=5, max_length=2)
    for body, priority in [("high", 5), ("low", 1), ("middle", 3)]:
        publish(channel, queue, body, priority=priority)
    round_trip(channel)
    assert bodies(channel, queue, 2) == ["middle", "low"]


def test_all_255_priorities(channel, declare):
    queue = declare(max_priority=255)
    for priority in [0, 254, 17, 255, 128]:
        publish(channel, queue, str(priority), priority=priority)
    round_trip(channel)
    assert bodies(channel, queue, 5) == ["255", "254", "128", "17", "0"]
