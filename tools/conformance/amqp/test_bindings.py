"""Bindings of queues and of exchanges, and headers exchanges, whose bindings are arguments."""

import pytest
from words import assert_empty, bodies, channel_closes, everything, fetch, publish, round_trip


def test_binding_twice_is_one_binding(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "key")
    channel.queue_bind(queue, exchange, "key")
    publish(channel, "key", exchange=exchange)
    assert everything(channel, queue) == ["hello"]
    channel.queue_unbind(queue, exchange, "key")
    publish(channel, "key", exchange=exchange)
    assert_empty(channel, queue)


def test_bindings_with_other_arguments_are_others(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "key", arguments={"a": 1})
    channel.queue_bind(queue, exchange, "key", arguments={"a": 2})
    channel.queue_unbind(queue, exchange, "key", arguments={"a": 1})
    publish(channel, "key", exchange=exchange)
    assert bodies(channel, queue, 1) == ["hello"]


def test_bind_without_a_key_on_the_last_queue_uses_its_name(channel, name):
    # Both names empty: the channel's last declared queue, and its name as the key.
    exchange, queue = name("x"), name("q")
    channel.exchange_declare(exchange, "direct")
    channel.queue_declare(queue, durable=True)
    channel.queue_bind("", exchange, "")
    publish(channel, queue, exchange=exchange)
    assert bodies(channel, queue, 1) == ["hello"]


def test_bind_to_what_is_not_there_is_404(connection, queue, name):
    missing = name("missing")
    with channel_closes(404, f"NOT_FOUND - no queue '{missing}' in vhost '/'"):
        connection.channel().queue_bind(missing, "amq.direct", "key")
    with channel_closes(404, f"NOT_FOUND - no exchange '{missing}' in vhost '/'"):
        connection.channel().queue_bind(queue, missing, "key")


