"""Queues: declaring, arguments and their errors, exclusiveness, deleting, purging, names."""

import pytest
from pika import spec
from wire import METHOD, shortstr, table
from words import (
    Inbox,
    assert_empty,
    bodies,
    channel_closes,
    connection_closes,
    consumers,
    depth,
    eventually,
    fetch,
    publish,
    round_trip,
)

LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the original declaration."
)
QUORUM = {"x-queue-type": "quorum"}


# Declaring


def test_declare_answers_with_name_and_counts(channel, name):
    queue = name()
    answer = channel.queue_declare(queue, durable=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 0, 0)


def test_counts_are_of_ready_messages_and_of_consumers(channel, connection, queue):
    for number in range(5):
        publish(channel, queue, str(number))
    fetch(channel, queue, auto_ack=False)
    other = connection.channel()
    other.basic_qos(prefetch_count=1)
    inbox = Inbox(other, queue)
    inbox.wait(1)
    eventually(lambda: depth(channel, queue) == 3)
    answer = channel.queue_declare(queue, durable=True).method
    assert (answer.message_count, answer.consumer_count) == (3, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 60000},
        {"x-message-ttl": 0},
        {"x-expires": 60000},
        {"x-max-length": 10},
        {"x-max-length": 0},
        {"x-max-length-bytes": 1000},
        {"x-overflow": "drop-head"},
        {"x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-dead-letter-exchange": ""},
        {"x-dead-letter-exchange": "not-there-yet", "x-dead-letter-routing-key": "key"},
        {"x-max-priority": 0},
        {"x-max-priority": 255},
        {"x-single-active-consumer": True},
        {"x-queue-type": "classic"},
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": "default"},
        {"x-queue-version": 2},
        {"x-queue-master-locator": "min-masters"},
        {"x-consumer-timeout": 60000},
        {"x-something-of-ours": 1},
        QUORUM,
        QUORUM | {"x-delivery-limit": 5},
        QUORUM
        | {"x-message-ttl": 60000, "x-expires": 60000, "x-max-length": 5, "x-overflow": "reject-publish"},
        QUORUM | {"x-single-active-consumer": True, "x-dead-letter-exchange": "amq.fanout"},
        QUORUM | {"x-quorum-initial-group-size": 1},
        QUORUM | {"x-max-in-memory-length": 1, "x-max-in-memory-bytes": 1},
        QUORUM | {"x-overflow": "reject-publish-dlx"},
        QUORUM | {"x-delivery-limit": -1},
        QUORUM | {"x-delivery-limit": "none"},
        QUORUM | {"x-dead-letter-strategy": "at-least-once", "x-queue-leader-locator": "balanced"},
    ],
    ids=str,
)
def test_accepted_arguments(channel, name, arguments):
    queue = name()
    for _ in range(2):
        channel.queue_declare(queue, durable=True, arguments=arguments)
    publish(channel, queue)


