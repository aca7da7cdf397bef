"""Strict limits: a broker that refuses what AWS refuses."""

import json
import time

import pika
import pytest
from conftest import Queues, attributes_of, receive, refused, sends

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def strict():
    from conftest import Nexo

    broker = Nexo("--sqs-limits", "strict")
    yield broker.client()
    broker.clean()


@pytest.fixture
def queue(strict, kind):
    queues = Queues(strict)
    yield queues(fifo=kind == "fifo")
    queues.clean()


def test_names_are_short_and_plain(strict):
    for name in ("a.b", "x" * 81, "ü", "", "a/b"):
        with refused("InvalidParameterValue") as said:
            strict.create_queue(QueueName=name)
        assert said.message == "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
    strict.create_queue(QueueName="x" * 80)


@pytest.mark.parametrize(
    "name, low, high",
    [
        ("VisibilityTimeout", 0, 43200),
        ("MessageRetentionPeriod", 60, 1209600),
        ("MaximumMessageSize", 1024, MIB),
        ("DelaySeconds", 0, 900),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("KmsDataKeyReusePeriodSeconds", 60, 86400),
    ],
)
def test_attributes_have_their_ranges(strict, queue, name, low, high):
    change = lambda value: strict.set_queue_attributes(QueueUrl=queue, Attributes={name: str(value)})
    change(low)
    change(high)
    for wrong in (low - 1, high + 1):
        with refused("InvalidAttributeValue", name):
            change(wrong)


def test_a_message_has_a_mebibyte_and_a_batch_too(strict, queue):
    send = lambda body: strict.send_message(QueueUrl=queue, MessageBody=body, **sends(queue))
    send("x" * MIB)
    with refused("InvalidParameterValue", f"Message must be shorter than {MIB} bytes"):
        send("x" * (MIB + 1))
    entries = [{"Id": str(i), "MessageBody": "x" * (MIB // 3), **sends(queue)} for i in range(4)]
    with refused("AWS.SimpleQueueService.BatchRequestTooLong", str(MIB)):
        strict.send_message_batch(QueueUrl=queue, Entries=entries)
    answer = strict.send_message_batch(QueueUrl=queue, Entries=entries[:3])
    assert len(answer["Successful"]) == 3


def test_messages_die_after_a_thousand_receives_at_most(strict, queue, kind):
    target = queue.replace(":", "").rsplit("/", 1)[1]
    for count in ("0", "1001", "many", "-1"):
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:eu-west-1:000000000000:{target}", "maxReceiveCount": count}
        with refused("InvalidParameterValue", f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000"):
            strict.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(policy)})


def test_a_message_has_ten_attributes(strict, queue):
    attributes = lambda count: {f"a{i}": {"DataType": "String", "StringValue": "x"} for i in range(count)}
    strict.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes(10), **sends(queue))
    with refused("InvalidParameterValue", "[11] exceeds the allowed maximum [10]"):
        strict.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes(11), **sends(queue))


def test_times_have_their_limits(strict, queue, kind):
    if kind == "standard":
        with refused("InvalidParameterValue", "DelaySeconds"):
            strict.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=901)
    with refused("InvalidParameterValue") as said:
        strict.receive_message(QueueUrl=queue, WaitTimeSeconds=21)
    assert said.message == "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."
    with refused("InvalidParameterValue", "VisibilityTimeout"):
        strict.receive_message(QueueUrl=queue, VisibilityTimeout=43201)
    strict.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(strict, queue)
    change = lambda seconds: strict.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=seconds
    )
    change(43_000)
    with refused("InvalidParameterValue", "VisibilityTimeout"):
        change(43_201)
    time.sleep(0.05)
    with refused("InvalidParameterValue", "beyond the limit [43200 seconds]"):
        change(43_200)


def test_some_things_may_be_done_once_a_minute(strict, kind):
    queues = Queues(strict)
    queue = queues(fifo=kind == "fifo")
    strict.purge_queue(QueueUrl=queue)
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", status=403):
        strict.purge_queue(QueueUrl=queue)
    strict.delete_queue(QueueUrl=queue)
    with refused("AWS.SimpleQueueService.QueueDeletedRecently", "60 seconds"):
        queues(fifo=kind == "fifo", name=queue.rsplit("/", 1)[1])


def test_permissions_and_tags_are_few(strict, queue):
    actions = ["SendMessage", "ReceiveMessage", "DeleteMessage", "PurgeQueue", "GetQueueUrl", "TagQueue", "UntagQueue", "DeleteQueue"]
    with refused("OverLimit", "8 Actions were found, maximum allowed is 7.", status=403):
        strict.add_permission(QueueUrl=queue, Label="x", AWSAccountIds=["1"], Actions=actions)
    strict.tag_queue(QueueUrl=queue, Tags={str(i): "x" for i in range(50)})
    with refused("InvalidParameterValue", "Too many tags"):
        strict.tag_queue(QueueUrl=queue, Tags={"one more": "x"})


def test_a_queue_has_so_many_in_flight(nexo, kind):
    broker = nexo("--sqs-limits", "strict")
    client = broker.client()
    queue = Queues(client)(fifo=kind == "fifo", name="full.fifo" if kind == "fifo" else "full")
    most = 20_000 if kind == "fifo" else 120_000
    # Another way in is quicker: what it holds is in flight for all.
    connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{broker.amqp}/%2F"))
    channel = connection.channel()
    for _ in range(most + 1):
        channel.basic_publish("", queue.rsplit("/", 1)[1], b"x")
    got = []
    consumer = channel.basic_consume(queue.rsplit("/", 1)[1], lambda _channel, method, *_: got.append(method.delivery_tag))
    while len(got) <= most:
        connection.process_data_events(time_limit=1)
    assert attributes_of(client, queue)["ApproximateNumberOfMessagesNotVisible"] == str(most + 1)
    if kind == "fifo":
        assert receive(client, queue, wait=0) == [], "AWS has no error for it here"
    else:
        with refused("OverLimit", str(most), status=403):
            client.receive_message(QueueUrl=queue)
    began = time.monotonic()
    assert receive(client, queue, wait=1) == []
    assert time.monotonic() - began >= 0.9
    channel.basic_cancel(consumer)
    channel.basic_ack(got[1], multiple=True)
    while int(attributes_of(client, queue)["ApproximateNumberOfMessagesNotVisible"]) >= most:
        time.sleep(0.05)
    client.send_message(QueueUrl=queue, MessageBody="fits", **sends(queue))
    assert [message["Body"] for message in receive(client, queue)] == ["fits"]
    connection.close()
