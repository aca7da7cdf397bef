"""Messages: sent, received, kept, deleted; alone and in batches."""

import hashlib
import time

import pytest
from conftest import attributes_of, receive, receive_all, refused, sends

BODIES = ["plain", "<&>\"' markup", "grüße 🚀", "line\r\nline\ttab", "{\"json\": \"\\u0041\"}", "a+b=c&d%20", " ", "x" * 200_000]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_arrives_as_it_was_sent(sqs, queue, body):
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body, **sends(queue))
    [got] = receive(sqs, queue)
    assert got["Body"] == body
    assert got["MessageId"] == sent["MessageId"]
    digest = hashlib.md5(body.encode()).hexdigest()
    assert sent["MD5OfMessageBody"] == got["MD5OfBody"] == digest


ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "wörter <&>"},
    "text.label": {"DataType": "String.url", "StringValue": "http://h/"},
    "number": {"DataType": "Number", "StringValue": "1.50"},
    "number-int": {"DataType": "Number.int", "StringValue": "-9007199254740993"},
    "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    "bytes_label": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
}


def test_attributes_arrive_with_their_types(sqs, queue):
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES, **sends(queue))
    [got] = receive(sqs, queue, MessageAttributeNames=["All"])
    assert got["MessageAttributes"] == ATTRIBUTES
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"] == md5_of(ATTRIBUTES)


def md5_of(attributes):
    """As AWS documents it."""
    hashed = hashlib.md5()
    put = lambda data: hashed.update(len(data).to_bytes(4, "big") + data)
    for name, value in sorted(attributes.items()):
        put(name.encode())
        put(value["DataType"].encode())
        if "BinaryValue" in value:
            hashed.update(b"\x02")
            put(value["BinaryValue"])
        else:
            hashed.update(b"\x01")
            put(value["StringValue"].encode())
    return hashed.hexdigest()


@pytest.mark.parametrize(
    "wanted, names",
    [
        ([], set()),
        (["text"], {"text"}),
        (["text.*"], {"text", "text.label"}),
        (["number.*", "bytes"], {"number", "number-int", "bytes"}),
        ([".*"], set(ATTRIBUTES)),
        (["All"], set(ATTRIBUTES)),
        (["none", "none.*"], set()),
    ],
)
def test_attributes_are_filtered_by_name_and_prefix(sqs, queue, wanted, names):
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES, **sends(queue))
    [got] = receive(sqs, queue, MessageAttributeNames=wanted)
    assert set(got.get("MessageAttributes", {})) == names
    if names:
        assert got["MD5OfMessageAttributes"] == md5_of({name: ATTRIBUTES[name] for name in names})
    else:
        assert "MD5OfMessageAttributes" not in got


def test_system_attributes_tell_what_happened(sqs, queue, kind):
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    before = int(time.time() * 1000)
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageSystemAttributes=trace, **sends(queue, dedup="d"))
    assert sent["MD5OfMessageSystemAttributes"] == md5_of(trace)
    [got] = receive(sqs, queue, AttributeNames=["All"], VisibilityTimeout=0)
    said = got["Attributes"]
    assert abs(int(said["SentTimestamp"]) - before) < 60_000
    assert int(said["ApproximateFirstReceiveTimestamp"]) >= int(said["SentTimestamp"])
    assert said["ApproximateReceiveCount"] == "1"
    assert said["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert said["SenderId"]
    if kind == "fifo":
        assert said["MessageGroupId"] == "g" and said["MessageDeduplicationId"] == "d"
        assert said["SequenceNumber"] == sent["SequenceNumber"] and len(said["SequenceNumber"]) == 20
    else:
        assert not {"MessageGroupId", "MessageDeduplicationId", "SequenceNumber"} & said.keys()
    [again] = receive(sqs, queue, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}
    assert again["MessageId"] == got["MessageId"] and again["ReceiptHandle"] != got["ReceiptHandle"]


def test_a_received_message_is_with_one_until_it_is_deleted(sqs, queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(sqs, queue)
    assert receive(sqs, queue, wait=0) == []
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessagesNotVisible"] == "0"
    # What is deleted already is as deleted as can be.
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])