def test_of_two_that_are_not_there_the_exchange_is_named(channel, name):
    exchange = name("x")
    with channel_closes(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        channel.queue_bind(name(), exchange, "key")


def test_unbinding_what_is_not_there_is_fine(channel, queue, name):
    channel.queue_unbind(queue, "amq.direct", "never bound")
    channel.queue_unbind(queue, name("missing"), "key")
    channel.queue_unbind(name("missing"), "amq.direct", "key")


def test_a_deleted_queue_takes_its_bindings_along(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True)
    publish(channel, "key", exchange=exchange)
    round_trip(channel)
    assert_empty(channel, queue)


def test_a_deleted_exchange_takes_its_bindings_along(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    channel.exchange_delete(exchange)
    channel.exchange_declare(exchange, "fanout")
    publish(channel, "key", exchange=exchange)
    round_trip(channel)
    assert_empty(channel, queue)


def test_the_default_binding_outlives_others(channel, queue):
    channel.queue_bind(queue, "amq.direct", "key")
    channel.queue_unbind(queue, "amq.direct", "key")
    publish(channel, queue)
    assert bodies(channel, queue, 1) == ["hello"]


# Exchange to exchange


def test_exchange_to_exchange_routes_through_both(channel, queue, name):
    source, destination = name("src"), name("dst")
    channel.exchange_declare(source, "topic")
    channel.exchange_declare(destination, "direct")
    channel.exchange_bind(destination, source, "a.#")
    channel.queue_bind(queue, destination, "a.b")
    for key in ["a.b", "a.c", "b.a"]:
        publish(channel, key, key, exchange=source)
    method, _, body = fetch(channel, queue)
    assert (body, method.exchange, method.routing_key) == (b"a.b", source, "a.b")
    assert_empty(channel, queue)
    channel.exchange_unbind(destination, source, "a.#")
    publish(channel, "a.b", exchange=source)
    round_trip(channel)
    assert_empty(channel, queue)


def test_an_internal_exchange_is_reached_through_another(channel, queue, name):
    source, internal = name("src"), name("int")
    channel.exchange_declare(source, "fanout")
    channel.exchange_declare(internal, "fanout", internal=True)
    channel.exchange_bind(internal, source)
    channel.queue_bind(queue, internal)
    publish(channel, "", exchange=source)
    assert bodies(channel, queue, 1) == ["hello"]


def test_a_ring_of_exchanges_delivers_once(channel, name):
    one, two, first, second = name("x1"), name("x2"), name("q1"), name("q2")
    for exchange in (one, two):
        channel.exchange_declare(exchange, "fanout")
    channel.exchange_bind(one, two)
    channel.exchange_bind(two, one)
    for queue, exchange in [(first, one), (second, two)]:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange)
    publish(channel, "", exchange=one)
    for queue in (first, second):
        assert bodies(channel, queue, 1) == ["hello"]
        assert_empty(channel, queue)


def test_an_exchange_may_be_bound_to_itself(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "fanout")
    channel.exchange_bind(exchange, exchange)
    channel.queue_bind(queue, exchange)
    publish(channel, "", exchange=exchange)
    assert everything(channel, queue) == ["hello"]


def test_exchange_bind_to_what_is_not_there_is_404(connection, name):
    missing = name("missing")
    for destination, source in [(missing, "amq.direct"), ("amq.direct", missing)]:
        with channel_closes(404, f"NOT_FOUND - no exchange '{missing}' in vhost '/'"):
            connection.channel().exchange_bind(destination, source, "key")


def test_a_source_is_in_use_and_a_destination_is_not(connection, channel, name):
    source, destination = name("src"), name("dst")
    channel.exchange_declare(source, "fanout")
    channel.exchange_declare(destination, "fanout")
    channel.exchange_bind(destination, source)
    with channel_closes(406, f"PRECONDITION_FAILED - exchange '{source}' in vhost '/' in use"):
        connection.channel().exchange_delete(source, if_unused=True)
    channel.exchange_delete(destination, if_unused=True)
    channel.exchange_delete(source, if_unused=True)


def test_auto_delete_exchange_goes_when_its_destination_goes(channel, name):
    source, destination = name("src"), name("dst")
    channel.exchange_declare(source, "fanout", auto_delete=True)
    channel.exchange_declare(destination, "fanout")
    channel.exchange_bind(destination, source)
    channel.exchange_delete(destination)
    with channel_closes(404, f"NOT_FOUND - no exchange '{source}' in vhost '/'"):
        channel.exchange_declare(source, passive=True)


# Headers


ALL = {"x-match": "all", "a": 1, "b": "two"}
ANY = {"x-match": "any", "a": 1, "b": "two"}


@pytest.mark.parametrize(
    ("binding", "headers", "matches"),
    [
        (ALL, {"a": 1, "b": "two"}, True),
        (ALL, {"a": 1, "b": "two", "c": 3}, True),
        (ALL, {"a": 1}, False),
        (ALL, {"a": 1, "b": "three"}, False),
        (ALL, {"a": "1", "b": "two"}, False),
        (ALL, None, False),
        (ANY, {"a": 1}, True),
        (ANY, {"b": "two", "a": 5}, True),
        (ANY, {"c": 1}, False),
        (ANY, None, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
        ({}, None, True),
        ({}, {"anything": 1}, True),
        ({"x-match": "any"}, {"anything": 1}, False),
        ({"x-match": "all"}, None, True),
        ({"x-match": "all", "present": None}, {"present": "whatever"}, True),
        ({"x-match": "all", "present": None}, {"absent": 1}, False),
        ({"x-match": "any", "present": None}, {"present": 5}, True),
        ({"x-match": "all", "flag": True}, {"flag": True}, True),
        ({"x-match": "all", "flag": True}, {"flag": False}, False),
        ({"x-match": "all", "x-hidden": 1, "a": 1}, {"a": 1}, True),
        ({"x-match": "any", "x-hidden": 1, "a": 1}, {"x-hidden": 1}, False),
        ({"x-match": "all-with-x", "x-seen": 1, "a": 1}, {"a": 1}, False),
        ({"x-match": "all-with-x", "x-seen": 1, "a": 1}, {"a": 1, "x-seen": 1}, True),
        ({"x-match": "any-with-x", "x-seen": 1, "a": 1}, {"x-seen": 1}, True),
        ({"x-match": "any-with-x", "x-seen": 1, "a": 1}, {"x-seen": 2}, False),
    ],
    ids=str,
)
def test_headers_match(channel, queue, name, binding, headers, matches):
    exchange = name("x")
    channel.exchange_declare(exchange, "headers")
    channel.queue_bind(queue, exchange, "", arguments=binding)
    publish(channel, "ignored", exchange=exchange, headers=headers)
    assert everything(channel, queue) == (["hello"] if matches else [])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("nope", 'Invalid x-match field value <<"nope">>; expected all, any, all-with-x, or any-with-x'),
        (5, "Invalid x-match field type signedint (value 5); expected longstr"),
    ],
)
def test_wrong_x_match_is_406(channel, queue, value, text):
    with channel_closes(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_bind(queue, "amq.headers", "", arguments={"x-match": value, "a": 1})


def test_headers_binding_is_undone_by_the_same_arguments(channel, queue, name):
    exchange = name("x")
    channel.exchange_declare(exchange, "headers")
    channel.queue_bind(queue, exchange, "", arguments=ALL)
    channel.queue_unbind(queue, exchange, "", arguments=ALL)
    publish(channel, "", exchange=exchange, headers={"a": 1, "b": "two"})
    round_trip(channel)
    assert_empty(channel, queue)
