"""Direct reply-to: answers without a queue, by the pseudo-queue `amq.rabbitmq.reply-to`."""

import pika
import pytest
from pika import spec
from words import Inbox, channel_closes, eventually, fetch, publish, round_trip

REPLY_TO = "amq.rabbitmq.reply-to"


def test_a_request_and_its_answer(connect, queue):
    client, server = connect().channel(), connect().channel()
    answers = Inbox(client, REPLY_TO, auto_ack=True)
    publish(client, queue, "question", reply_to=REPLY_TO, correlation_id="7")
    _, request, _ = fetch(server, queue)
    assert request.reply_to.startswith(f"{REPLY_TO}.")
    assert request.correlation_id == "7"
    server.basic_publish("", request.reply_to, b"answer", pika.BasicProperties(correlation_id="7"))
    ((method, properties, body),) = answers.wait(1)
    assert (body, properties.correlation_id) == (b"answer", "7")
    assert (method.exchange, method.routing_key, method.redelivered) == ("", request.reply_to, False)
    assert method.consumer_tag == answers.tag


def test_many_answers_to_many_requests(connect, queue):
    client, server = connect().channel(), connect().channel()
    answers = Inbox(client, REPLY_TO, auto_ack=True)
    for number in range(20):
        publish(client, queue, str(number), reply_to=REPLY_TO)
    for _ in range(20):
        _, request, body = fetch(server, queue)
        server.basic_publish("", request.reply_to, body)
    answers.wait(20)
    assert answers.bodies == [str(number) for number in range(20)]
    # An answer has no place in the channel's count of deliveries: its tag is always one.
    assert answers.tags == [1] * 20
    publish(client, queue)
    assert fetch(client, queue)[0].delivery_tag == 1


def test_a_client_may_answer_itself(channel, queue):
    answers = Inbox(channel, REPLY_TO, auto_ack=True)
    publish(channel, queue, "question", reply_to=REPLY_TO)
    _, request, _ = fetch(channel, queue)
    publish(channel, request.reply_to, "answer")
    answers.wait(1)


def test_each_channel_has_its_own_name(connection, queue):
    names = []
    for _ in range(2):
        channel = connection.channel()
        Inbox(channel, REPLY_TO, auto_ack=True)
        publish(channel, queue, reply_to=REPLY_TO)
        names.append(fetch(channel, queue)[1].reply_to)
    assert names[0] != names[1]


def test_the_name_can_be_asked_for_while_the_client_is_there(connect, queue):
    client, server = connect(), connect()
    channel = client.channel()
    Inbox(channel, REPLY_TO, auto_ack=True)
    publish(channel, queue, reply_to=REPLY_TO)
    name = fetch(channel, queue)[1].reply_to
    asked = server.channel().queue_declare(name, passive=True).method
    assert (asked.queue, asked.message_count, asked.consumer_count) == (name, 0, 1)
    client.close()
    eventually(lambda: absent(server, name))


def absent(connection, name):
    try:
        connection.channel().queue_declare(name, passive=True)
        return False
    except Exception as error:
        return error.reply_code == 404


def test_an_answer_to_a_client_that_left_is_returned_if_mandatory(connect, queue):
    client, server = connect(), connect().channel()
    channel = client.channel()
    Inbox(channel, REPLY_TO, auto_ack=True)
    publish(channel, queue, reply_to=REPLY_TO)
    name = fetch(channel, queue)[1].reply_to
    client.close()
    eventually(lambda: absent(connect(), name))
    server.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        server.basic_publish("", name, b"too late", mandatory=True)


def test_cancelling_ends_it(channel, queue):
    answers = Inbox(channel, REPLY_TO, auto_ack=True)
    channel.basic_cancel(answers.tag)
    with channel_closes(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        publish(channel, queue, reply_to=REPLY_TO)
        round_trip(channel)


def test_asking_without_consuming_first_is_406(channel, queue):
    with channel_closes(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        publish(channel, queue, reply_to=REPLY_TO)
        round_trip(channel)


def test_consuming_with_acks_is_406(channel):
    with channel_closes(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        channel.basic_consume(REPLY_TO, print)


def test_consuming_twice_is_406(channel):
    Inbox(channel, REPLY_TO, auto_ack=True)
    with channel_closes(406, "PRECONDITION_FAILED - reply consumer already set"):
        channel.basic_consume(REPLY_TO, print, auto_ack=True)


def test_declaring_it_is_answered(channel):
    for passive in (True, False):
        answer = channel.queue_declare(REPLY_TO, passive=passive).method
        assert (answer.queue, answer.message_count, answer.consumer_count) == (REPLY_TO, 0, 1)


def test_it_is_no_queue_to_get_from_or_bind(connection):
    text = f"NOT_FOUND - no queue '{REPLY_TO}' in vhost '/'"
    with channel_closes(404, text):
        connection.channel().basic_get(REPLY_TO)
    with channel_closes(404, text):
        connection.channel().queue_bind(REPLY_TO, "amq.direct", "key")


def test_a_name_that_nobody_was_given_is_404(channel):
    with channel_closes(404, f"NOT_FOUND - no queue '{REPLY_TO}.made-up' in vhost '/'"):
        channel.queue_declare(f"{REPLY_TO}.made-up", passive=True)


def test_the_consumer_tag_is_answered(wire):
    wire.open().open_channel()
    consume = spec.Basic.Consume(queue=REPLY_TO, consumer_tag="mine", no_ack=True)
    assert wire.call(1, consume, spec.Basic.ConsumeOk).consumer_tag == "mine"
    assert wire.call(1, spec.Basic.Cancel(consumer_tag="mine"), spec.Basic.CancelOk).consumer_tag == "mine"