def test_a_lease_that_ends_brings_the_message_back(sqs, queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(sqs, queue, VisibilityTimeout=1)
    [again] = receive(sqs, queue, wait=20)
    assert again["MessageId"] == got["MessageId"]


def test_the_visibility_of_the_queue_holds_unless_a_receive_says_otherwise(sqs, queues):
    queue = queues(VisibilityTimeout="1")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    receive(sqs, queue)
    assert receive(sqs, queue, wait=20, VisibilityTimeout=600)
    assert receive(sqs, queue, wait=2) == []


def test_a_lease_can_be_ended_and_extended(sqs, queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    [got] = receive(sqs, queue, wait=0, VisibilityTimeout=1)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=100_000)
    assert receive(sqs, queue, wait=2) == []


def test_the_visibility_of_a_message_that_came_back_is_not_changed(sqs, queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(sqs, queue)
    change = dict(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
    sqs.change_message_visibility(**change, VisibilityTimeout=0)
    sqs.change_message_visibility(**change, VisibilityTimeout=500)
    [got] = receive(sqs, queue, wait=0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
    with refused("InvalidParameterValue", "not available for visibility timeout change"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=5)


def test_an_earlier_receipt_of_a_standard_queue_still_works(sqs, queues):
    queue = queues()
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    change = lambda got, to: sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=to)
    [old] = receive(sqs, queue)
    change(old, 0)
    [new] = receive(sqs, queue)
    assert new["ReceiptHandle"] != old["ReceiptHandle"]
    change(old, 0)
    [newest] = receive(sqs, queue, wait=0)
    entries = [{"Id": "old", "ReceiptHandle": old["ReceiptHandle"], "VisibilityTimeout": 60}]
    assert sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)["Successful"] == [{"Id": "old"}]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=old["ReceiptHandle"])
    numbers = attributes_of(sqs, queue)
    assert numbers["ApproximateNumberOfMessages"] == numbers["ApproximateNumberOfMessagesNotVisible"] == "0"
    for gone in (old, new, newest):
        with refused("InvalidParameterValue", "not available for visibility timeout change"):
            change(gone, 60)


def test_a_lease_of_a_fifo_queue_that_has_ended_cannot_be_extended(sqs, queues):
    queue = queues(fifo=True)
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [old] = receive(sqs, queue, VisibilityTimeout=1)
    extend = lambda got: sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=60)
    while attributes_of(sqs, queue)["ApproximateNumberOfMessages"] == "0":
        time.sleep(0.1)
    extend(old)
    [new] = receive(sqs, queue)
    with refused("InvalidParameterValue", "Message does not exist or is not available for visibility timeout change.") as said:
        extend(old)
    assert said.message.startswith(f"Value {old['ReceiptHandle']} for parameter ReceiptHandle is invalid.")
    extend(new)
    entries = [{"Id": name, "ReceiptHandle": got["ReceiptHandle"], "VisibilityTimeout": 60} for name, got in (("old", old), ("new", new))]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["new"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [("old", "InvalidParameterValue")]


def test_an_old_receipt_of_a_fifo_queue_has_expired(sqs, queues):
    queue = queues(fifo=True)
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [old] = receive(sqs, queue, VisibilityTimeout=1)
    [new] = receive(sqs, queue, wait=20)
    with refused("InvalidParameterValue", "The receipt handle has expired.") as said:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=old["ReceiptHandle"])
    assert said.message.startswith(f"Value {old['ReceiptHandle']} for parameter ReceiptHandle is invalid.")
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=new["ReceiptHandle"])
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_who_was_late_deletes_what_came_back_unless_order_matters(sqs, queue, kind):
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    if kind == "fifo":
        with refused("InvalidParameterValue", "The receipt handle has expired"):
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
        assert receive(sqs, queue)
    else:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
        assert receive(sqs, queue, wait=0) == []


