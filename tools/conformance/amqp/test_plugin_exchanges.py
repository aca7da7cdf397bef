"""Exchange types that RabbitMQ has by plugins: consistent hashing, and delayed messages."""

import time

import pytest
from pika.exceptions import AMQPError
from words import assert_empty, bodies, channel_closes, everything, fetch, publish, round_trip

# x-consistent-hash


@pytest.fixture
def hashed(channel, name, exchange_type):
    """Makes a consistent-hash exchange with queues of these weights: (exchange, queues)."""
    exchange_type("x-consistent-hash")

    def hashed(weights, arguments=None):
        exchange, queues = name("x"), [name() for _ in weights]
        channel.exchange_declare(exchange, "x-consistent-hash", durable=True, arguments=arguments)
        for queue, weight in zip(queues, weights):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, exchange, str(weight))
        return exchange, queues

    return hashed


def test_every_message_goes_to_exactly_one_queue_and_all_get_some(channel, hashed):
    exchange, queues = hashed([1, 1, 1])
    for number in range(600):
        publish(channel, f"key {number}", exchange=exchange)
    round_trip(channel)
    counts = [len(everything(channel, queue)) for queue in queues]
    assert sum(counts) == 600
    assert min(counts) > 100, counts


def test_a_weight_is_a_share(channel, hashed):
    exchange, (light, heavy) = hashed([1, 4])
    for number in range(1000):
        publish(channel, f"key {number}", exchange=exchange)
    round_trip(channel)
    assert len(everything(channel, heavy)) > 2 * len(everything(channel, light)) > 0


def test_the_same_key_goes_to_the_same_queue(channel, hashed):
    exchange, queues = hashed([1, 1, 1, 1])
    for _ in range(20):
        publish(channel, "same", exchange=exchange)
    round_trip(channel)
    assert sorted(len(everything(channel, queue)) for queue in queues) == [0, 0, 0, 20]


def test_taking_a_queue_away_moves_only_its_keys(channel, hashed):
    exchange, queues = hashed([1, 1, 1])
    keys = [f"key {number}" for number in range(100)]
    before = where(channel, exchange, queues, keys)
    channel.queue_unbind(queues[2], exchange, "1")
    after = where(channel, exchange, queues, keys)
    assert all(after[key] == queue for key, queue in before.items() if queue != queues[2])
    assert queues[2] not in after.values()


def where(channel, exchange, queues, keys):
    """The queue that each key goes to."""
    for key in keys:
        publish(channel, key, key, exchange=exchange)
    round_trip(channel)
    return {body: queue for queue in queues for body in everything(channel, queue)}


def test_hashing_a_header(channel, hashed):
    exchange, queues = hashed([1, 1, 1], {"hash-header": "by"})
    for number in range(60):
        publish(channel, f"key {number}", exchange=exchange, headers={"by": "same"})
    round_trip(channel)
    assert sorted(len(everything(channel, queue)) for queue in queues) == [0, 0, 60]


@pytest.mark.parametrize("prop", ["message_id", "correlation_id", "timestamp"])
def test_hashing_a_property(channel, hashed, prop):
    exchange, queues = hashed([1, 1, 1], {"hash-property": prop})
    value = 5 if prop == "timestamp" else "same"
    for number in range(60):
        publish(channel, f"key {number}", exchange=exchange, **{prop: value})
    round_trip(channel)
    assert sorted(len(everything(channel, queue)) for queue in queues) == [0, 0, 60]


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("abc", 'The binding key must be an integer: <<"abc">>'),
        ("", "The binding key must be an integer: <<>>"),
    ],
)
def test_a_weight_that_is_none_is_406(channel, queue, hashed, weight, text):
    exchange, _ = hashed([])
    with channel_closes(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_bind(queue, exchange, weight)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": "nonsense"}, "Unsupported property: nonsense"),
    ],
    ids=str,
)
def test_wrong_arguments_are_406(hashed, arguments, text):
    with channel_closes(406, f"PRECONDITION_FAILED - {text}"):
        hashed([], arguments)


# x-delayed-message


@pytest.fixture
def delayed(channel, name, exchange_type):
    """Makes a delayed exchange of this inner type."""
    exchange_type("x-delayed-message", {"x-delayed-type": "direct"})

    def delayed(kind="direct"):
        exchange = name("x")
        channel.exchange_declare(
            exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": kind}
        )
        return exchange

    return delayed


def test_a_delayed_message_comes_when_its_time_has(channel, queue, delayed):
    exchange = delayed()
    channel.queue_bind(queue, exchange, "key")
    publish(channel, "key", "now", exchange=exchange)
    began = time.monotonic()
    publish(channel, "key", "late", exchange=exchange, headers={"x-delay": 1500})
    publish(channel, "key", "soon", exchange=exchange, headers={"x-delay": 200})
    assert bodies(channel, queue, 1) == ["now"]
    # However slow the machine is, nothing comes before its time.
    assert bodies(channel, queue, 1) == ["soon"]
    assert time.monotonic() - began > 0.19
    assert bodies(channel, queue, 1) == ["late"]
    assert time.monotonic() - began > 1.45


def test_the_inner_type_routes(channel, queue, delayed):
    exchange = delayed("topic")
    channel.queue_bind(queue, exchange, "a.*")
    for key in ["a.b", "b.a"]:
        publish(channel, key, key, exchange=exchange, headers={"x-delay": 100})
    assert bodies(channel, queue, 1) == ["a.b"]
    time.sleep(0.2)
    assert_empty(channel, queue)


def test_the_delivered_delay_is_negative(channel, queue, delayed):
    # The plugin turns the sign, so that a message published again is not delayed again.
    exchange = delayed()
    channel.queue_bind(queue, exchange, "key")
    publish(channel, "key", exchange=exchange, headers={"x-delay": 100})
    assert fetch(channel, queue)[1].headers["x-delay"] == -100


def test_a_delayed_exchange_needs_an_inner_type(channel, name, delayed):
    with pytest.raises(AMQPError) as caught:
        channel.exchange_declare(name("x"), "x-delayed-message", durable=True)
    assert caught.value.reply_code == 406