@pytest.mark.parametrize(
    ("arguments", "key", "reason"),
    [
        ({"x-message-ttl": -1}, "x-message-ttl", "{value_negative,-1}"),
        ({"x-message-ttl": "a"}, "x-message-ttl", '"expected integer, got longstr"'),
        ({"x-message-ttl": 1 << 40}, "x-message-ttl", "{value_too_large,1099511627776}"),
        ({"x-expires": 0}, "x-expires", "{value_zero,0}"),
        ({"x-expires": -5}, "x-expires", "{value_negative,-5}"),
        ({"x-expires": "a"}, "x-expires", '"expected integer, got longstr"'),
        ({"x-expires": 1 << 40}, "x-expires", "{value_too_large,1099511627776}"),
        ({"x-max-length": -1}, "x-max-length", "{value_negative,-1}"),
        ({"x-max-length": "a"}, "x-max-length", '"expected integer, got longstr"'),
        ({"x-max-length-bytes": -1}, "x-max-length-bytes", "{value_negative,-1}"),
        ({"x-max-length-bytes": "a"}, "x-max-length-bytes", '"expected integer, got longstr"'),
        ({"x-overflow": "nope"}, "x-overflow", "invalid_overflow"),
        ({"x-overflow": 5}, "x-overflow", "{unacceptable_type,signedint}"),
        ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"),
        (
            {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": 5},
            "x-dead-letter-routing-key",
            "{unacceptable_type,signedint}",
        ),
        ({"x-max-priority": -1}, "x-max-priority", "{value_negative,-1}"),
        ({"x-max-priority": 256}, "x-max-priority", "{max_value_exceeded,256}"),
        ({"x-max-priority": "a"}, "x-max-priority", '"expected integer, got longstr"'),
        ({"x-single-active-consumer": "yes"}, "x-single-active-consumer", "{unacceptable_type,longstr}"),
        ({"x-queue-type": "nope"}, "x-queue-type", "\"unsupported queue type 'nope'\""),
        ({"x-queue-type": 5}, "x-queue-type", "{unacceptable_type,signedint}"),
        ({"x-queue-mode": "nope"}, "x-queue-mode", "\"unsupported queue mode 'nope'\""),
        ({"x-queue-mode": 5}, "x-queue-mode", "{unacceptable_type,signedint}"),
        ({"x-queue-version": 9}, "x-queue-version", "\"unsupported queue version '9'\""),
        (QUORUM | {"x-overflow": "nope"}, "x-overflow", "invalid_overflow"),
        (QUORUM | {"x-dead-letter-strategy": "nope"}, "x-dead-letter-strategy", "invalid_dlx_strategy"),
        (QUORUM | {"x-queue-leader-locator": "nope"}, "x-queue-leader-locator", "invalid_queue_locator_arg"),
    ],
    ids=str,
)
def test_wrong_arguments_are_406(channel, name, arguments, key, reason):
    queue = name()
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{queue}' in vhost '/': {reason}"
    with channel_closes(406, text):
        channel.queue_declare(queue, durable=True, arguments=arguments)


def test_dead_letter_exchange_of_another_type_is_406(channel, name):
    queue = name()
    with channel_closes(
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' "
        f"in queue '{queue}' in vhost '/'",
    ):
        channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": 5})


@pytest.mark.parametrize(
    ("arguments", "key", "kind"),
    [
        *[
            ({key: value}, key, "rabbit_classic_queue")
            for key, value in [
                ("x-delivery-limit", 3),
                ("x-delivery-limit", "any"),
                ("x-quorum-initial-group-size", 1),
                ("x-max-in-memory-length", 1),
                ("x-max-in-memory-bytes", 1),
                ("x-dead-letter-strategy", "at-least-once"),
                ("x-queue-leader-locator", "balanced"),
                ("x-max-age", "1h"),
                ("x-stream-max-segment-size-bytes", 1),
            ]
        ],
        *[
            (QUORUM | {key: value}, key, "rabbit_quorum_queue")
            for key, value in [
                ("x-max-priority", 5),
                ("x-queue-mode", "lazy"),
                ("x-queue-version", 1),
                ("x-queue-master-locator", "min-masters"),
                ("x-max-age", "1h"),
                ("x-stream-max-segment-size-bytes", 1),
            ]
        ],
    ],
    ids=str,
)
def test_arguments_of_another_queue_type_are_406(channel, name, arguments, key, kind):
    queue = name()
    with channel_closes(
        406,
        f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{queue}' in vhost '/' of queue type {kind}",
    ):
        channel.queue_declare(queue, durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": False, "exclusive": True}, "exclusive-owner"),
        ({"durable": False, "exclusive": True, "auto_delete": True}, "auto-delete"),
    ],
    ids=str,
)
def test_a_quorum_queue_is_durable_and_shared(channel, name, properties, text):
    queue = name()
    with channel_closes(
        406, f"PRECONDITION_FAILED - invalid property '{text}' for queue '{queue}' in vhost '/'"
    ):
        channel.queue_declare(queue, arguments=QUORUM, **properties)


