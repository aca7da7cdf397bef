"""Exchanges: declaring, deleting, the types and how each routes, alternates, and the names that are taken."""

import time

import pytest
from pika import spec
from words import (
    assert_empty,
    bodies,
    channel_closes,
    connection_closes,
    depth,
    eventually,
    everything,
    fetch,
    publish,
    round_trip,
)

DEFAULT_REFUSED = "ACCESS_REFUSED - operation not permitted on the default exchange"


# Declaring


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize("durable", [True, False])
def test_declaring_twice_the_same_is_fine(channel, name, kind, durable):
    exchange = name("x")
    for _ in range(2):
        channel.exchange_declare(exchange, kind, durable=durable)
    channel.exchange_declare(exchange, passive=True)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"exchange_type": "fanout"}, "'type' for {x}: received 'fanout' but current is 'direct'"),
        ({}, {"durable": True}, "'durable' for {x}: received 'true' but current is 'false'"),
        ({}, {"auto_delete": True}, "'auto_delete' for {x}: received 'true' but current is 'false'"),
        ({}, {"internal": True}, "'internal' for {x}: received 'true' but current is 'false'"),
        (
            {"arguments": {"alternate-exchange": "a"}},
            {"arguments": {"alternate-exchange": "b"}},
            "'alternate-exchange' for {x}: received 'b' but current is 'a'",
        ),
        (
            {},
            {"arguments": {"alternate-exchange": "b"}},
            "'alternate-exchange' for {x}: received the value 'b' of type 'longstr' but current is none",
        ),
        (
            {"arguments": {"alternate-exchange": "a"}},
            {},
            "'alternate-exchange' for {x}: received none but current is the value 'a' of type 'longstr'",
        ),
    ],
    ids=["type", "durable", "auto-delete", "internal", "alternate", "alternate new", "alternate gone"],
)
def test_redeclaring_with_other_properties_is_406(channel, name, first, second, text):
    exchange = name("x")
    channel.exchange_declare(exchange, **{"exchange_type": "direct", **first})
    text = text.format(x=f"exchange '{exchange}' in vhost '/'")
    with channel_closes(406, f"PRECONDITION_FAILED - inequivalent arg {text}"):
        channel.exchange_declare(exchange, **{"exchange_type": "direct", **second})


