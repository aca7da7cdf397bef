"""Dead lettering: why, where to, the headers that tell of it, and the cycles that are cut."""

import time
from datetime import datetime

import pytest
from pika import spec
from words import assert_empty, bodies, depth, eventually, fetch, publish, round_trip


@pytest.fixture
def pair(channel, name):
    """Makes a queue that dead-letters into another: (queue, dead)."""

    def pair(routing_key=True, dead_arguments=None, **arguments):
        queue, dead = name("q"), name("dead")
        channel.queue_declare(dead, durable=True, arguments=dead_arguments)
        spelled = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        spelled.setdefault("x-dead-letter-exchange", "")
        if routing_key:
            spelled["x-dead-letter-routing-key"] = dead
        channel.queue_declare(queue, durable=True, arguments=spelled)
        return queue, dead

    return pair


def reject(channel, queue):
    """Takes one message and rejects it."""
    method, _, _ = fetch(channel, queue, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)


def deaths(properties):
    """The x-death header with its times checked and taken out."""
    told = []
    for death in properties.headers["x-death"]:
        death = dict(death)
        when = death.pop("time")
        assert isinstance(when, datetime)
        told.append(death)
    return told


# Reasons


@pytest.mark.parametrize("how", ["reject", "nack", "nack multiple"])
def test_rejected(channel, pair, how):
    queue, dead = pair()
    publish(channel, queue, "bad", headers={"mine": 1}, message_id="id", delivery_mode=2)
    tag = fetch(channel, queue, auto_ack=False)[0].delivery_tag
    if how == "reject":
        channel.basic_reject(tag, requeue=False)
    else:
        channel.basic_nack(tag, multiple=how == "nack multiple", requeue=False)
    method, properties, body = fetch(channel, dead)
    assert (body, method.exchange, method.routing_key, method.redelivered) == (b"bad", "", dead, False)
    assert (properties.message_id, properties.delivery_mode) == ("id", 2)
    assert deaths(properties) == [
        {"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}
    ]
    rest = {key: value for key, value in properties.headers.items() if key != "x-death"}
    assert rest == {
        "mine": 1,
        "x-first-death-reason": "rejected",
        "x-first-death-queue": queue,
        "x-first-death-exchange": "",
    }


def test_expired_by_the_queues_ttl(channel, pair):
    queue, dead = pair(message_ttl=100)
    publish(channel, queue, "old")
    _, properties, _ = fetch(channel, dead)
    assert deaths(properties) == [
        {"count": 1, "reason": "expired", "queue": queue, "exchange": "", "routing-keys": [queue]}
    ]
    assert properties.headers["x-first-death-reason"] == "expired"


def test_expired_by_its_own_expiration_which_is_taken_off(channel, pair):
    queue, dead = pair()
    publish(channel, queue, "old", expiration="100")
    _, properties, _ = fetch(channel, dead)
    assert properties.expiration is None
    assert deaths(properties) == [
        {
            "count": 1,
            "reason": "expired",
            "queue": queue,
            "exchange": "",
            "routing-keys": [queue],
            "original-expiration": "100",
        }
    ]


def test_an_expiration_is_taken_off_for_any_reason(channel, pair):
    queue, dead = pair()
    publish(channel, queue, "bad", expiration="60000")
    reject(channel, queue)
    _, properties, _ = fetch(channel, dead)
    assert properties.expiration is None
    assert deaths(properties)[0]["original-expiration"] == "60000"


def test_over_the_length(channel, pair):
    queue, dead = pair(max_length=1)
    publish(channel, queue, "first")
    publish(channel, queue, "second")
    _, properties, body = fetch(channel, dead)
    assert body == b"first"
    assert deaths(properties) == [
        {"count": 1, "reason": "maxlen", "queue": queue, "exchange": "", "routing-keys": [queue]}
    ]


def test_over_the_length_in_bytes(channel, pair):
    queue, dead = pair(max_length_bytes=10)
    publish(channel, queue, "x" * 8)
    publish(channel, queue, "y" * 8)
    assert bodies(channel, dead, 1) == ["x" * 8]


def test_not_by_ack_purge_delete_or_expiry_of_the_queue(channel, pair):
    queue, dead = pair()
    for _ in range(3):
        publish(channel, queue)
    channel.basic_ack(fetch(channel, queue, auto_ack=False)[0].delivery_tag)
    channel.queue_purge(queue)
    publish(channel, queue)
    channel.queue_delete(queue)
    short, dead_too = pair(expires=200)
    publish(channel, short)
    time.sleep(0.6)
    assert depth(channel, dead) == 0
    assert depth(channel, dead_too) == 0


# Where to


def test_with_its_own_routing_key_when_the_queue_names_none(channel, name):
    exchange, queue, dead = name("dlx"), name("q"), name("dead")
    channel.exchange_declare(exchange, "direct")
    channel.queue_declare(dead, durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": exchange})
    channel.queue_bind(dead, exchange, queue)
    publish(channel, queue, "bad")
    reject(channel, queue)
    method, _, _ = fetch(channel, dead)
    assert (method.exchange, method.routing_key) == (exchange, queue)


def test_with_its_cc_keys_as_well_when_the_queue_names_none(channel, name):
    exchange, queue, dead = name("dlx"), name("q"), name("dead")
    channel.exchange_declare(exchange, "direct")
    channel.queue_declare(dead, durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": exchange})
    channel.queue_bind(dead, exchange, "copy")
    publish(channel, queue, "bad", headers={"CC": ["copy"], "BCC": ["blind"]})
    reject(channel, queue)
    _, properties, _ = fetch(channel, dead)
    # BCC was taken out when the message was routed, and is told of nowhere.
    assert deaths(properties)[0]["routing-keys"] == [queue, "copy"]
    assert properties.headers["CC"] == ["copy"]
    assert "BCC" not in properties.headers


def test_a_named_routing_key_takes_the_place_of_cc(channel, pair, name):
    queue, dead = pair()
    copy = name("copy")
    channel.queue_declare(copy, durable=True)
    publish(channel, queue, "bad", headers={"CC": [copy]})
    fetch(channel, copy)
    reject(channel, queue)
    _, properties, _ = fetch(channel, dead)
    assert "CC" not in properties.headers
    assert deaths(properties)[0]["routing-keys"] == [queue, copy]
    assert_empty(channel, copy)


def test_the_exchange_and_keys_told_are_those_it_was_published_with(channel, pair, name):
    queue, dead = pair()
    exchange = name("x")
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(queue, exchange, "a.*")
    publish(channel, "a.b", "bad", exchange=exchange)
    reject(channel, queue)
    _, properties, _ = fetch(channel, dead)
    assert (deaths(properties)[0]["exchange"], deaths(properties)[0]["routing-keys"]) == (exchange, ["a.b"])
    assert properties.headers["x-first-death-exchange"] == exchange


def test_a_missing_dead_letter_exchange_drops(channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": name("missing")})
    publish(channel, queue)
    reject(channel, queue)
    round_trip(channel)
    assert_empty(channel, queue)


def test_a_dead_letter_exchange_may_come_later(channel, name):
    queue, exchange, dead = name(), name("dlx"), name("dead")
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": exchange})
    channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(dead, durable=True)
    channel.queue_bind(dead, exchange)
    publish(channel, queue, "bad")
    reject(channel, queue)
    assert bodies(channel, dead, 1) == ["bad"]


@pytest.mark.parametrize("source_max", [None, 10])
def test_the_priority_is_that_of_the_property_as_far_as_the_new_queue_goes(channel, pair, source_max):
    arguments = {"max_priority": source_max} if source_max else {}
    queue, dead = pair(dead_arguments={"x-max-priority": 3}, **arguments)
    # One by one, so that they die in this order whatever their queue makes of priorities.
    for number, priority in enumerate([1, 7, 9, 2, 3]):
        publish(channel, queue, f"{number}-{priority}", priority=priority)
        reject(channel, queue)
        eventually(lambda: depth(channel, dead) == number + 1)
    assert bodies(channel, dead, 5) == ["1-7", "2-9", "4-3", "3-2", "0-1"]


def test_order_is_kept(channel, pair):
    queue, dead = pair(message_ttl=150)
    for number in range(20):
        publish(channel, queue, str(number))
    eventually(lambda: depth(channel, dead) == 20)
    assert bodies(channel, dead, 20) == [str(number) for number in range(20)]


# The header grows


def test_the_same_death_again_counts_up(channel, pair):
    queue, dead = pair()
    publish(channel, queue, "bad")
    for count in (1, 2, 3):
        reject(channel, queue)
        _, properties, body = fetch(channel, dead)
        assert [death["count"] for death in deaths(properties)] == [count]
        channel.basic_publish("", queue, body, properties)


def test_another_death_comes_first(channel, pair, name):
    second, dead = pair()
    first = name("first")
    channel.queue_declare(
        first,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second, "x-message-ttl": 50},
    )
    publish(channel, first, "twice")
    reject(channel, second)
    _, properties, _ = fetch(channel, dead)
    told = deaths(properties)
    assert [(death["queue"], death["reason"], death["count"]) for death in told] == [
        (second, "rejected", 1),
        (first, "expired", 1),
    ]
    assert told[0]["routing-keys"] == [second]
    assert properties.headers["x-first-death-queue"] == first
    assert properties.headers["x-first-death-reason"] == "expired"


def test_the_latest_death_moves_to_the_front(channel, name):
    one, two, dead = name("one"), name("two"), name("dead")
    for queue, target in [(one, two), (two, dead)]:
        channel.queue_declare(
            queue, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        )
    channel.queue_declare(dead, durable=True)
    publish(channel, one, "round")
    for _ in range(2):
        reject(channel, one)
        reject(channel, two)
        _, properties, body = fetch(channel, dead)
        channel.basic_publish("", one, body, properties)
    reject(channel, one)
    _, properties, _ = fetch(channel, two)
    assert [(death["queue"], death["count"]) for death in deaths(properties)] == [(one, 3), (two, 2)]


def test_other_reasons_in_one_queue_are_told_apart(channel, pair):
    queue, dead = pair()
    publish(channel, queue, "bad")
    reject(channel, queue)
    _, properties, body = fetch(channel, dead)
    properties.expiration = "50"
    channel.basic_publish("", queue, body, properties)
    _, properties, _ = fetch(channel, dead)
    assert [(death["reason"], death["count"]) for death in deaths(properties)] == [
        ("expired", 1),
        ("rejected", 1),
    ]


def test_the_layout_of_x_death_on_the_wire(wire, channel, pair):
    queue, dead = pair()
    publish(channel, queue, "bad")
    reject(channel, queue)
    eventually(lambda: depth(channel, dead) == 1)
    wire.open().open_channel()
    wire.call(1, spec.Basic.Get(queue=dead), spec.Basic.GetOk)
    raw, _, _ = wire.read_content()
    names = [b"count", b"reason", b"queue", b"time", b"exchange", b"routing-keys"]
    places = [raw.index(bytes([len(key)]) + key) for key in names]
    assert places == sorted(places)
    assert b"\x05countl\0\0\0\0\0\0\0\x01" in raw
    assert b"\x06reasonS\0\0\0\x08rejected" in raw
    assert b"\x04timeT" in raw
    assert b"\x07x-deathA" in raw
    assert b"\x0crouting-keysA" in raw


# Cycles


@pytest.mark.parametrize("told", ["text", [], [{"queue": "elsewhere", "reason": "rejected", "count": 5}]], ids=str)
def test_a_history_that_the_publisher_wrote_is_continued(channel, pair, told):
    queue, dead = pair()
    publish(channel, queue, headers={"x-death": told})
    reject(channel, queue)
    headers = fetch(channel, dead)[1].headers
    assert (headers["x-death"][0]["queue"], headers["x-death"][0]["count"]) == (queue, 1)
    assert headers["x-death"][1:] == (told if isinstance(told, list) else [])
    # The first death is told of only where nothing was known of any.
    assert not any(name.startswith("x-first-death") for name in headers)


def test_a_history_is_merged_by_queue_and_reason(channel, pair):
    queue, dead = pair()
    told = [
        {"queue": queue, "reason": "rejected"},
        {"queue": "b", "reason": "expired", "count": 7},
        {"queue": queue, "reason": "rejected"},
        {"queue": "b", "reason": "expired", "count": 3},
        {"queue": "b", "reason": "maxlen"},
    ]
    publish(channel, queue, headers={"x-death": told})
    reject(channel, queue)
    history = fetch(channel, dead)[1].headers["x-death"]
    assert [(death["queue"], death["reason"], death["count"]) for death in history] == [
        (queue, "rejected", 3),
        ("b", "maxlen", 1),
        ("b", "expired", 7),
    ]


def test_an_automatic_cycle_is_cut(channel, name):
    # Expired in a ring of queues without anyone rejecting it: dropped when it would enter a queue again.
    one, two = name("one"), name("two")
    for queue, target in [(one, two), (two, one)]:
        channel.queue_declare(
            queue,
            durable=True,
            arguments={
                "x-message-ttl": 50,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": target,
            },
        )
    publish(channel, one, "round and round")
    time.sleep(0.6)
    eventually(lambda: depth(channel, one) == depth(channel, two) == 0)


def test_a_queue_that_dead_letters_to_itself_by_expiry_drops(channel, name):
    queue = name()
    channel.queue_declare(
        queue,
        durable=True,
        arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue},
    )
    publish(channel, queue)
    time.sleep(0.4)
    eventually(lambda: depth(channel, queue) == 0)


def test_a_cycle_with_a_rejection_goes_on(channel, name):
    # The pattern of every retry with a delay: rejected to a queue whose messages expire back.
    work, wait = name("work"), name("wait")
    channel.queue_declare(
        work, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}
    )
    channel.queue_declare(
        wait,
        durable=True,
        arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work},
    )
    publish(channel, work, "retry")
    for _ in range(3):
        reject(channel, work)
    _, properties, _ = fetch(channel, work)
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths(properties)] == [
        (wait, "expired", 3),
        (work, "rejected", 3),
    ]
    assert properties.headers["x-first-death-queue"] == work


def test_a_queue_full_of_its_own_dead_letters_drops(channel, name):
    queue = name()
    channel.queue_declare(
        queue,
        durable=True,
        arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue},
    )
    for number in range(3):
        publish(channel, queue, str(number))
    round_trip(channel)
    time.sleep(0.1)
    eventually(lambda: depth(channel, queue) == 1)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_kinds_of_queue_tell_the_same(channel, pair, kind):
    queue, dead = pair(queue_type=kind)
    publish(channel, queue, "bad")
    reject(channel, queue)
    _, properties, _ = fetch(channel, dead)
    assert deaths(properties) == [
        {"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}
    ]