def test_the_server_names_no_quorum_queue(channel):
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    with channel_closes(406, text):
        channel.queue_declare("", durable=True, arguments=QUORUM)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"durable": False}, "'durable' for {q}: received 'false' but current is 'true'"),
        ({}, {"auto_delete": True}, "'auto_delete' for {q}: received 'true' but current is 'false'"),
        (
            {"x-message-ttl": 1000},
            {"x-message-ttl": 2000},
            "'x-message-ttl' for {q}: received '2000' but current is '1000'",
        ),
        (
            {"x-message-ttl": 1000},
            {},
            "'x-message-ttl' for {q}: received none but current is the value '1000' of type 'signedint'",
        ),
        (
            {},
            {"x-message-ttl": 1000},
            "'x-message-ttl' for {q}: received the value '1000' of type 'signedint' but current is none",
        ),
        ({"x-max-length": 5}, {"x-max-length": 6}, "'x-max-length' for {q}: received '6' but current is '5'"),
        (
            {"x-max-length-bytes": 5},
            {},
            "'x-max-length-bytes' for {q}: received none but current is the value '5' of type 'signedint'",
        ),
        (
            {"x-expires": 90000},
            {"x-expires": 80000},
            "'x-expires' for {q}: received '80000' but current is '90000'",
        ),
        (
            {"x-max-priority": 5},
            {"x-max-priority": 6},
            "'x-max-priority' for {q}: received '6' but current is '5'",
        ),
        (
            {"x-dead-letter-exchange": "a"},
            {"x-dead-letter-exchange": "b"},
            "'x-dead-letter-exchange' for {q}: received 'b' but current is 'a'",
        ),
        (
            {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "k"},
            {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "l"},
            "'x-dead-letter-routing-key' for {q}: received 'l' but current is 'k'",
        ),
        (
            {"x-overflow": "drop-head"},
            {"x-overflow": "reject-publish"},
            "'x-overflow' for {q}: received 'reject-publish' but current is 'drop-head'",
        ),
        (
            {"x-overflow": "drop-head"},
            {},
            "'x-overflow' for {q}: received none but current is the value 'drop-head' of type 'longstr'",
        ),
        (
            {"x-queue-mode": "lazy"},
            {},
            "'x-queue-mode' for {q}: received none but current is the value 'lazy' of type 'longstr'",
        ),
        (
            {"x-single-active-consumer": True},
            {},
            "'x-single-active-consumer' for {q}: received none but current is the value 'true' of type 'bool'",
        ),
        (
            {"x-queue-type": "classic"},
            {"x-queue-type": "quorum"},
            "'x-queue-type' for {q}: received 'quorum' but current is 'classic'",
        ),
    ],
    ids=str,
)
def test_redeclaring_with_other_properties_is_406(channel, name, first, second, text):
    queue = name()
    channel.queue_declare(queue, **declaration(first))
    text = text.format(q=f"queue '{queue}' in vhost '/'")
    with channel_closes(406, f"PRECONDITION_FAILED - inequivalent arg {text}"):
        channel.queue_declare(queue, **declaration(second))


def declaration(case):
    """Keywords of a durable declare: what starts with x- is an argument."""
    arguments = {key: value for key, value in case.items() if key.startswith("x-")}
    properties = {key: value for key, value in case.items() if not key.startswith("x-")}
    return {"durable": True, "arguments": arguments, **properties}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"x-queue-type": "classic"}),
        ({"x-queue-type": "classic"}, {}),
        ({"x-something-of-ours": 1}, {"x-something-of-ours": 2}),
        ({"x-something-of-ours": 1}, {}),
    ],
    ids=str,
)
def test_redeclaring_with_what_makes_no_difference(channel, name, first, second):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments=first)
    channel.queue_declare(queue, durable=True, arguments=second)


def test_integers_of_another_width_are_the_same(wire, name):
    queue = name()
    wire.open().open_channel()
    for letter, value in [(b"I", b"\0\0\x03\xe8"), (b"l", b"\0\0\0\0\0\0\x03\xe8"), (b"s", b"\x03\xe8")]:
        declare = b"\0\x32\0\x0a\0\0" + shortstr(queue) + b"\x02" + table(("x-message-ttl", letter, value))
        wire.send_frame(METHOD, 1, declare)
        wire.expect(spec.Queue.DeclareOk)


def test_passive_declare_of_what_is_not_there_is_404(channel, name):
    queue = name()
    with channel_closes(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, passive=True)


def test_passive_declare_does_not_compare(channel, queue):
    channel.queue_declare(queue, passive=True, arguments={"x-message-ttl": 5})