def test_a_delay_of_a_message_or_of_its_queue_is_kept(sqs, queues, kind):
    fifo = kind == "fifo"
    queue = queues(fifo=fifo, DelaySeconds="1")
    sqs.send_message(QueueUrl=queue, MessageBody="late", **sends(queue))
    assert receive(sqs, queue, wait=0) == []
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessagesDelayed"] == "1"
    assert [message["Body"] for message in receive(sqs, queue, wait=20)] == ["late"]
    if fifo:
        with refused("InvalidParameterValue", "DelaySeconds"):
            sqs.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=1, **sends(queue))
    else:
        sqs.send_message(QueueUrl=queue, MessageBody="now", DelaySeconds=0)
        assert [message["Body"] for message in receive(sqs, queue, wait=0)] == ["now"]


def test_a_message_goes_when_it_has_been_there_too_long(sqs, queues):
    queue = queues(MessageRetentionPeriod="1")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    time.sleep(2)
    assert receive(sqs, queue, wait=1) == []
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessages"] == "0"


def test_batches_send_receive_change_and_delete(sqs, queue):
    entries = [
        {"Id": f"e-{number}", "MessageBody": str(number), "MessageAttributes": ATTRIBUTES, **sends(queue, group=f"g{number}")}
        for number in range(10)
    ]
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert not answer.get("Failed")
    sent = {entry["Id"]: entry for entry in answer["Successful"]}
    assert sent["e-3"]["MD5OfMessageBody"] == hashlib.md5(b"3").hexdigest()
    assert sent["e-3"]["MD5OfMessageAttributes"] == md5_of(ATTRIBUTES)
    got = receive_all(sqs, queue, 10)
    assert {message["MessageId"] for message in got} == {entry["MessageId"] for entry in sent.values()}
    handles = [message["ReceiptHandle"] for message in got]
    change = [{"Id": str(i), "ReceiptHandle": handle, "VisibilityTimeout": i % 3 * 100} for i, handle in enumerate(handles)]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=change)
    assert len(answer["Successful"]) == 10 and not answer.get("Failed")
    back = receive_all(sqs, queue, 4)
    assert {message["MessageId"] for message in back} == {got[i]["MessageId"] for i in (0, 3, 6, 9)}
    delete = [{"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]} for i, message in enumerate(back)]
    delete.append({"Id": "wrong", "ReceiptHandle": "nonsense"})
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=delete)
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1", "2", "3"]
    [failed] = answer["Failed"]
    assert (failed["Id"], failed["SenderFault"], failed["Code"]) == ("wrong", True, "ReceiptHandleIsInvalid")
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessagesNotVisible"] == "6"


def test_entries_of_a_batch_fail_alone(sqs, queue):
    good = {"Id": "good", "MessageBody": "x", **sends(queue)}
    bad_body = {"Id": "body", "MessageBody": "a\u0001b", **sends(queue)}
    bad_attribute = {
        "Id": "attribute",
        "MessageBody": "x",
        "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "many"}},
        **sends(queue),
    }
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=[bad_attribute, good, bad_body])
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    failed = {entry["Id"]: (entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]}
    assert failed == {"attribute": ("InvalidParameterValue", True), "body": ("InvalidMessageContents", True)}
    answer = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[{"Id": "a", "ReceiptHandle": "nonsense", "VisibilityTimeout": 5}, {"Id": "b", "ReceiptHandle": "x", "VisibilityTimeout": -1}],
    )
    assert {entry["Id"]: entry["Code"] for entry in answer["Failed"]} == {"a": "ReceiptHandleIsInvalid", "b": "InvalidParameterValue"}


