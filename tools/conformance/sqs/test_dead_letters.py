"""Dead letters: where they go, who takes them, and how they come back."""

import json
import time

import pytest
from conftest import attributes_of, receive, refused, sends


@pytest.fixture
def pair(sqs, queues, kind):
    """A queue and the queue for its dead letters, which come after two receives."""
    fifo = kind == "fifo"
    dead = queues(fifo=fifo)
    policy = {"deadLetterTargetArn": queues.arn(dead), "maxReceiveCount": "2"}
    return queues(fifo=fifo, VisibilityTimeout="600", RedrivePolicy=json.dumps(policy)), dead


def fail(sqs, queue, times=2):
    """Receives the next message that often and gives it back."""
    for _ in range(times):
        [got] = receive(sqs, queue, most=1)
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    return got


def until(check, what):
    for _ in range(200):
        if check():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def test_a_message_that_fails_too_often_moves_with_all_it_has(sqs, queues, pair):
    queue, dead = pair
    attributes = {"a": {"DataType": "Number.int", "StringValue": "7"}}
    sqs.send_message(QueueUrl=queue, MessageBody="bad", MessageAttributes=attributes, **sends(queue, dedup="d"))
    failed = fail(sqs, queue)
    [got] = receive(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert got["Body"] == "bad" and got["MessageAttributes"] == attributes
    assert got["MessageId"] == failed["MessageId"], "a dead letter is the message that it was"
    said = got["Attributes"]
    assert said["DeadLetterQueueSourceArn"] == queues.arn(queue)
    assert said["ApproximateReceiveCount"] == "3", "two receives before it died, and this one"
    if queue.endswith(".fifo"):
        assert said["MessageGroupId"] == "g" and said["MessageDeduplicationId"] == "d"
    assert receive(sqs, queue, wait=0) == []


def test_the_policy_is_seen_and_can_be_taken_back(sqs, queues, pair):
    queue, dead = pair
    policy = json.loads(attributes_of(sqs, queue, "RedrivePolicy")["RedrivePolicy"])
    assert policy == {"deadLetterTargetArn": queues.arn(dead), "maxReceiveCount": 2}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes_of(sqs, queue)
    assert not sqs.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls")
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    fail(sqs, queue, times=4)
    assert receive(sqs, queue)


def test_sources_are_listed_by_page(sqs, queues):
    dead = queues()
    policy = json.dumps({"deadLetterTargetArn": queues.arn(dead), "maxReceiveCount": 1})
    sources = sorted(queues(RedrivePolicy=policy) for _ in range(3))
    first = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2)
    rest = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2, NextToken=first["NextToken"])
    assert first["queueUrls"] + rest["queueUrls"] == sources and "NextToken" not in rest


def test_a_policy_must_name_a_queue_of_the_same_kind_that_takes_the_letters(sqs, queues):
    dead, fifo = queues(), queues(fifo=True)
    policy = lambda arn: {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})}
    source = queues()
    nowhere = "arn:aws:sqs:eu-west-1:000000000000:never"
    with refused("InvalidParameterValue", "Reason: Dead letter target does not exist.") as said:
        queues(**policy(nowhere))
    assert said.message.startswith(f'Value {{"deadLetterTargetArn":"{nowhere}","maxReceiveCount":3}} for parameter RedrivePolicy')
    with refused("InvalidParameterValue", "Reason: Invalid value for deadLetterTargetArn."):
        queues(**policy("dummy"))
    with refused("InvalidParameterValue", "same type"):
        sqs.set_queue_attributes(QueueUrl=source, Attributes=policy(queues.arn(fifo)))
    with refused("InvalidParameterValue", "cannot be the same"):
        sqs.set_queue_attributes(QueueUrl=dead, Attributes=policy(queues.arn(dead)))
    allow = lambda **said: sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(said)})
    allow(redrivePermission="denyAll")
    with refused("InvalidParameterValue", "does not permit"):
        sqs.set_queue_attributes(QueueUrl=source, Attributes=policy(queues.arn(dead)))
    allow(redrivePermission="byQueue", sourceQueueArns=[queues.arn(source)])
    sqs.set_queue_attributes(QueueUrl=source, Attributes=policy(queues.arn(dead)))
    with refused("InvalidParameterValue", "does not permit"):
        queues(**policy(queues.arn(dead)))
    allow(redrivePermission="allowAll")
    queues(**policy(queues.arn(dead)))


def test_a_task_moves_dead_letters_back(sqs, queues, pair):
    queue, dead = pair
    arn = queues.arn(dead)
    for number in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), **sends(queue, group=f"g{number}"))
        fail(sqs, queue)
    until(lambda: attributes_of(sqs, dead)["ApproximateNumberOfMessages"] == "3", "the messages did not die")
    handle = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    task = lambda: sqs.list_message_move_tasks(SourceArn=arn, MaxResults=10)["Results"][0]
    until(lambda: task()["Status"] == "COMPLETED", "the task did not end")
    said = task()
    assert said["ApproximateNumberOfMessagesMoved"] == 3 and said["ApproximateNumberOfMessagesToMove"] == 3
    assert said["SourceArn"] == arn and said["StartedTimestamp"] > 0 and "TaskHandle" not in said
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessages"] == "3"
    assert attributes_of(sqs, dead)["ApproximateNumberOfMessages"] == "0"
    with refused("InvalidParameterValue", "Only active tasks"):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_a_task_can_go_elsewhere_slowly_and_be_cancelled(sqs, queues, pair, kind):
    queue, dead = pair
    other = queues(fifo=kind == "fifo")
    for number in range(6):
        sqs.send_message(QueueUrl=dead, MessageBody=str(number), **sends(queue))
    arguments = dict(SourceArn=queues.arn(dead), DestinationArn=queues.arn(other), MaxNumberOfMessagesPerSecond=1)
    handle = sqs.start_message_move_task(**arguments)["TaskHandle"]
    with refused("InvalidParameterValue", "already a task running"):
        sqs.start_message_move_task(**arguments)
    until(lambda: int(attributes_of(sqs, other)["ApproximateNumberOfMessages"]) >= 1, "nothing was moved")
    [task] = sqs.list_message_move_tasks(SourceArn=arguments["SourceArn"])["Results"]
    assert task["Status"] == "RUNNING" and task["TaskHandle"] == handle
    assert task["DestinationArn"] == arguments["DestinationArn"] and task["MaxNumberOfMessagesPerSecond"] == 1
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 6
    [task] = sqs.list_message_move_tasks(SourceArn=arguments["SourceArn"])["Results"]
    assert task["Status"] == "CANCELLED"
    left = int(attributes_of(sqs, dead)["ApproximateNumberOfMessages"])
    there = int(attributes_of(sqs, other)["ApproximateNumberOfMessages"])
    assert left + there == 6 and left > 0


