"""FIFO queues: order, one at a time in each group, and no message twice."""

import pytest
from conftest import attributes_of, receive, receive_all, refused


@pytest.fixture
def fifo(queues):
    return queues(fifo=True)


def send(sqs, queue, body, group="g", dedup=None, **more):
    if dedup:
        more["MessageDeduplicationId"] = dedup
    return sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId=group, **more)


def delete(sqs, queue, *messages):
    for message in messages:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def bodies(messages):
    return [message["Body"] for message in messages]


def test_a_receive_gets_as_many_of_a_group_as_it_asks_for_in_order(sqs, fifo):
    for number in range(12):
        send(sqs, fifo, f"a{number}", "a", f"a{number}")
    for number in range(2):
        send(sqs, fifo, f"b{number}", "b", f"b{number}")
    first = receive(sqs, fifo)
    assert bodies(first) == [f"a{number}" for number in range(10)]
    others = receive(sqs, fifo)
    assert bodies(others) == ["b0", "b1"], "the rest of a group waits for what is in flight"
    delete(sqs, fifo, *first[:9])
    assert receive(sqs, fifo, wait=0) == [], "one of the group is still in flight"
    delete(sqs, fifo, first[9])
    assert bodies(receive(sqs, fifo)) == ["a10", "a11"]


def test_what_comes_back_goes_before_the_rest_of_its_group(sqs, fifo):
    for number in range(4):
        send(sqs, fifo, str(number), dedup=str(number))
    first = receive(sqs, fifo, most=3)
    assert bodies(first) == ["0", "1", "2"]
    end = lambda message: sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    end(first[0])
    delete(sqs, fifo, first[1])
    assert receive(sqs, fifo, wait=0) == [], "2 is still in flight"
    with refused("InvalidParameterValue", "The receipt handle has expired."):
        delete(sqs, fifo, first[0])
    end(first[2])
    assert bodies(receive(sqs, fifo)) == ["0", "2", "3"]


def test_one_at_a_time_if_one_is_asked_for(sqs, fifo):
    for number in range(2):
        for group in "ab":
            send(sqs, fifo, f"{group}{number}", group, f"{group}{number}")
    seen = []
    for _ in range(2):
        got = receive(sqs, fifo, most=1) + receive(sqs, fifo, most=1)
        assert receive(sqs, fifo, wait=0) == [], "each group has one in flight"
        seen += bodies(got)
        delete(sqs, fifo, *got)
    assert seen == ["a0", "b0", "a1", "b1"]


def test_a_purge_frees_groups_and_forgets_deduplication_ids(sqs, fifo):
    for number in range(3):
        send(sqs, fifo, str(number), dedup=str(number))
    [held] = receive(sqs, fifo, most=1)
    sqs.purge_queue(QueueUrl=fifo)
    numbers = attributes_of(sqs, fifo)
    assert numbers["ApproximateNumberOfMessages"] == numbers["ApproximateNumberOfMessagesNotVisible"] == "0"
    send(sqs, fifo, "again", dedup="0")
    assert bodies(receive(sqs, fifo)) == ["again"]
    delete(sqs, fifo, held)


def test_a_message_that_comes_back_is_still_the_first_of_its_group(sqs, fifo):
    send(sqs, fifo, "1", dedup="1")
    send(sqs, fifo, "2", dedup="2")
    [got] = receive(sqs, fifo, most=1)
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    [again] = receive(sqs, fifo, most=1)
    assert (got["Body"], again["Body"]) == ("1", "1")


def test_sequence_numbers_grow(sqs, fifo):
    numbers = [send(sqs, fifo, str(i), dedup=str(i))["SequenceNumber"] for i in range(12)]
    assert numbers == sorted(numbers) and len(set(numbers)) == 12
    got = receive_all(sqs, fifo, 10, AttributeNames=["SequenceNumber"])
    assert [message["Attributes"]["SequenceNumber"] for message in got] == numbers[:10]