@pytest.mark.parametrize("action", ["send", "delete", "change"])
def test_batches_that_cannot_be_are_refused(sqs, queue, action):
    def call(ids):
        if action == "send":
            entries = [{"Id": one, "MessageBody": "x", **sends(queue)} for one in ids]
            return sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        if action == "delete":
            return sqs.delete_message_batch(QueueUrl=queue, Entries=[{"Id": one, "ReceiptHandle": "x"} for one in ids])
        entries = [{"Id": one, "ReceiptHandle": "x", "VisibilityTimeout": 5} for one in ids]
        return sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)

    with refused("AWS.SimpleQueueService.EmptyBatchRequest"):
        call([])
    with refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "You have sent 11"):
        call([str(number) for number in range(11)])
    with refused("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id a repeated"):
        call(["a", "b", "a"])
    for wrong in ("a b", "x" * 81, "ü", "a.b"):
        with refused("AWS.SimpleQueueService.InvalidBatchEntryId"):
            call([wrong])


def test_a_receive_gives_at_most_what_was_asked_for(sqs, queues):
    queue = queues()
    for _ in range(3):
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(i), "MessageBody": "x"} for i in range(10)])
    assert len(receive(sqs, queue, most=10)) == 10
    assert len(receive(sqs, queue, most=3)) == 3
    assert len(sqs.receive_message(QueueUrl=queue)["Messages"]) == 1


@pytest.mark.parametrize(
    "arguments, parameter",
    [
        ({"MaxNumberOfMessages": 0}, "MaxNumberOfMessages"),
        ({"MaxNumberOfMessages": 11}, "MaxNumberOfMessages"),
        ({"WaitTimeSeconds": -1}, "WaitTimeSeconds"),
        ({"VisibilityTimeout": -1}, "VisibilityTimeout"),
    ],
)
def test_a_receive_that_cannot_be_is_refused(sqs, queue, arguments, parameter):
    with refused("InvalidParameterValue", parameter, status=400):
        sqs.receive_message(QueueUrl=queue, **arguments)


def test_system_attributes_are_asked_for_by_either_name(sqs, queue):
    [*names] = sqs.meta.service_model.operation_model("ReceiveMessage").input_shape.members
    for parameter in ("AttributeNames", "MessageSystemAttributeNames"):
        if parameter not in names:
            continue
        for wanted in (["SenderId"], ["All"], ["SenderId", "SentTimestamp"]):
            sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
            [got] = receive(sqs, queue, most=1, **{parameter: wanted})
            assert wanted == ["All"] or got["Attributes"].keys() == set(wanted)
            assert "SentTimestamp" in got["Attributes"] or wanted == ["SenderId"]
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])


def test_unknown_system_attributes_are_refused(sqs, queue):
    with refused("InvalidAttributeName"):
        sqs.receive_message(QueueUrl=queue, AttributeNames=["Strange"])


@pytest.mark.parametrize(
    "arguments, code",
    [
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "a\u0000"}, "InvalidMessageContents"),
        ({"MessageBody": "\ufffe"}, "InvalidMessageContents"),
        ({"DelaySeconds": -1}, "InvalidParameterValue"),
        ({"MessageSystemAttributes": {"Strange": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "Binary", "BinaryValue": b"x"}}}, "InvalidParameterValue"),
    ],
)
def test_a_send_that_cannot_be_is_refused(sqs, queue, arguments, code):
    with refused(code, status=400):
        sqs.send_message(**({"QueueUrl": queue, "MessageBody": "x", **sends(queue)} | arguments))
    assert receive(sqs, queue, wait=0) == []


