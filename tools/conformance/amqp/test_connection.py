"""From the protocol header to connection.open: versions, properties, logging in, tuning, heartbeats, secrets."""

import struct
import time

import pika
import pytest
from pika import spec
from pika.exceptions import ProbableAuthenticationError
from wire import HEADER, HEARTBEAT, METHOD, Wire, longstr, shortstr, table
from words import round_trip

CAPABILITIES = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
]
FAILURE_CLOSE = {"authentication_failure_close": True}


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x08\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"],
    ids=["0-8", "http", "tls"],
)
def test_unknown_protocol_header_is_answered_with_the_one_spoken(wire, header):
    wire.send(header)
    assert wire.read_exactly(8) == HEADER
    assert wire.read_exactly(1) is None


def test_start_names_version_mechanisms_and_locale(wire):
    start = wire.start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.decode().split())
    assert start.locales == b"en_US"


def test_server_properties_hold_what_clients_look_for(wire):
    properties = wire.start().server_properties
    assert {"product", "version", "platform", "copyright", "information", "cluster_name"} <= set(properties)
    for capability in CAPABILITIES:
        assert properties["capabilities"][capability] is True, capability


def test_header_may_come_byte_by_byte(wire):
    for byte in HEADER:
        wire.send(bytes([byte]))
        time.sleep(0.005)
    wire.expect(spec.Connection.Start)


def test_a_frame_may_come_in_pieces(wire):
    wire.open()
    opening = b"\x01\x00\x01\x00\x00\x00\x05\x00\x14\x00\x0a\x00\xce"
    for byte in opening:
        wire.send(bytes([byte]))
        time.sleep(0.005)
    wire.expect(spec.Channel.OpenOk)


def test_many_frames_may_come_in_one_packet(wire):
    wire.open()
    wire.send(b"".join(struct.pack(">BHI", 1, n, 5) + b"\x00\x14\x00\x0a\x00\xce" for n in range(1, 51)))
    assert {wire.next_frame().channel for _ in range(50)} == set(range(1, 51))


# Logging in


def test_plain_logs_in(wire):
    wire.start()
    wire.start_ok("PLAIN", f"\0{wire.user}\0{wire.password}".encode())
    wire.expect(spec.Connection.Tune)


def test_amqplain_logs_in(wire):
    wire.start()
    fields = table(("LOGIN", b"S", longstr(wire.user)), ("PASSWORD", b"S", longstr(wire.password)))
    # The response is the table's content: its length is that of the long string around it.
    wire.start_ok("AMQPLAIN", fields[4:])
    wire.expect(spec.Connection.Tune)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_wrong_password_closes_with_403_for_a_client_that_can_take_it(wire, mechanism):
    wire.start()
    if mechanism == "PLAIN":
        response = f"\0{wire.user}\0wrong".encode()
    else:
        response = table(("LOGIN", b"S", longstr(wire.user)), ("PASSWORD", b"S", longstr("wrong")))[4:]
    wire.start_ok(mechanism, response, capabilities=FAILURE_CLOSE)
    close = wire.expect_close(
        403,
        f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile.",
    )
    assert (close.class_id, close.method_id) == (0, 0)
    wire.expect_eof()


def test_wrong_password_just_ends_for_a_client_that_cannot(wire):
    wire.start()
    wire.start_ok("PLAIN", f"\0{wire.user}\0wrong".encode())
    wire.expect_eof(8)


def test_unknown_user_is_told_the_same_as_wrong_password(wire):
    wire.start()
    wire.start_ok("PLAIN", b"\0nobody-of-that-name\0guest", capabilities=FAILURE_CLOSE)
    wire.expect_close(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
    )


def test_a_client_reports_wrong_password_as_authentication_error(connect):
    with pytest.raises(ProbableAuthenticationError):
        connect(credentials=pika.PlainCredentials("guest", "wrong"))


def test_a_login_that_makes_no_sense_ends_the_connection(url):
    # RabbitMQ waits three seconds and closes the socket; to name 403, 502 or 503 first is as good.
    logins = [("FOO", b""), ("PLAIN", b"neither user nor password"), ("AMQPLAIN", b"")]
    wires = [Wire(url) for _ in logins]
    for wire, (mechanism, response) in zip(wires, logins):
        wire.start()
        wire.start_ok(mechanism, response, capabilities=FAILURE_CLOSE)
    for wire, login in zip(wires, logins):
        found = wire.next_frame(8)
        assert found is None or found.method().reply_code in (403, 502, 503), login
        wire.socket.close()


# Tuning


def test_tune_offers_rabbitmqs_defaults(wire):
    tune = wire.log_in()
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


