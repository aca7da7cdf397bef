"""Publishing: returns, copies, user-id, sizes, and properties that come out as they went in."""

import struct
import time

import pika
import pytest
from pika import spec
from pika.exceptions import UnroutableError
from wire import longstr, shortstr, table
from words import assert_empty, bodies, channel_closes, fetch, publish, round_trip

BODY_MAX = 134_217_728


# Returns


def test_mandatory_and_unroutable_comes_back(wire):
    wire.open().open_channel()
    data = wire.publish_bytes(1, "amq.direct", "nobody", b"hello", b"\x80\x00" + shortstr("text/plain"))
    # The mandatory bit is the last byte of the method's frame, before the frame end.
    method_end = 7 + struct.unpack(">I", data[3:7])[0]
    wire.send(data[: method_end - 1] + b"\x01" + data[method_end:])
    returned = wire.expect(spec.Basic.Return)
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("amq.direct", "nobody")
    properties, body, _ = wire.read_content()
    assert (properties, body) == (b"\x80\x00" + shortstr("text/plain"), b"hello")


def test_mandatory_and_routed_does_not_come_back(channel, queue):
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"hello", mandatory=True)


def test_unroutable_and_not_mandatory_is_lost_quietly(channel):
    channel.confirm_delivery()
    publish(channel, "nobody", exchange="amq.direct")


def test_a_return_comes_before_its_confirm(channel, name):
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", name("missing"), b"hello", mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.body) == (312, b"hello")


# Copies


def test_cc_and_bcc_route_further_and_bcc_is_taken_out(channel, name):
    to, cc, bcc = name("to"), name("cc"), name("bcc")
    for queue in (to, cc, bcc):
        channel.queue_declare(queue, durable=True)
    publish(channel, to, headers={"CC": [cc, "nobody"], "BCC": [bcc], "mine": 1})
    for queue in (to, cc, bcc):
        method, properties, body = fetch(channel, queue)
        assert (body, method.routing_key) == (b"hello", to)
        assert properties.headers == {"CC": [cc, "nobody"], "mine": 1}
        assert_empty(channel, queue)


def test_cc_naming_the_same_queue_gives_one_copy(channel, queue):
    publish(channel, queue, headers={"CC": [queue, queue]})
    assert bodies(channel, queue, 1) == ["hello"]
    assert_empty(channel, queue)


@pytest.mark.parametrize(
    ("headers", "text"), [({"CC": "a"}, '"CC",longstr'), ({"BCC": 5}, '"BCC",signedint')], ids=["CC", "BCC"]
)
def test_cc_that_is_no_list_is_406(channel, headers, text):
    with channel_closes(
        406, "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header," + text + "}"
    ):
        publish(channel, "x", headers=headers)
        round_trip(channel)


# User


def test_ones_own_user_id_is_fine(channel, queue, user):
    publish(channel, queue, user_id=user)
    assert fetch(channel, queue)[1].user_id == user


def test_anothers_user_id_is_406(channel, queue, user):
    with channel_closes(
        406, f"PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was '{user}'"
    ):
        publish(channel, queue, user_id="other")
        round_trip(channel)


# Bodies


def test_an_empty_body(channel, queue):
    publish(channel, queue, b"", content_type="nothing")
    method, properties, body = fetch(channel, queue)
    assert (body, properties.content_type) == (b"", "nothing")


@pytest.mark.parametrize("size", [1, 131_063, 131_064, 131_065, 262_128, 1_000_000])
def test_bodies_of_one_and_many_frames(channel, queue, size):
    body = bytes(i % 251 for i in range(size))
    publish(channel, queue, body)
    assert fetch(channel, queue)[2] == body


def test_a_body_in_many_small_and_empty_frames(wire, channel, queue):
    wire.open().open_channel()
    wire.send_method(1, spec.Basic.Publish(exchange="", routing_key=queue))
    wire.send_frame(2, 1, struct.pack(">HHQH", 60, 0, 10, 0))
    for part in [b"a", b"", b"bcd", b"efghij"]:
        wire.send_frame(3, 1, part)
    assert fetch(channel, queue)[2] == b"abcdefghij"


def test_frames_of_two_channels_may_interleave(wire, channel, queue):
    wire.open().open_channel(1).open_channel(2)
    for number in (1, 2):
        wire.send_method(number, spec.Basic.Publish(exchange="", routing_key=queue))
    for number in (2, 1):
        wire.send_frame(2, number, struct.pack(">HHQH", 60, 0, 4, 0))
    for part in (b"ab", b"cd"):
        for number in (1, 2):
            wire.send_frame(3, number, part)
    assert bodies(channel, queue, 2) == ["abcd", "abcd"]


def test_a_body_of_thirty_megabytes(channel, queue):
    body = bytes(range(256)) * 4096 * 30
    publish(channel, queue, body)
    assert fetch(channel, queue, 20)[2] == body