NAMES = "Message (user) attributes name can only contain"
RESERVED = "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("", {"DataType": "String", "StringValue": "x"}, "non-empty message (user) attribute names."),
        ("a b", {"DataType": "String", "StringValue": "x"}, NAMES),
        ("☃", {"DataType": "String", "StringValue": "x"}, NAMES),
        ("AWS.x", {"DataType": "String", "StringValue": "x"}, RESERVED),
        ("amazon.x", {"DataType": "String", "StringValue": "x"}, RESERVED),
        (".x", {"DataType": "String", "StringValue": "x"}, "they cannot start or end with '.'."),
        ("x" * 257, {"DataType": "String", "StringValue": "x"}, "Message (user) attribute names must be shorter than 256 Bytes"),
        ("a", {"DataType": "String." + "x" * 250, "StringValue": "x"}, "types must be shorter than 256 Bytes"),
        ("a", {"DataType": "", "StringValue": "x"}, "Message (user) attribute 'a' must contain a non-empty attribute type."),
        (
            "a",
            {"DataType": "Strange", "StringValue": "x"},
            "The type of message (user) attribute 'a' is invalid. You must use only the following supported type prefixes: "
            "Binary, Number, String.",
        ),
        ("a", {"DataType": "String", "StringValue": ""}, "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
        ("a", {"DataType": "String"}, "must contain a non-empty value of type 'String'."),
        ("a", {"DataType": "String", "BinaryValue": b"x"}, "must contain a non-empty value of type 'String'."),
        ("a", {"DataType": "Binary", "StringValue": "x"}, "must contain a non-empty value of type 'Binary'."),
        ("a", {"DataType": "Binary", "BinaryValue": b""}, "must contain a non-empty value of type 'Binary'."),
        ("a", {"DataType": "Number", "StringValue": "many"}, "Can't cast the value of message (user) attribute 'a' to a number."),
        ("a", {"DataType": "Number", "StringValue": "NaN"}, "Can't cast the value"),
        ("a", {"DataType": "String", "StringValue": "\u0001"}, "Message (user) attribute 'a'"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused(sqs, queue, name, value, text):
    with refused("InvalidParameterValue", text, status=400):
        sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes={name: value}, **sends(queue))
    entry = {"Id": "a", "MessageBody": "x", "MessageAttributes": {name: value}, **sends(queue)}
    [failed] = sqs.send_message_batch(QueueUrl=queue, Entries=[entry])["Failed"]
    assert failed["Code"] == "InvalidParameterValue" and text in failed["Message"] and failed["SenderFault"]
    assert receive(sqs, queue, wait=0) == []


def test_receipts_of_another_queue_and_made_up_ones_are_refused(sqs, queues, queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue))
    [got] = receive(sqs, queue)
    handle = got["ReceiptHandle"]
    other = queues()
    for wrong in ("nonsense", handle[:-1], "A" + handle[1:-3] + "AAA"):
        with refused("ReceiptHandleIsInvalid"):
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=wrong)
        with refused("ReceiptHandleIsInvalid"):
            sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=wrong, VisibilityTimeout=1)
    with refused("ReceiptHandleIsInvalid"):
        sqs.delete_message(QueueUrl=other, ReceiptHandle=handle)
    with refused("InvalidParameterValue", "VisibilityTimeout"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=-1)


def test_a_message_larger_than_its_queue_allows_is_refused(sqs, queues, queue):
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1024"})
    sqs.send_message(QueueUrl=queue, MessageBody="x" * 1024, **sends(queue))
    with refused("InvalidParameterValue", "Message must be shorter than 1024 bytes"):
        sqs.send_message(QueueUrl=queue, MessageBody="x" * 1025, **sends(queue))
    with refused("InvalidParameterValue", "Message must be shorter than 1024 bytes"):
        attributes = {"a": {"DataType": "String", "StringValue": "x"}}
        sqs.send_message(QueueUrl=queue, MessageBody="x" * 1020, MessageAttributes=attributes, **sends(queue))


def test_attributes_may_be_most_of_a_message(sqs, queue):
    attributes = {"big": {"DataType": "Binary", "BinaryValue": bytes(900_000)}}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes, **sends(queue))
    [got] = receive(sqs, queue, MessageAttributeNames=["All"])
    assert got["MessageAttributes"] == attributes


def test_addresses_of_other_kinds_lead_to_the_queue(sqs, queues):
    queue = queues()
    host, name = queue.split("/")[2], queue.rsplit("/", 1)[1]
    for address in (f"http://{host}/queue/{name}", f"https://sqs.eu-west-1.amazonaws.com/123456789012/{name}"):
        sqs.send_message(QueueUrl=address, MessageBody="x")
        # Old clients send to the address itself, newer ones to the endpoint.
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessages"] == "2"