def test_declare_without_waiting(wire, channel, name):
    queue = name()
    wire.open().open_channel()
    wire.send_method(1, spec.Queue.Declare(queue=queue, durable=True, nowait=True))
    wire.call(1, spec.Basic.Qos(), spec.Basic.QosOk)
    assert depth(channel, queue) == 0


# Names


def test_the_server_names_a_queue(channel):
    one = channel.queue_declare("", exclusive=True).method.queue
    two = channel.queue_declare("", exclusive=True).method.queue
    assert one.startswith("amq.gen-") and two.startswith("amq.gen-") and one != two
    assert len(one) == len("amq.gen-") + 22


def test_the_empty_name_means_the_last_declared(channel, name):
    queue = name()
    channel.queue_declare(name(), durable=True)
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, "1")
    publish(channel, queue, "2")
    assert fetch(channel, "")[2] == b"1"
    assert channel.queue_purge("").method.message_count == 1
    Inbox(channel, "")
    assert consumers(channel, queue) == 1
    channel.queue_delete("")
    with channel_closes(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, passive=True)


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel: channel.basic_get(""),
        lambda channel: channel.basic_consume("", print),
        lambda channel: channel.queue_purge(""),
        lambda channel: channel.queue_delete(""),
        lambda channel: channel.queue_bind("", "amq.direct", "key"),
    ],
    ids=["get", "consume", "purge", "delete", "bind"],
)
def test_the_empty_name_before_any_declare_is_404(channel, operation):
    with channel_closes(404, "NOT_FOUND - no previously declared queue"):
        operation(channel)


def test_line_ends_are_taken_out_of_names(wire, channel, name):
    queue = name()
    wire.open().open_channel()
    with_ends = f"{queue[:8]}\r\n{queue[8:]}"
    answer = wire.call(1, spec.Queue.Declare(queue=with_ends, durable=True, arguments={}), spec.Queue.DeclareOk)
    assert answer.queue == queue
    channel.queue_declare(queue, passive=True)


def test_reserved_name_is_403(channel):
    with channel_closes(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.queue_declare("amq.mine", durable=True)


def test_reserved_name_may_be_asked_for(channel):
    with channel_closes(404, "NOT_FOUND - no queue 'amq.mine' in vhost '/'"):
        channel.queue_declare("amq.mine", passive=True)


def test_names_of_255_bytes_and_any_utf8(channel, name):
    for queue in [name().ljust(255, "x"), name() + " über / 队列 'q'"]:
        channel.queue_declare(queue, exclusive=True)
        publish(channel, queue, queue)
        assert bodies(channel, queue, 1) == [queue]


# Exclusive and auto-delete


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel, queue: channel.queue_declare(queue, exclusive=True),
        lambda channel, queue: channel.queue_declare(queue),
        lambda channel, queue: channel.queue_declare(queue, passive=True),
        lambda channel, queue: channel.basic_consume(queue, print),
        lambda channel, queue: channel.basic_get(queue),
        lambda channel, queue: channel.queue_purge(queue),
        lambda channel, queue: channel.queue_delete(queue),
        lambda channel, queue: channel.queue_bind(queue, "amq.direct", "key"),
    ],
    ids=["exclusive", "declare", "passive", "consume", "get", "purge", "delete", "bind"],
)
def test_an_exclusive_queue_is_405_for_others(channel, connect, name, operation):
    queue = name()
    channel.queue_declare(queue, exclusive=True)
    with channel_closes(405, LOCKED.format(queue)):
        operation(connect().channel(), queue)


def test_others_may_publish_to_an_exclusive_queue(channel, connect, name):
    queue = name()
    channel.queue_declare(queue, exclusive=True)
    publish(connect().channel(), queue, "hello")
    assert bodies(channel, queue, 1) == ["hello"]


def test_all_channels_of_the_owner_may_use_it(connection, channel, name):
    queue = name()
    channel.queue_declare(queue, exclusive=True)
    assert depth(connection.channel(), queue) == 0


@pytest.mark.parametrize("first", [True, False])
def test_exclusive_does_not_match_shared(channel, name, first):
    queue = name()
    channel.queue_declare(queue, exclusive=first)
    with channel_closes(405, LOCKED.format(queue)):
        channel.queue_declare(queue, exclusive=not first)