def test_unknown_arguments_are_kept_out_of_the_comparison(channel, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct", arguments={"mine": 1})
    channel.exchange_declare(exchange, "direct", arguments={"mine": 2})


def test_unknown_type_closes_the_connection_with_503(channel, name):
    with connection_closes(503, "COMMAND_INVALID - unknown exchange type 'nonsense'"):
        channel.exchange_declare(name("x"), "nonsense")


def test_passive_declare_of_what_is_not_there_is_404(channel, name):
    exchange = name("x")
    with channel_closes(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        channel.exchange_declare(exchange, passive=True)


def test_passive_declare_does_not_compare(channel, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.exchange_declare(exchange, "fanout", passive=True)


def test_alternate_exchange_of_another_type_is_406(channel, name):
    exchange = name("x")
    with channel_closes(
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' "
        f"in exchange '{exchange}' in vhost '/'",
    ):
        channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": 5})


# Names that are taken


@pytest.mark.parametrize(
    ("exchange", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_exchanges_that_are_always_there(channel, exchange, kind):
    channel.exchange_declare(exchange, kind, durable=True)


def test_reserved_name_is_403(channel):
    with channel_closes(403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.exchange_declare("amq.mine", "direct")


def test_built_in_exchange_with_another_type_is_406(channel):
    with channel_closes(
        406,
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': "
        "received 'fanout' but current is 'direct'",
    ):
        channel.exchange_declare("amq.direct", "fanout", durable=True)


def test_built_in_exchange_cannot_be_deleted(channel):
    with channel_closes(
        403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"
    ):
        channel.exchange_delete("amq.direct")


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel, queue: channel.exchange_declare("", "direct", durable=True),
        lambda channel, queue: channel.exchange_declare("", passive=True),
        lambda channel, queue: channel.exchange_delete(""),
        lambda channel, queue: channel.queue_bind(queue, "", "key"),
        lambda channel, queue: channel.queue_unbind(queue, "", queue),
        lambda channel, queue: channel.exchange_bind("amq.direct", "", "key"),
        lambda channel, queue: channel.exchange_bind("", "amq.direct", "key"),
        lambda channel, queue: channel.exchange_unbind("amq.direct", "", "key"),
    ],
    ids=["declare", "passive", "delete", "bind", "unbind", "bind from", "bind to", "unbind from"],
)
def test_the_default_exchange_is_not_to_be_touched(channel, queue, operation):
    with channel_closes(403, DEFAULT_REFUSED):
        operation(channel, queue)


# Deleting


def test_deleting_what_is_not_there_is_fine(channel, name):
    channel.exchange_delete(name("x"))
    channel.exchange_delete(name("x"), if_unused=True)


def test_if_unused_refuses_while_bound(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "key")
    with channel_closes(406, f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use"):
        channel.exchange_delete(exchange, if_unused=True)


def test_if_unused_deletes_when_nothing_is_bound(channel, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    channel.exchange_delete(exchange, if_unused=True)
    with channel_closes(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        channel.exchange_declare(exchange, passive=True)


def test_auto_delete_exchange_goes_with_its_last_binding(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    channel.exchange_declare(exchange, passive=True)
    channel.queue_bind(queue, exchange, "one")
    channel.queue_bind(queue, exchange, "two")
    channel.queue_unbind(queue, exchange, "one")
    channel.exchange_declare(exchange, passive=True)
    channel.queue_unbind(queue, exchange, "two")
    with channel_closes(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        channel.exchange_declare(exchange, passive=True)


def test_auto_delete_exchange_goes_with_its_last_queue(channel, name):
    exchange, queue = name("x"), name("q")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange)
    channel.queue_delete(queue)
    with channel_closes(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        channel.exchange_declare(exchange, passive=True)


# Publishing to an exchange


def test_publish_to_a_missing_exchange_is_404(channel, name):
    exchange = name("x")
    with channel_closes(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        publish(channel, "key", exchange=exchange)
        round_trip(channel)


def test_publish_to_an_internal_exchange_is_403(channel, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct", internal=True)
    with channel_closes(
        403, f"ACCESS_REFUSED - cannot publish to internal exchange '{exchange}' in vhost '/'"
    ):
        publish(channel, "key", exchange=exchange)
        round_trip(channel)


def test_the_default_exchange_routes_by_queue_name(channel, queue):
    publish(channel, queue, "here")
    method, _, body = fetch(channel, queue)
    assert (method.exchange, method.routing_key, body) == ("", queue, b"here")


def test_direct_routes_by_equal_key(channel, name):
    exchange, one, two, both = name("x"), name("one"), name("two"), name("both")
    channel.exchange_declare(exchange, "direct")
    for queue, keys in [(one, ["1"]), (two, ["2"]), (both, ["1", "2"])]:
        channel.queue_declare(queue, durable=True)
        for key in keys:
            channel.queue_bind(queue, exchange, key)
    for key in ["1", "2", "3", ""]:
        publish(channel, key, f"to {key}", exchange=exchange)
    assert bodies(channel, one, 1) == ["to 1"]
    assert bodies(channel, two, 1) == ["to 2"]
    assert bodies(channel, both, 2) == ["to 1", "to 2"]
    for queue in (one, two, both):
        assert_empty(channel, queue)


def test_fanout_ignores_the_key(channel, name):
    exchange, queues = name("x"), [name("q") for _ in range(3)]
    channel.exchange_declare(exchange, "fanout")
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, f"key of {queue}")
    publish(channel, "whatever", "all", exchange=exchange)
    for queue in queues:
        method, _, body = fetch(channel, queue)
        assert (body, method.exchange, method.routing_key) == (b"all", exchange, "whatever")


def test_a_queue_bound_twice_gets_one_copy(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(queue, exchange, "a.*")
    channel.queue_bind(queue, exchange, "*.b")
    channel.queue_bind(queue, exchange, "#")
    publish(channel, "a.b", "once", exchange=exchange)
    assert bodies(channel, queue, 1) == ["once"]
    assert_empty(channel, queue)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "b.a", ""]),
        ("*", ["a"], ["", "a.b", "a."]),
        ("#", ["", "a", "a.b", "a.b.c", "..", "a..b"], []),
        ("a.*", ["a.b", "a."], ["a", "a.b.c", "b.a"]),
        ("*.b", ["a.b", ".b"], ["b", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["b", "b.a", "ab"]),
        ("#.b", ["b", "a.b", "a.a.b"], ["b.a", "a", ""]),
        ("a.#.b", ["a.b", "a.c.b", "a.c.d.b", "a..b"], ["a", "b", "a.c"]),
        ("a.*.#", ["a.b", "a.b.c"], ["a", "b.a"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.*", ["a.b", "."], ["a", "a.b.c", ""]),
        ("#.a.#", ["a", "b.a", "a.b", "b.a.b", "a.a"], ["b", ""]),
        ("a.#.*.b", ["a.c.b", "a.c.d.b"], ["a.b", "a.c"]),
        ("", [""], ["a", "."]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a..b", ["a..b"], ["a.b", "a.c.b"]),
    ],
)
def test_topic_patterns(channel, queue, name, pattern, matching, other):
    exchange = name("x")
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(queue, exchange, pattern)
    for key in matching + other:
        publish(channel, key, f"[{key}]", exchange=exchange)
    round_trip(channel)
    assert everything(channel, queue) == [f"[{key}]" for key in matching]


def test_topic_patterns_together_and_after_unbinding(channel, name):
    exchange, one, two = name("x"), name("one"), name("two")
    channel.exchange_declare(exchange, "topic")
    for queue in (one, two):
        channel.queue_declare(queue, durable=True)
    channel.queue_bind(one, exchange, "stock.*.nyse")
    channel.queue_bind(two, exchange, "stock.#")
    publish(channel, "stock.ibm.nyse", "1", exchange=exchange)
    channel.queue_unbind(one, exchange, "stock.*.nyse")
    publish(channel, "stock.sun.nyse", "2", exchange=exchange)
    channel.queue_bind(one, exchange, "stock.sun.*")
    publish(channel, "stock.sun.nyse", "3", exchange=exchange)
    assert bodies(channel, one, 2) == ["1", "3"]
    assert bodies(channel, two, 3) == ["1", "2", "3"]


def test_ten_thousand_topic_bindings_stay_fast(connect, name):
    # Bound without waiting for each answer; the time asked for is that of matching.
    connection = connect()
    channel = connection.channel()
    exchange, queue = name("x"), name("q")
    channel.exchange_declare(exchange, "topic")
    channel.queue_declare(queue, durable=True)
    for number in range(10_000):
        pattern = [f"a.{number}.*", f"*.b.{number}", f"{number}.#", f"#.{number}.c"][number % 4]
        channel._impl._send_method(
            spec.Queue.Bind(queue=queue, exchange=exchange, routing_key=pattern, nowait=True, arguments={})
        )
        if number % 500 == 0:
            round_trip(channel)
    round_trip(channel)
    channel.confirm_delivery()

    def seconds(keys, **to):
        began = time.monotonic()
        for key in keys:
            publish(channel, key, **to)
        return time.monotonic() - began

    # What the machine takes without any of them is no matter of the bindings.
    plain = seconds([queue] * 100)
    took = seconds([f"a.{number}.x" for number in range(0, 400, 4)], exchange=exchange)
    eventually(lambda: depth(channel, queue) == 200)
    assert took < 5 + 10 * plain, f"100 confirmed publishes over 10,000 bindings took {took:.1f} s, not {plain:.1f} s"
    channel.exchange_delete(exchange)


# Alternate exchanges


def test_what_is_not_routed_goes_to_the_alternate(channel, name):
    exchange, alternate, here, there = name("x"), name("alt"), name("here"), name("there")
    channel.exchange_declare(alternate, "fanout")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    for queue in (here, there):
        channel.queue_declare(queue, durable=True)
    channel.queue_bind(here, exchange, "known")
    channel.queue_bind(there, alternate)
    publish(channel, "known", "1", exchange=exchange)
    publish(channel, "unknown", "2", exchange=exchange)
    assert bodies(channel, here, 1) == ["1"]
    method, properties, body = fetch(channel, there)
    assert (body, method.exchange, method.routing_key) == (b"2", exchange, "unknown")
    assert properties.headers is None
    assert_empty(channel, there)


def test_alternates_may_be_chained_and_a_ring_of_them_ends(channel, name):
    one, two, three, queue = name("x1"), name("x2"), name("x3"), name("q")
    channel.exchange_declare(one, "direct", arguments={"alternate-exchange": two})
    channel.exchange_declare(two, "direct", arguments={"alternate-exchange": three})
    channel.exchange_declare(three, "direct", arguments={"alternate-exchange": one})
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, three, "key")
    publish(channel, "key", "found", exchange=one)
    publish(channel, "nobody", "lost", exchange=one)
    assert bodies(channel, queue, 1) == ["found"]
    assert_empty(channel, queue)


def test_mandatory_counts_what_the_alternate_routed(channel, name):
    exchange, alternate, queue = name("x"), name("alt"), name("q")
    channel.exchange_declare(alternate, "fanout")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, alternate)
    channel.confirm_delivery()
    channel.basic_publish(exchange, "unknown", b"routed", mandatory=True)
    assert bodies(channel, queue, 1) == ["routed"]


def test_a_missing_alternate_loses_the_message_quietly(channel, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": name("missing")})
    channel.confirm_delivery()
    publish(channel, "key", exchange=exchange)
