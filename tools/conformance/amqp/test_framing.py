"""Wrong frames, wrong order, wrong sizes: each ends its connection with the right code, never the broker.

The texts quote Erlang terms where RabbitMQ prints them; there only the code is compared.
"""

import random
import struct

import pytest
from pika import spec
from wire import (
    BODY,
    CONTENT_HEADER,
    HEARTBEAT,
    METHOD,
    Wire,
    frame,
    longstr,
    method_payload,
    shortstr,
    table,
)

CLOSE = spec.Channel.Close(200, "bye", 0, 0)
PUBLISH = spec.Basic.Publish(exchange="", routing_key="nowhere")
CONTENT = struct.pack(">HHQH", 60, 0, 3, 0)


@pytest.fixture(autouse=True)
def the_broker_lives_on(url):
    yield
    with Wire(url) as wire:
        wire.open().open_channel()


@pytest.fixture
def opened(wire):
    """A connection with channel 1 open."""
    return wire.open().open_channel()


def ends(wire, code, text=None):
    wire.expect_close(code, text)
    wire.expect_eof(6)


# 501 FRAME_ERROR


def test_wrong_frame_end_is_501(opened):
    opened.send(frame(METHOD, 1, method_payload(CLOSE), end=0))
    close = opened.expect(spec.Connection.Close)
    assert close.reply_code == 501
    assert "invalid_frame_end_marker" in close.reply_text


def test_unknown_frame_type_is_501(opened):
    opened.send_frame(7, 1, b"abc")
    ends(opened, 501, 'FRAME_ERROR - type 7, all octets = <<"abc">>: unknown_frame')


def test_unknown_frame_type_on_channel_zero_is_501(opened):
    opened.send_frame(4, 0, b"abc")
    ends(opened, 501, 'FRAME_ERROR - type 4, all octets = <<"abc">>: unknown_frame')


def test_a_frame_larger_than_frame_max_is_501(opened):
    # Refused at its header: the payload never comes. RabbitMQ lets eight bytes too many pass.
    opened.send(struct.pack(">BHI", BODY, 1, 131073))
    close = opened.expect(spec.Connection.Close)
    assert close.reply_code == 501
    assert "frame_too_large" in close.reply_text


def test_a_frame_larger_than_a_lowered_frame_max_is_501(wire):
    wire.open(frame_max=4096).open_channel()
    wire.send(struct.pack(">BHI", BODY, 1, 4097))
    assert wire.expect(spec.Connection.Close).reply_code == 501


def test_a_method_with_too_few_bytes_is_501(opened):
    opened.send_frame(METHOD, 1, struct.pack(">HH", 50, 10) + b"\0\0\x20ab")
    ends(opened, 501, "FRAME_ERROR - cannot decode <<0,0,32,97,98>>")


def test_a_method_with_too_many_bytes_is_501(opened):
    opened.send_frame(METHOD, 1, method_payload(spec.Basic.Qos()) + b"junk")
    ends(opened, 501)


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x3c\0"], ids=["0", "1", "3"])
def test_a_method_frame_without_a_method_is_501(opened, payload):
    opened.send_frame(METHOD, 1, payload)
    ends(opened, 501)


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack(">HHH", 50, 10, 0) + b"\x01\xff" + b"\x04" + table(),
        struct.pack(">HHH", 50, 40, 0) + b"\x01\xff" + b"\x00",
        struct.pack(">HHH", 40, 10, 0) + b"\x01\xff" + shortstr("direct") + b"\x00" + table(),
        struct.pack(">HHH", 40, 10, 0) + shortstr("conf.x") + b"\x01\xff" + b"\x00" + table(),
    ],
    ids=["queue.declare", "queue.delete", "exchange.declare", "exchange type"],
)
def test_a_name_that_is_not_utf8_is_501(opened, payload):
    opened.send_frame(METHOD, 1, payload)
    ends(opened, 501, "FRAME_ERROR - Malformed UTF-8 in shortstr")


def test_a_heartbeat_with_a_payload_is_501(opened):
    opened.send_frame(HEARTBEAT, 0, b"abc")
    ends(opened, 501)


# 503 COMMAND_INVALID


@pytest.mark.parametrize(
    "method",
    [
        spec.Basic.QosOk(),
        spec.Channel.FlowOk(True),
        spec.Connection.Close(200, "", 0, 0),
        spec.Connection.Open(),
    ],
    ids=lambda method: method.NAME,
)
def test_a_method_that_no_client_may_send_on_a_channel_is_503(opened, method):
    opened.send_method(1, method)
    ends(opened, 503, "COMMAND_INVALID - unimplemented method")