def test_a_task_fails_when_the_queue_that_it_moves_to_is_deleted(sqs, queues, pair, kind):
    queue, dead = pair
    other = queues(fifo=kind == "fifo")
    for number in range(6):
        sqs.send_message(QueueUrl=dead, MessageBody=str(number), **sends(queue, group=str(number)))
    arn = queues.arn(dead)
    sqs.start_message_move_task(SourceArn=arn, DestinationArn=queues.arn(other), MaxNumberOfMessagesPerSecond=1)
    until(lambda: int(attributes_of(sqs, other)["ApproximateNumberOfMessages"]) >= 1, "nothing was moved")
    sqs.delete_queue(QueueUrl=other)
    task = lambda: sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]
    until(lambda: task()["Status"] != "RUNNING", "the task goes on")
    assert (task()["Status"], task()["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    moved = task()["ApproximateNumberOfMessagesMoved"]
    assert int(attributes_of(sqs, dead)["ApproximateNumberOfMessages"]) == 6 - moved


def test_a_task_that_was_cancelled_can_be_started_again(sqs, queues, pair, kind):
    queue, dead = pair
    other = queues(fifo=kind == "fifo")
    for number in range(4):
        sqs.send_message(QueueUrl=dead, MessageBody=str(number), **sends(queue, group=str(number)))
    where = dict(SourceArn=queues.arn(dead), DestinationArn=queues.arn(other))
    handle = sqs.start_message_move_task(**where, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    sqs.cancel_message_move_task(TaskHandle=handle)
    sqs.start_message_move_task(**where, MaxNumberOfMessagesPerSecond=500)
    until(lambda: attributes_of(sqs, other)["ApproximateNumberOfMessages"] == "4", "not all were moved")
    listed = sqs.list_message_move_tasks(SourceArn=where["SourceArn"], MaxResults=10)["Results"]
    assert len(listed) == 2 and listed[1]["Status"] == "CANCELLED", "the newest comes first"


def test_a_task_is_shown_with_the_names_that_its_queues_have(sqs, queues, pair, kind):
    queue, dead = pair
    other = queues(fifo=kind == "fifo")
    named = lambda url: "arn:aws:sqs:" + "mars-" * 1000 + "1:000000000000:" + url.rsplit("/", 1)[1]
    sqs.start_message_move_task(SourceArn=named(dead), DestinationArn=named(other))
    [task] = sqs.list_message_move_tasks(SourceArn=queues.arn(dead))["Results"]
    assert (task["SourceArn"], task["DestinationArn"]) == (queues.arn(dead), queues.arn(other))


def test_an_allow_policy_names_at_most_ten_queues(sqs, queues, queue):
    policy = lambda **said: {"RedriveAllowPolicy": json.dumps(said)}
    arns = [f"arn:aws:sqs:eu-west-1:000000000000:q{number}" for number in range(11)]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=policy(redrivePermission="byQueue", sourceQueueArns=arns[:10]))
    for wrong in (
        policy(redrivePermission="byQueue", sourceQueueArns=arns),
        policy(redrivePermission="byQueue", sourceQueueArns=[]),
        policy(redrivePermission="byQueue"),
        policy(redrivePermission="denyAll", sourceQueueArns=arns[:1]),
        policy(redrivePermission="byQueue", sourceQueueArns=["nonsense"]),
        policy(redrivePermission="perhaps"),
        policy(redrivePermission="allowAll", more="x"),
    ):
        with refused("InvalidParameterValue", "RedriveAllowPolicy"):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes=wrong)


def test_tasks_that_cannot_be_are_refused(sqs, queues):
    nowhere = "arn:aws:sqs:eu-west-1:000000000000:never"
    plain = queues.arn(queues())
    with refused("ResourceNotFoundException", "SourceArn", status=404):
        sqs.start_message_move_task(SourceArn=nowhere)
    with refused("ResourceNotFoundException", status=404):
        sqs.list_message_move_tasks(SourceArn="nonsense")
    with refused("InvalidParameterValue", "TaskHandle", status=400):
        sqs.cancel_message_move_task(TaskHandle="nonsense")
    with refused("InvalidParameterValue", "Dead Letter Queue"):
        sqs.start_message_move_task(SourceArn=plain)
    with refused("ResourceNotFoundException", "DestinationArn"):
        sqs.start_message_move_task(SourceArn=plain, DestinationArn=nowhere)
    with refused("InvalidParameterValue", "MaxNumberOfMessagesPerSecond"):
        sqs.start_message_move_task(SourceArn=plain, MaxNumberOfMessagesPerSecond=0)
    with refused("InvalidParameterValue", "MaxResults"):
        sqs.list_message_move_tasks(SourceArn=plain, MaxResults=11)