def test_a_body_above_the_maximum_is_406(wire):
    # RabbitMQ reads it all before it refuses; a broker may refuse when the content header comes.
    wire.open().open_channel()
    wire.send_method(1, spec.Basic.Publish(exchange="", routing_key="nobody"))
    wire.send_frame(2, 1, struct.pack(">HHQH", 60, 0, BODY_MAX + 1, 0))
    piece, left = b"\0" * (131_072 - 8), BODY_MAX + 1
    while left:
        part = piece[:left]
        wire.send_frame(3, 1, part)
        left -= len(part)
    close = wire.expect(spec.Channel.Close, 20)
    assert close.reply_code == 406
    assert close.reply_text == (
        f"PRECONDITION_FAILED - message size {BODY_MAX + 1} is larger than configured max size {BODY_MAX}"
    )


# Properties


def test_every_property(channel, queue, user):
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers={"a": 1},
        delivery_mode=2,
        priority=7,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="message",
        timestamp=1_700_000_000,
        type="kind",
        user_id=user,
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", queue, b"", properties)
    assert fetch(channel, queue)[1] == properties


HEADERS = table(
    ("true", b"t", b"\x01"),
    ("false", b"t", b"\x00"),
    ("int8", b"b", b"\xff"),
    ("uint8", b"B", b"\xff"),
    ("int16", b"s", b"\xff\xfe"),
    ("uint16", b"u", b"\xff\xfe"),
    ("int32", b"I", b"\x80\x00\x00\x00"),
    ("uint32", b"i", b"\xff\xff\xff\xff"),
    ("int64", b"l", b"\x80\x00\x00\x00\x00\x00\x00\x00"),
    ("float", b"f", struct.pack(">f", 1.5)),
    ("double", b"d", struct.pack(">d", -2.25)),
    ("decimal", b"D", b"\x02" + struct.pack(">I", 314)),
    ("text", b"S", longstr("grüße")),
    ("bytes", b"x", longstr(b"\x00\xff\x80")),
    ("time", b"T", struct.pack(">Q", 1_700_000_000)),
    ("nothing", b"V", b""),
    ("list", b"A", longstr(b"I\0\0\0\x01" + b"S" + longstr("two") + b"V" + b"A" + longstr(b""))),
    ("table", b"F", table(("inner", b"F", table(("deep", b"t", b"\x01"))))),
    ("", b"S", longstr("a name may be empty")),
    ("twice", b"I", b"\0\0\0\x01"),
    ("twice", b"I", b"\0\0\0\x02"),
)
ALL_FLAGS = 0xFFFC


@pytest.fixture
def raw(user):
    """The bytes of a content header's flags and properties, with every property set."""
    return (
        struct.pack(">H", ALL_FLAGS)
        + shortstr("type")
        + shortstr("encoding")
        + HEADERS
        + b"\x01"
        + b"\x09"
        + shortstr("correlation")
        + shortstr("reply")
        + shortstr("60000")
        + shortstr("message")
        + struct.pack(">Q", 1_700_000_000)
        + shortstr("kind")
        + shortstr(user)
        + shortstr("app")
        + shortstr("cluster")
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_properties_and_headers_of_every_type_come_back_byte_for_byte(wire, channel, name, kind, raw):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    wire.open().open_channel()
    wire.send(wire.publish_bytes(1, "", queue, b"body", raw))
    fetch_raw(wire, queue, raw)


def test_an_empty_table_and_no_properties_differ(wire, queue):
    wire.open().open_channel()
    for raw in [b"\x00\x00", b"\x20\x00\x00\x00\x00\x00"]:
        wire.send(wire.publish_bytes(1, "", queue, b"body", raw))
        fetch_raw(wire, queue, raw)


def fetch_raw(wire, queue, raw):
    """The next message has exactly these property bytes."""
    wire.send_method(1, spec.Basic.Consume(queue=queue, consumer_tag="raw", no_ack=True))
    wire.expect(spec.Basic.ConsumeOk)
    wire.expect(spec.Basic.Deliver)
    properties, body, _ = wire.read_content()
    assert (properties, body) == (raw, b"body")
    wire.call(1, spec.Basic.Cancel(consumer_tag="raw"), spec.Basic.CancelOk)


@pytest.mark.parametrize("exchange", ["amq.topic", "amq.headers", "amq.fanout"])
def test_routing_by_any_exchange_leaves_properties_alone(wire, channel, queue, exchange, raw):
    channel.queue_bind(queue, exchange, "#", arguments={"x-match": "all", "true": True})
    wire.open().open_channel()
    wire.send(wire.publish_bytes(1, exchange, "a.b", b"body", raw))
    fetch_raw(wire, queue, raw)


# Deduplication


@pytest.mark.nexo_only("has no deduplication without a plugin of others")
def test_a_message_with_a_deduplication_header_seen_before_is_dropped(channel, queue):
    channel.confirm_delivery()
    publish(channel, queue, "first", headers={"x-deduplication-header": "same"})
    publish(channel, queue, "again", headers={"x-deduplication-header": "same"})
    publish(channel, queue, "other", headers={"x-deduplication-header": "other"})
    assert bodies(channel, queue, 2) == ["first", "other"]
    assert_empty(channel, queue)


# Delay


@pytest.mark.nexo_only("reads x-delay only on an exchange of a plugin that Debian does not ship")
def test_x_delay_holds_a_message_back_on_any_exchange(channel, queue):
    began = time.monotonic()
    publish(channel, queue, "later", headers={"x-delay": 1000})
    publish(channel, queue, "now")
    assert bodies(channel, queue, 2) == ["now", "later"]
    assert time.monotonic() - began > 0.95