# 504 CHANNEL_ERROR


@pytest.mark.parametrize(
    "method", [spec.Basic.Qos(), CLOSE, spec.Channel.CloseOk()], ids=lambda method: method.NAME
)
def test_a_method_on_a_channel_that_is_not_open_is_504(opened, method):
    opened.send_method(5, method)
    close = opened.expect_close(504, "CHANNEL_ERROR - expected 'channel.open'")
    assert (close.class_id, close.method_id) == divmod(method.INDEX, 1 << 16)
    opened.expect_eof()


def test_opening_a_channel_twice_is_504(opened):
    opened.send_method(1, spec.Channel.Open())
    ends(opened, 504, "CHANNEL_ERROR - second 'channel.open' seen")


@pytest.mark.parametrize(
    "method",
    [spec.Basic.Qos(), spec.Connection.TuneOk(0, 0, 0), spec.Connection.Open(), spec.Channel.Open()],
    ids=lambda method: method.NAME,
)
def test_a_method_out_of_place_on_channel_zero_is_504(opened, method):
    opened.send_method(0, method)
    ends(opened, 504, "CHANNEL_ERROR - unexpected method in connection state running")


# 505 UNEXPECTED_FRAME


@pytest.mark.parametrize("kind", [CONTENT_HEADER, BODY])
def test_content_without_a_publish_is_505(opened, kind):
    opened.send_frame(kind, 1, CONTENT)
    ends(opened, 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")


@pytest.mark.parametrize("kind", [CONTENT_HEADER, BODY])
def test_content_on_channel_zero_is_505(opened, kind):
    opened.send_frame(kind, 0, CONTENT)
    ends(opened, 505)


def test_a_heartbeat_on_a_channel_is_505(opened):
    opened.send_frame(HEARTBEAT, 1, b"")
    ends(opened, 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>")


def test_a_method_instead_of_a_content_header_is_505(opened):
    opened.send_method(1, PUBLISH)
    opened.send_method(1, spec.Basic.Qos())
    ends(
        opened,
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    )


def test_a_body_instead_of_a_content_header_is_505(opened):
    opened.send_method(1, PUBLISH)
    opened.send_frame(BODY, 1, b"abc")
    ends(
        opened,
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    )


def test_a_content_header_of_another_class_is_505(opened):
    opened.send_method(1, PUBLISH)
    opened.send_frame(CONTENT_HEADER, 1, struct.pack(">HHQH", 50, 0, 3, 0))
    ends(
        opened,
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
    )


def test_a_content_header_with_a_weight_is_505(opened):
    opened.send_method(1, PUBLISH)
    opened.send_frame(CONTENT_HEADER, 1, struct.pack(">HHQH", 60, 5, 3, 0))
    ends(
        opened,
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    )


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(METHOD, method_payload(spec.Basic.Qos())), (CONTENT_HEADER, CONTENT)],
    ids=["method", "header"],
)
def test_something_else_instead_of_a_body_is_505(opened, kind, payload):
    opened.send_method(1, PUBLISH)
    opened.send_frame(CONTENT_HEADER, 1, CONTENT)
    opened.send_frame(kind, 1, payload)
    ends(opened, 505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead")


def test_a_channel_before_the_connection_is_open_is_505(wire):
    wire.log_in()
    wire.tune_ok()
    wire.send_method(1, spec.Channel.Open())
    ends(wire, 505)


# 530 NOT_ALLOWED


def test_reusing_a_consumer_tag_is_530(opened, queue):
    opened.call(1, spec.Basic.Consume(queue=queue, consumer_tag="twice"), spec.Basic.ConsumeOk)
    opened.send_method(1, spec.Basic.Consume(queue=queue, consumer_tag="twice"))
    ends(opened, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'twice'")


# 540 NOT_IMPLEMENTED


def test_publish_immediate_is_540(opened):
    opened.send_method(1, spec.Basic.Publish(exchange="", routing_key="x", immediate=True))
    opened.send_frame(CONTENT_HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0))
    ends(opened, 540, "NOT_IMPLEMENTED - immediate=true")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (spec.Channel.Flow(active=False), "active=false"),
        (spec.Basic.Qos(prefetch_size=10), "prefetch_size!=0 (10)"),
        (spec.Basic.Recover(requeue=False), "requeue=false"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_rabbitmq_never_had_is_540(opened, method, text):
    opened.send_method(1, method)
    close = opened.expect_close(540, f"NOT_IMPLEMENTED - {text}")
    assert (close.class_id, close.method_id) == divmod(method.INDEX, 1 << 16)


# What RabbitMQ answers with silence or a crash of its own: it ends, and a code is welcome


@pytest.mark.parametrize(
    ("channel", "payload"),
    [(1, struct.pack(">HH", 60, 999)), (1, struct.pack(">HH", 999, 10)), (0, struct.pack(">HH", 10, 999))],
    ids=["method", "class", "channel zero"],
)
def test_an_unknown_method_ends_the_connection(opened, channel, payload):
    opened.send_frame(METHOD, channel, payload)
    ended_with(opened, (501, 502, 503, 540))


def test_a_table_with_an_unknown_type_ends_the_connection(opened):
    opened.send_frame(METHOD, 1, struct.pack(">HH", 50, 10) + b"\0\0\x01a\0" + longstr(b"\x01aQ123"))
    ended_with(opened, (501, 502))


def test_properties_that_cannot_be_read_end_the_connection(opened):
    opened.send_method(1, PUBLISH)
    opened.send_frame(CONTENT_HEADER, 1, struct.pack(">HHQH", 60, 0, 3, 0xFFFE))
    opened.send_frame(BODY, 1, b"abc")
    ended_with(opened, (501, 502, 541))


def test_a_table_nested_without_end_ends_the_connection(opened):
    nested = b""
    for _ in range(5000):
        nested = b"\x01aF" + longstr(nested)
    opened.send_frame(
        METHOD, 1, struct.pack(">HH", 50, 10) + b"\0\0" + shortstr("conf.nested") + b"\0" + longstr(nested)
    )
    found = opened.next_frame(10)
    # RabbitMQ reads it and declares the queue; a limit on the depth is as good.
    assert found is None or found.method().NAME in ("Queue.DeclareOk", "Connection.Close")
    if found is not None and found.method().NAME == "Queue.DeclareOk":
        opened.call(1, spec.Queue.Delete(queue="conf.nested"), spec.Queue.DeleteOk)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 1 << 20])