def test_a_repeated_send_is_answered_like_the_first_and_not_delivered(sqs, fifo):
    first = send(sqs, fifo, "one", dedup="same")
    again = send(sqs, fifo, "other", dedup="same")
    assert again["MessageId"] == first["MessageId"] and again["SequenceNumber"] == first["SequenceNumber"]
    [got] = receive(sqs, fifo)
    assert got["Body"] == "one" and got["MessageId"] == first["MessageId"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=got["ReceiptHandle"])
    send(sqs, fifo, "late", dedup="same")
    assert receive(sqs, fifo, wait=1) == [], "also after it was deleted"


def test_repetitions_within_a_batch_are_recognised(sqs, fifo):
    entries = [
        {"Id": str(i), "MessageBody": str(i), "MessageGroupId": "g", "MessageDeduplicationId": "same"} for i in range(3)
    ]
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    assert len({entry["MessageId"] for entry in answer["Successful"]}) == 1
    assert attributes_of(sqs, fifo)["ApproximateNumberOfMessages"] == "1"


def test_content_can_be_its_own_deduplication_id(sqs, queues):
    queue = queues(fifo=True, ContentBasedDeduplication="true")
    first = send(sqs, queue, "same")
    assert send(sqs, queue, "same")["MessageId"] == first["MessageId"]
    assert send(sqs, queue, "other")["MessageId"] != first["MessageId"]
    # An id that is given goes before the content.
    assert send(sqs, queue, "same", dedup="own")["MessageId"] != first["MessageId"]
    [got] = receive(sqs, queue, most=1, AttributeNames=["MessageDeduplicationId"])
    import hashlib

    assert got["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"same").hexdigest()


def test_the_scope_of_deduplication_is_the_queue_or_the_group(sqs, queues):
    queue = queues(fifo=True)
    assert send(sqs, queue, "x", "a", "id")["MessageId"] == send(sqs, queue, "x", "b", "id")["MessageId"]
    queue = queues(fifo=True, DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    one = send(sqs, queue, "x", "a", "id")
    assert send(sqs, queue, "x", "b", "id")["MessageId"] != one["MessageId"]
    assert send(sqs, queue, "x", "a", "id")["MessageId"] == one["MessageId"]
    got = receive(sqs, queue, AttributeNames=["MessageDeduplicationId"])
    assert [message["Attributes"]["MessageDeduplicationId"] for message in got] == ["id", "id"]


def test_another_scope_of_deduplication_leaves_what_was_sent_before(sqs, queues):
    queue = queues(fifo=True)
    scope = lambda value: sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeduplicationScope": value})
    first = send(sqs, queue, "x", "a", "id")
    scope("messageGroup")
    assert send(sqs, queue, "x", "a", "id")["MessageId"] == first["MessageId"]
    other = send(sqs, queue, "x", "b", "id")
    assert other["MessageId"] != first["MessageId"]
    scope("queue")
    assert send(sqs, queue, "x", "a", "id")["MessageId"] == first["MessageId"]
    assert send(sqs, queue, "x", "b", "id")["MessageId"] == other["MessageId"]
    assert send(sqs, queue, "x", "c", "id")["MessageId"] in (first["MessageId"], other["MessageId"])
    assert len(receive_all(sqs, queue, 2)) == 2 and receive(sqs, queue, wait=0) == []


def test_what_a_fifo_queue_needs_and_what_it_refuses(sqs, queues, fifo):
    with refused("MissingParameter", "MessageGroupId", status=400):
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageDeduplicationId="d")
    with refused("InvalidParameterValue", "ContentBasedDeduplication"):
        send(sqs, fifo, "x")
    for wrong in ("x" * 129, "a b", "ü"):
        with refused("InvalidParameterValue", "MessageGroupId"):
            send(sqs, fifo, "x", group=wrong, dedup="d")
        with refused("InvalidParameterValue", "MessageDeduplicationId"):
            send(sqs, fifo, "x", dedup=wrong)
    with refused("InvalidParameterValue", "DelaySeconds"):
        send(sqs, fifo, "x", dedup="d", DelaySeconds=5)
    standard = queues()
    with refused("InvalidParameterValue", "MessageDeduplicationId"):
        sqs.send_message(QueueUrl=standard, MessageBody="x", MessageDeduplicationId="d")
    with refused("InvalidParameterValue", "ReceiveRequestAttemptId"):
        sqs.receive_message(QueueUrl=standard, ReceiveRequestAttemptId="a")


def test_a_batch_is_refused_as_a_whole_where_an_entry_cannot_be_told_apart(sqs, queues, fifo):
    good = {"Id": "good", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    missing = lambda name: {key: value for key, value in {**good, "Id": "bad"}.items() if key != name}
    with refused("InvalidParameterValue", "The request must contain the parameter MessageGroupId."):
        sqs.send_message_batch(QueueUrl=fifo, Entries=[good, missing("MessageGroupId")])
    with refused("InvalidParameterValue", "ContentBasedDeduplication enabled or MessageDeduplicationId provided"):
        sqs.send_message_batch(QueueUrl=fifo, Entries=[good, missing("MessageDeduplicationId")])
    assert receive(sqs, fifo, wait=0) == []
    content = queues(fifo=True, ContentBasedDeduplication="true")
    assert len(sqs.send_message_batch(QueueUrl=content, Entries=[missing("MessageDeduplicationId")])["Successful"]) == 1


def test_an_entry_with_a_delay_or_wrong_ids_fails_alone(sqs, queues, fifo):
    entry = lambda name, **more: {"Id": name, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": name, **more}
    entries = [entry("good"), entry("late", DelaySeconds=5), entry("group", MessageGroupId="a b"), entry("zero", DelaySeconds=0)]
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    assert [one["Id"] for one in answer["Successful"]] == ["good", "zero"]
    failed = {one["Id"]: one["Message"] for one in answer["Failed"]}
    late = "Value 5 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type."
    assert failed.keys() == {"late", "group"} and failed["late"] == late and "MessageGroupId" in failed["group"]


def test_a_receive_is_tried_again_by_an_id_like_others(sqs, fifo):
    for wrong in ("", "x" * 129, "a b"):
        with refused("InvalidParameterValue", "ReceiveRequestAttemptId"):
            sqs.receive_message(QueueUrl=fifo, ReceiveRequestAttemptId=wrong)


def test_a_receive_that_is_tried_again_later_gets_what_is_there_then(sqs, fifo):
    send(sqs, fifo, "1", dedup="1")
    [first] = receive(sqs, fifo, VisibilityTimeout=600, ReceiveRequestAttemptId="try")
    change = dict(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    sqs.change_message_visibility(**change)
    [again] = receive(sqs, fifo, ReceiveRequestAttemptId="try")
    assert again["MessageId"] == first["MessageId"] and again["ReceiptHandle"] != first["ReceiptHandle"]


def test_a_receive_that_is_tried_again_gets_the_same_messages(sqs, fifo):
    for group in "abc":
        send(sqs, fifo, group, group, group)
    first = receive(sqs, fifo, most=2, ReceiveRequestAttemptId="try")
    again = receive(sqs, fifo, most=2, ReceiveRequestAttemptId="try")
    assert [message["MessageId"] for message in again] == [message["MessageId"] for message in first]
    [third] = receive(sqs, fifo, ReceiveRequestAttemptId="other")
    assert third["Body"] == "c"
    for message in again:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    assert receive(sqs, fifo, wait=0, ReceiveRequestAttemptId="try") == []


def test_a_standard_queue_takes_groups_and_does_not_order_by_them(sqs, queues):
    queue = queues()
    for number in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), MessageGroupId="tenant")
    got = receive_all(sqs, queue, 3, AttributeNames=["All"])
    assert {message["Attributes"]["MessageGroupId"] for message in got} == {"tenant"}
    assert all("SequenceNumber" not in message["Attributes"] for message in got)


def test_a_tenant_with_many_messages_does_not_make_the_others_wait(sqs, queues):
    queue = queues()
    for batch in range(20):
        entries = [{"Id": str(i), "MessageBody": "noisy", "MessageGroupId": "noisy"} for i in range(10)]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    for number in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=f"quiet {number}", MessageGroupId="quiet")
    bodies = [message["Body"] for message in receive(sqs, queue, AttributeNames=["MessageGroupId"])]
    assert len(bodies) == 10 and [body for body in bodies if body != "noisy"] == ["quiet 0", "quiet 1", "quiet 2"]
    assert len(receive_all(sqs, queue, 193)) == 193
