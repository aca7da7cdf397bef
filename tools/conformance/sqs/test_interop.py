"""The same queue from two sides: boto3 and pika. `docs/interop.md` has the table."""

import base64
import json
import os
import time
import uuid

import pika
import pytest
from conftest import attributes_of, receive, refused

AMQP_URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")


@pytest.fixture
def channel():
    connection = pika.BlockingConnection(pika.URLParameters(AMQP_URL))
    yield connection.channel()
    connection.close()


@pytest.fixture
def queue(queues):
    return queues()


def name_of(url):
    return url.rsplit("/", 1)[1]


def get(channel, name):
    """The next message, as soon as there is one."""
    for _ in range(200):
        method, properties, body = channel.basic_get(name)
        if method:
            return method, properties, body
        time.sleep(0.05)
    raise AssertionError(f"nothing came to {name}")


def test_attributes_become_headers(sqs, queue, channel):
    attributes = {
        "text": {"DataType": "String", "StringValue": "grüße"},
        "whole": {"DataType": "Number", "StringValue": "42"},
        "real": {"DataType": "Number.price", "StringValue": "1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sqs.send_message(QueueUrl=queue, MessageBody="körper", MessageAttributes=attributes)
    method, properties, body = get(channel, name_of(queue))
    assert body == "körper".encode()
    headers = properties.headers
    assert headers["text"] == "grüße" and headers["whole"] == 42 and headers["real"] == "1.50"
    assert headers["bytes"] == b"\x00\xff" and headers["AWS.Type.real"] == "Number.price"
    assert properties.delivery_mode == 2
    assert (method.exchange, method.routing_key) == ("", name_of(queue))
    channel.basic_ack(method.delivery_tag)
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessages"] == "0"


def test_headers_become_attributes(sqs, queue, channel):
    headers = {"text": "grüße", "whole": -42, "bytes": b"\x00\xff", "truth": True}
    properties = pika.BasicProperties(headers=headers, delivery_mode=2)
    channel.confirm_delivery()
    channel.basic_publish("", name_of(queue), "körper".encode(), properties)
    [got] = receive(sqs, queue, MessageAttributeNames=["All"], AttributeNames=["All"])
    assert got["Body"] == "körper"
    assert got["MessageAttributes"] == {
        "text": {"DataType": "String", "StringValue": "grüße"},
        "whole": {"DataType": "Number", "StringValue": "-42"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "truth": {"DataType": "String", "StringValue": "true"},
    }
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
    assert channel.queue_declare(name_of(queue), passive=True).method.message_count == 0


def test_a_body_that_is_no_text_comes_as_base64(sqs, queue, channel):
    for body in (b"\xff\x00\x01", "steuer\u0001zeichen".encode()):
        channel.basic_publish("", name_of(queue), body, pika.BasicProperties(delivery_mode=2))
        [got] = receive(sqs, queue, MessageAttributeNames=["All"])
        assert base64.b64decode(got["Body"]) == body
        assert got["MessageAttributes"]["Content-Transfer-Encoding"]["StringValue"] == "base64"


def test_a_queue_that_was_declared_by_amqp_is_a_queue_like_any_other(sqs, queues, channel):
    name = f"declared.{uuid.uuid4().hex[:12]}"
    channel.queue_declare(name, durable=True)
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    queues.made.append(url)
    assert url in sqs.list_queues(QueueNamePrefix="declared.")["QueueUrls"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert get(channel, name)[2] == b"x"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
    assert attributes_of(sqs, url)["VisibilityTimeout"] == "7"
    channel.queue_declare(name, durable=True)


def test_a_queue_of_sqs_can_be_declared_by_amqp(sqs, queue, channel):
    channel.queue_declare(name_of(queue), durable=True)
    assert sqs.create_queue(QueueName=name_of(queue))["QueueUrl"] == queue


def test_a_message_is_with_one_consumer_whatever_it_speaks(sqs, queue, channel):
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [got] = receive(sqs, queue, VisibilityTimeout=1)
    assert channel.basic_get(name_of(queue))[0] is None
    method, _, _ = get(channel, name_of(queue))
    assert method.redelivered
    assert receive(sqs, queue, wait=2) == [], "no lease ends while a channel has the message"
    channel.basic_nack(method.delivery_tag, requeue=True)
    [again] = receive(sqs, queue, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"]["ApproximateReceiveCount"] == "3"
    assert again["MessageId"] == got["MessageId"]


def test_failures_on_either_side_count_towards_the_dead_letter_queue(sqs, queues, channel):
    dead = queues()
    policy = json.dumps({"deadLetterTargetArn": queues.arn(dead), "maxReceiveCount": 2})
    queue = queues(RedrivePolicy=policy)
    headers = {"n": 7}
    channel.basic_publish("", name_of(queue), b"bad", pika.BasicProperties(headers=headers, delivery_mode=2))
    [got] = receive(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    method, _, _ = get(channel, name_of(queue))
    channel.basic_nack(method.delivery_tag, requeue=True)
    [letter] = receive(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert letter["Body"] == "bad" and letter["MessageAttributes"]["n"]["StringValue"] == "7"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == queues.arn(queue)


def test_what_sqs_knows_of_a_message_travels_in_headers(sqs, queues, channel):
    queue = queues(fifo=True)
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    _, properties, _ = get(channel, name_of(queue))
    assert properties.headers["AWS.MessageDeduplicationId"] == "d"


def test_a_fanout_reaches_sqs_queues(sqs, queues, channel):
    exchange = f"conf.{uuid.uuid4().hex[:12]}"
    channel.exchange_declare(exchange, "fanout")
    urls = [queues(), queues()]
    for url in urls:
        channel.queue_bind(name_of(url), exchange)
    channel.basic_publish(exchange, "key", b"news", pika.BasicProperties(delivery_mode=2))
    assert [receive(sqs, url)[0]["Body"] for url in urls] == ["news", "news"]
    channel.exchange_delete(exchange)