def test_a_length_beyond_the_frame_allocates_nothing(opened, length):
    opened.send_frame(
        METHOD, 1, struct.pack(">HH", 50, 10) + b"\0\0\x01a\0" + struct.pack(">I", length) + b"x"
    )
    ended_with(opened, (501, 502))


@pytest.mark.nexo_only("waits for ever for the rest of a body that was already too long")
def test_a_body_longer_than_announced_ends_the_connection(opened):
    opened.send_method(1, PUBLISH)
    opened.send_frame(CONTENT_HEADER, 1, CONTENT)
    opened.send_frame(BODY, 1, b"abcd")
    ended_with(opened, (501, 502, 505))


def test_a_method_out_of_order_in_the_handshake_ends_the_connection(url):
    # RabbitMQ waits three seconds and closes the socket without a word.
    started, tuned = Wire(url), Wire(url)
    started.start()
    tuned.log_in()
    for wire in (started, tuned):
        wire.send_method(0, spec.Connection.Open())
    for wire in (started, tuned):
        ended_with(wire, (501, 503, 504, 505))
        wire.socket.close()


def test_a_method_instead_of_the_protocol_header_is_answered_with_the_header(wire):
    wire.send_method(0, spec.Connection.Open())
    assert wire.read_exactly(8) == b"AMQP\x00\x00\x09\x01"


def test_a_frame_larger_than_the_handshake_allows_ends_the_connection(wire):
    wire.start()
    wire.send(struct.pack(">BHI", METHOD, 0, 200_000))
    ended_with(wire, (501,))


@pytest.mark.parametrize("seed", range(20))
def test_noise_ends_the_connection_at_most(opened, seed):
    noise = random.Random(seed)
    payload = noise.randbytes(noise.randrange(1, 60))
    opened.send(frame(noise.choice([METHOD, CONTENT_HEADER, BODY, HEARTBEAT]), noise.choice([0, 1]), payload))


def ended_with(wire, codes):
    """The connection ends, with one of these codes if it says one."""
    found = wire.next_frame(8)
    if found is not None:
        assert found.method().NAME == "Connection.Close", found.method()
        assert found.method().reply_code in codes, found.method()