@pytest.mark.parametrize("first", [True, False])
def test_the_durability_of_an_exclusive_queue_is_not_compared(channel, name, first):
    queue = name()
    channel.queue_declare(queue, exclusive=True, durable=first)
    channel.queue_declare(queue, exclusive=True, durable=not first)


def test_an_exclusive_queue_ends_with_its_connection(channel, connect, name):
    queue = name()
    owner = connect()
    owner.channel().queue_declare(queue, exclusive=True, durable=True)
    owner.close()
    eventually(lambda: gone(channel.connection, queue))


def gone(connection, queue):
    """Whether there is no such queue."""
    try:
        channel = connection.channel()
        channel.queue_declare(queue, passive=True)
        channel.close()
        return False
    except Exception as error:
        return error.reply_code == 404


def test_an_auto_delete_queue_waits_for_its_first_consumer_and_goes_with_its_last(connection, name):
    queue = name()
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    one, two = Inbox(channel, queue), Inbox(channel, queue)
    channel.basic_cancel(one.tag)
    assert consumers(channel, queue) == 1
    channel.basic_cancel(two.tag)
    eventually(lambda: gone(connection, queue))


def test_an_auto_delete_queue_is_gone_when_the_cancel_is_answered(connection, name):
    for _ in range(20):
        queue, channel = name(), connection.channel()
        channel.queue_declare(queue, auto_delete=True)
        channel.basic_cancel(channel.basic_consume(queue, lambda *_: None))
        with channel_closes(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
            channel.queue_declare(queue, passive=True)


def test_an_auto_delete_queue_goes_with_its_consumers_channel(connection, name):
    queue = name()
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    Inbox(channel, queue)
    channel.close()
    eventually(lambda: gone(connection, queue))


def test_basic_get_is_no_consumer_for_auto_delete(connection, name):
    queue = name()
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    assert_empty(channel, queue)
    channel.close()
    assert depth(connection.channel(), queue) == 0


# Deleting and purging


def test_delete_answers_with_the_count_of_messages(channel, queue):
    for _ in range(3):
        publish(channel, queue)
    fetch(channel, queue, auto_ack=False)
    eventually(lambda: depth(channel, queue) == 2)
    assert channel.queue_delete(queue).method.message_count == 2


def test_deleting_what_is_not_there_is_fine(channel, name):
    assert channel.queue_delete(name()).method.message_count == 0


def test_if_unused_refuses_with_a_consumer(connection, channel, queue):
    Inbox(connection.channel(), queue)
    with channel_closes(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        channel.queue_delete(queue, if_unused=True)


def test_if_empty_refuses_with_a_message(connection, channel, queue):
    publish(channel, queue)
    with channel_closes(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)
    connection.channel().queue_delete(queue, if_unused=True)


def test_purge_takes_ready_messages_only(channel, queue):
    for number in range(4):
        publish(channel, queue, str(number))
    method, _, _ = fetch(channel, queue, auto_ack=False)
    assert channel.queue_purge(queue).method.message_count == 3
    assert_empty(channel, queue)
    channel.basic_reject(method.delivery_tag, requeue=True)
    assert bodies(channel, queue, 1) == ["0"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel, queue: channel.queue_purge(queue),
        lambda channel, queue: channel.basic_get(queue),
        lambda channel, queue: channel.basic_consume(queue, print),
    ],
    ids=["purge", "get", "consume"],
)
def test_using_what_is_not_there_is_404(channel, name, operation):
    queue = name()
    with channel_closes(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        operation(channel, queue)


def test_a_quorum_queue_refuses_global_qos(channel, name):
    queue = name()
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    with connection_closes(
        540, f"NOT_IMPLEMENTED - queue '{queue}' in vhost '/' does not support global qos"
    ):
        channel.basic_consume(queue, print)


def test_a_thousand_queues_come_and_go(connect, name):
    channel = connect().channel()
    prefix = name()
    for number in range(1000):
        channel._impl._send_method(spec.Queue.Declare(queue=f"{prefix}.{number}", nowait=True, arguments={}))
    round_trip(channel)
    assert depth(channel, f"{prefix}.999") == 0
    for number in range(1000):
        channel._impl._send_method(spec.Queue.Delete(queue=f"{prefix}.{number}", nowait=True))
    round_trip(channel)