def test_lower_limits_are_accepted(wire):
    wire.open(channel_max=10, frame_max=4096, heartbeat=0).open_channel()


def test_limits_outside_what_was_offered_end_the_connection(url):
    # RabbitMQ waits three seconds and closes the socket; to name 530 first is as good. Zero means "no limit".
    limits = [
        {"frame_max": 1000},
        {"frame_max": 1_000_000},
        {"frame_max": 0},
        {"channel_max": 65535},
        {"channel_max": 0},
    ]
    wires = [Wire(url) for _ in limits]
    for wire, asked in zip(wires, limits):
        wire.log_in()
        wire.tune_ok(**asked)
    for wire, asked in zip(wires, limits):
        found = wire.next_frame(8)
        assert found is None or found.method().reply_code == 530, asked
        wire.socket.close()


def test_no_more_channels_than_channel_max(wire):
    wire.open(channel_max=2).open_channel(1).open_channel(2)
    wire.send_method(3, spec.Channel.Open())
    wire.expect_close(
        530, "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    )
    wire.expect_eof()


def test_a_closed_channel_makes_room(wire):
    wire.open(channel_max=1).open_channel(1)
    wire.call(1, spec.Channel.Close(200, "bye", 0, 0), spec.Channel.CloseOk)
    wire.open_channel(1)


def test_frames_sent_keep_to_frame_max(wire, channel, queue):
    channel.basic_publish("", queue, b"x" * 20_000)
    round_trip(channel)
    wire.open(frame_max=4096).open_channel()
    wire.call(1, spec.Basic.Get(queue=queue, no_ack=True), spec.Basic.GetOk)
    _, body, frames = wire.read_content()
    assert body == b"x" * 20_000
    # The payload of a frame is at most frame_max less the eight bytes around it.
    assert frames == -(-20_000 // (4096 - 8))


# Opening


def test_open_answers_and_channels_work(wire):
    wire.open().open_channel().open_channel(2)


def test_unknown_vhost_closes_with_530(wire):
    wire.log_in()
    wire.tune_ok()
    wire.send_method(0, spec.Connection.Open(virtual_host="no-such-vhost"))
    close = wire.expect_close(530, "NOT_ALLOWED - vhost no-such-vhost not found")
    assert (close.class_id, close.method_id) == (10, 40)
    wire.expect_eof()


def test_the_client_may_close(wire):
    wire.open().open_channel()
    wire.call(0, spec.Connection.Close(200, "bye", 0, 0), spec.Connection.CloseOk)


def test_frames_after_the_clients_close_are_ignored(wire, channel, queue):
    wire.open().open_channel()
    wire.send_method(0, spec.Connection.Close(200, "bye", 0, 0))
    wire.send(wire.publish_bytes(1, "", queue, b"too late"))
    wire.expect(spec.Connection.CloseOk)
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_client_may_go_on_writing_after_close_ok(wire):
    wire.open().open_channel()
    wire.call(0, spec.Connection.Close(200, "bye", 0, 0), spec.Connection.CloseOk)
    # A reset would show at the second write or later.
    for _ in range(10):
        wire.send(b"x" * 1000)
        time.sleep(0.01)


def test_client_properties_may_hold_anything(wire):
    wire.start()
    wire.start_ok(
        client_properties={
            "product": "x",
            "nested": {"list": [1, "two", {"three": 3}]},
            "connection_name": "me",
        }
    )
    wire.expect(spec.Connection.Tune)


# Heartbeats


def test_heartbeats_are_sent_at_half_the_interval_or_better(wire):
    wire.open(heartbeat=2)
    began = time.monotonic()
    for _ in range(3):
        found = wire.read_frame()
        assert (found.kind, found.channel, found.payload) == (HEARTBEAT, 0, b"")
        wire.send_frame(HEARTBEAT, 0, b"")
    # One for each whole interval would take six.
    assert time.monotonic() - began < 5.9


def test_a_silent_client_is_dropped_within_a_few_intervals(wire):
    # RabbitMQ takes three: it counts two whole intervals without a byte.
    wire.open(heartbeat=1)
    began = time.monotonic()
    wire.expect_eof(15)
    assert 0.9 < time.monotonic() - began


def test_any_traffic_counts_as_a_heartbeat(wire):
    wire.open(heartbeat=1).open_channel()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        wire.call(1, spec.Basic.Qos(), spec.Basic.QosOk)
        time.sleep(0.3)


def test_no_heartbeats_when_the_client_asks_for_none(wire):
    wire.open(heartbeat=0)
    with pytest.raises(TimeoutError):
        wire.read_frame(2.5)


# Secrets


def test_update_secret_is_answered(wire):
    wire.open()
    wire.send_frame(METHOD, 0, struct.pack(">HH", 10, 70) + longstr("new secret") + shortstr("it expired"))
    answer = wire.next_frame()
    assert struct.unpack(">HH", answer.payload) == (10, 71)
    wire.open_channel()


# Channels


def test_channel_numbers_may_be_any_up_to_channel_max(wire):
    wire.open().open_channel(2047).open_channel(1).open_channel(1000)


def test_channel_flow_true_is_answered(wire):
    wire.open().open_channel()
    assert wire.call(1, spec.Channel.Flow(active=True), spec.Channel.FlowOk).active is True


def test_access_request_of_old_clients_is_answered(wire):
    wire.open().open_channel()
    wire.send_frame(METHOD, 1, struct.pack(">HH", 30, 10) + shortstr("/data") + b"\x1f")
    answer = wire.next_frame()
    assert struct.unpack(">HHH", answer.payload) == (30, 11, 1)


def test_after_a_channel_error_frames_are_ignored_until_close_ok(wire, name):
    wire.open().open_channel()
    missing = name("missing")
    wire.send_method(1, spec.Queue.Declare(queue=missing, passive=True))
    wire.send_method(1, spec.Queue.Declare(queue=missing, durable=True))
    close = wire.expect(spec.Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
    wire.send_method(1, spec.Queue.Declare(queue=missing, durable=True))
    wire.send_method(1, spec.Channel.CloseOk())
    # The number can be used again at once, and none of the declares was done.
    wire.open_channel(1)
    wire.send_method(1, spec.Queue.Declare(queue=missing, passive=True))
    assert wire.expect(spec.Channel.Close).reply_code == 404


@pytest.mark.parametrize(
    "method",
    [
        lambda one, two, queue: spec.Exchange.Declare(exchange=one, type="direct", nowait=True, arguments={}),
        lambda one, two, queue: spec.Exchange.Bind(destination=one, source=two, nowait=True, arguments={}),
        lambda one, two, queue: spec.Exchange.Unbind(destination=one, source=two, nowait=True, arguments={}),
        lambda one, two, queue: spec.Exchange.Delete(exchange=one, nowait=True),
        lambda one, two, queue: spec.Queue.Declare(queue=queue, durable=True, nowait=True, arguments={}),
        lambda one, two, queue: spec.Queue.Bind(queue=queue, exchange=one, nowait=True, arguments={}),
        lambda one, two, queue: spec.Queue.Purge(queue=queue, nowait=True),
        lambda one, two, queue: spec.Queue.Delete(queue=queue, nowait=True),
        lambda one, two, queue: spec.Basic.Consume(queue=queue, nowait=True, arguments={}),
        lambda one, two, queue: spec.Confirm.Select(nowait=True),
    ],
    ids="x.declare x.bind x.unbind x.delete q.declare q.bind q.purge q.delete consume confirm".split(),
)
def test_what_is_asked_without_waiting_has_no_answer(wire, channel, name, queue, method):
    one, two = name("x"), name("x")
    channel.exchange_declare(one, "direct")
    channel.exchange_declare(two, "direct")
    wire.open().open_channel()
    wire.send_method(1, method(one, two, queue))
    wire.call(1, spec.Basic.Qos(), spec.Basic.QosOk)


def test_a_text_that_is_too_long_ends_with_dots(wire):
    wire.open().open_channel()
    wire.send_method(1, spec.Queue.Declare(queue="y" * 255, passive=True, arguments={}))
    text = wire.expect(spec.Channel.Close).reply_text
    assert text == ("NOT_FOUND - no queue '" + "y" * 255)[:252] + "..."


def test_a_channel_error_leaves_other_channels_alone(wire, name):
    wire.open().open_channel(1).open_channel(2)
    wire.send_method(1, spec.Queue.Declare(queue=name("missing"), passive=True))
    wire.expect(spec.Channel.Close)
    wire.send_method(1, spec.Channel.CloseOk())
    wire.call(2, spec.Basic.Qos(), spec.Basic.QosOk)


def test_a_connection_error_ends_every_channel_and_the_socket(wire):
    wire.open().open_channel(1).open_channel(2)
    wire.send_method(1, spec.Channel.Open())
    wire.expect_close(504)
    wire.expect_eof()


def test_many_connections_at_once(url):
    wires = [Wire(url).open().open_channel() for _ in range(50)]
    for one in wires:
        one.call(1, spec.Basic.Qos(), spec.Basic.QosOk)
        one.socket.close()


def test_a_connection_cut_in_the_middle_of_a_frame_harms_nobody(url, channel, queue):
    with Wire(url) as wire:
        wire.open().open_channel()
        wire.send(wire.publish_bytes(1, "", queue, b"half a message")[:-5])
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
