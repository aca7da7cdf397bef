"""Every error that AWS's service model names for an action: provoked here, or known not to happen.

The model is botocore's. A test compares it with the table below, so that neither misses anything of the other.
"""

import json
import uuid

import botocore.session
import pytest
from botocore.exceptions import ClientError
from conftest import PROTOCOL, Nexo, Queues, make_client, receive, refused, sends

# What clients are told, where it is not the name in the model.
CODES = {
    "BatchEntryIdsNotDistinct": "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": "AWS.SimpleQueueService.BatchRequestTooLong",
    "EmptyBatchRequest": "AWS.SimpleQueueService.EmptyBatchRequest",
    "InvalidBatchEntryId": "AWS.SimpleQueueService.InvalidBatchEntryId",
    "PurgeQueueInProgress": "AWS.SimpleQueueService.PurgeQueueInProgress",
    "QueueDeletedRecently": "AWS.SimpleQueueService.QueueDeletedRecently",
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
    "UnsupportedOperation": "AWS.SimpleQueueService.UnsupportedOperation",
}
STATUS = {
    "InvalidAddress": 404,
    "OverLimit": 403,
    "PurgeQueueInProgress": 403,
    "ReceiptHandleIsInvalid": 404,
    "ResourceNotFoundException": 404,
}

# docs/sqs.md says why.
NEVER = {
    "InvalidIdFormat",
    "InvalidSecurity",
    "KmsAccessDenied",
    "KmsDisabled",
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsNotFound",
    "KmsOptInRequired",
    "KmsThrottled",
    "MessageNotInflight",
    "RequestThrottled",
}
WITHOUT_ADDRESS = {
    "CancelMessageMoveTask",
    "CreateQueue",
    "GetQueueUrl",
    "ListMessageMoveTasks",
    "ListQueues",
    "StartMessageMoveTask",
}
NOWHERE = "arn:aws:sqs:eu-west-1:000000000000:never"


@pytest.fixture(scope="module")
def broker():
    broker = Nexo("--sqs-limits", "strict")
    yield broker
    broker.clean()


@pytest.fixture(scope="module")
def client(broker):
    return broker.client()


@pytest.fixture
def queues(client):
    queues = Queues(client)
    yield queues
    queues.clean()


def entry(**more):
    return {"Id": uuid.uuid4().hex, **more}


def request_for(action, queue, **change):
    """A request that would be done, but for what is changed."""
    handle = "any"
    good = {
        "AddPermission": {"Label": "l", "AWSAccountIds": ["1"], "Actions": ["SendMessage"]},
        "CancelMessageMoveTask": {"TaskHandle": handle},
        "ChangeMessageVisibility": {"ReceiptHandle": handle, "VisibilityTimeout": 5},
        "ChangeMessageVisibilityBatch": {"Entries": [entry(ReceiptHandle=handle, VisibilityTimeout=5)]},
        "CreateQueue": {"QueueName": f"conf-{uuid.uuid4().hex[:16]}"},
        "DeleteMessage": {"ReceiptHandle": handle},
        "DeleteMessageBatch": {"Entries": [entry(ReceiptHandle=handle)]},
        "GetQueueAttributes": {"AttributeNames": ["All"]},
        "GetQueueUrl": {"QueueName": queue.rsplit("/", 1)[-1]},
        "ListMessageMoveTasks": {"SourceArn": NOWHERE},
        "RemovePermission": {"Label": "l"},
        "SendMessage": {"MessageBody": "x", **sends(queue)},
        "SendMessageBatch": {"Entries": [entry(MessageBody="x", **sends(queue))]},
        "SetQueueAttributes": {"Attributes": {"VisibilityTimeout": "1"}},
        "StartMessageMoveTask": {"SourceArn": NOWHERE},
        "TagQueue": {"Tags": {"a": "b"}},
        "UntagQueue": {"TagKeys": ["a"]},
    }
    address = {} if action in WITHOUT_ADDRESS else {"QueueUrl": queue}
    return {**address, **good.get(action, {}), **change}


def call(client, action, request):
    name = "".join("_" + c.lower() if c.isupper() else c for c in action)[1:]
    return getattr(client, name)(**request)


def model():
    """Which errors each action may answer with, as the service model that JSON clients have says it."""
    service = botocore.session.get_session().get_service_model("sqs")
    return {name: {shape.name for shape in service.operation_model(name).error_shapes} for name in service.operation_names}


def batch(action, ids, queue):
    [one] = request_for(action, queue)["Entries"]
    entries = [{**one, "Id": name} for name in ids]
    if "MessageDeduplicationId" in one:
        entries = [{**one, "MessageDeduplicationId": str(number)} for number, one in enumerate(entries)]
    return {"QueueUrl": queue, "Entries": entries}


BATCHES = ["ChangeMessageVisibilityBatch", "DeleteMessageBatch", "SendMessageBatch"]
ACTIONS = [
    *("AddPermission CancelMessageMoveTask ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue").split(),
    *("DeleteMessage DeleteMessageBatch DeleteQueue GetQueueAttributes GetQueueUrl ListDeadLetterSourceQueues").split(),
    *("ListMessageMoveTasks ListQueueTags ListQueues PurgeQueue ReceiveMessage RemovePermission SendMessage").split(),
    *("SendMessageBatch SetQueueAttributes StartMessageMoveTask TagQueue UntagQueue").split(),
]
WITH_QUEUE = [action for action in ACTIONS if action not in WITHOUT_ADDRESS]

# Pairs of action and error for which a test stands below.
PROVOKED = set()


def provokes(error, *actions):
    """Runs a test for each of these actions, on both kinds of queues, and notes what it provokes."""
    PROVOKED.update((action, error) for action in actions)
    return pytest.mark.parametrize("action", actions)


def expected(error):
    return refused(CODES.get(error, error), status=STATUS.get(error, 400))


@provokes("QueueDoesNotExist", *WITH_QUEUE, "GetQueueUrl")
def test_a_queue_that_does_not_exist(client, queues, queue, action):
    gone = queue.replace("conf-", "gone-")
    with expected("QueueDoesNotExist") as said:
        call(client, action, request_for(action, gone))
    version = " for this wsdl version" if PROTOCOL == "query" else ""
    assert said.message == f"The specified queue does not exist{version}."


@provokes("InvalidAddress", *WITH_QUEUE)
def test_an_address_that_names_no_queue(broker, client, action):
    for address in (broker.url, broker.url + "/"):
        with expected("InvalidAddress") as said:
            call(client, action, request_for(action, address))
        assert said.message == f"The address {address} is not valid for this endpoint."


@provokes("UnsupportedOperation", *ACTIONS)
def test_a_method_that_does_not_post(broker, queue, action):
    client = make_client(broker.url)
    client.meta.events.register("before-sign.sqs", lambda request, **_: setattr(request, "method", "PUT"))
    with expected("UnsupportedOperation") as said:
        call(client, action, request_for(action, queue))
    assert "PUT" in said.message


@provokes("UnsupportedOperation", "SendMessage", "SendMessageBatch")
def test_lists_as_attributes(client, queue, action):
    lists = {"l": {"DataType": "String", "StringValue": "x", "StringListValues": ["a"]}}
    if action == "SendMessage":
        with expected("UnsupportedOperation"):
            client.send_message(**request_for(action, queue, MessageAttributes=lists))
    else:
        request = request_for(action, queue)
        request["Entries"][0]["MessageAttributes"] = lists
        [failed] = client.send_message_batch(**request)["Failed"]
        assert failed["Code"] == CODES["UnsupportedOperation"] and failed["SenderFault"]


@provokes("EmptyBatchRequest", *BATCHES)
def test_no_entries(client, queue, action):
    with expected("EmptyBatchRequest") as said:
        call(client, action, batch(action, [], queue))
    assert said.message == f"There should be at least one {action}RequestEntry in the request."


@provokes("TooManyEntriesInBatchRequest", *BATCHES)
def test_eleven_entries(client, queue, action):
    with expected("TooManyEntriesInBatchRequest") as said:
        call(client, action, batch(action, [str(number) for number in range(11)], queue))
    assert said.message == "Maximum number of entries per request are 10. You have sent 11."


@provokes("BatchEntryIdsNotDistinct", *BATCHES)
def test_the_same_id_twice(client, queue, action):
    with expected("BatchEntryIdsNotDistinct") as said:
        call(client, action, batch(action, ["a", "b", "a"], queue))
    assert said.message == "Id a repeated."


@provokes("InvalidBatchEntryId", *BATCHES)
def test_ids_that_are_none(client, queue, action):
    for wrong in ("", "a b", "x" * 81, "a:b"):
        with expected("InvalidBatchEntryId"):
            call(client, action, batch(action, [wrong], queue))


@provokes("BatchRequestTooLong", "SendMessageBatch")
def test_a_batch_of_more_than_a_mebibyte(client, queue, action):
    one = 1024 * 1024 // 2
    entries = [entry(MessageBody="x" * one, **sends(queue)), entry(MessageBody="x" * (one + 1), **sends(queue))]
    with expected("BatchRequestTooLong") as said:
        client.send_message_batch(QueueUrl=queue, Entries=entries)
    assert said.message == f"Batch requests cannot be longer than {2 * one} bytes. You have sent {2 * one + 1} bytes."
    with expected("BatchRequestTooLong"):
        client.send_message_batch(QueueUrl=queue, Entries=[entry(MessageBody="x" * (2 * one + 1), **sends(queue))])


@provokes("InvalidMessageContents", "SendMessage")
def test_characters_that_xml_cannot_say(client, queue, action):
    for wrong in ("\u0000", "\u000b", "\ufffe", "\uffff"):
        with expected("InvalidMessageContents"):
            client.send_message(**request_for(action, queue, MessageBody=f"a{wrong}b"))


@provokes("ReceiptHandleIsInvalid", "ChangeMessageVisibility", "DeleteMessage")
def test_a_receipt_handle_that_is_none(client, queue, action):
    with expected("ReceiptHandleIsInvalid") as said:
        call(client, action, request_for(action, queue))
    assert said.message == 'The input receipt handle "any" is not a valid receipt handle.'


@provokes("PurgeQueueInProgress", "PurgeQueue")
def test_a_second_purge(client, queue, action):
    client.purge_queue(QueueUrl=queue)
    with expected("PurgeQueueInProgress") as said:
        client.purge_queue(QueueUrl=queue)
    name = queue.rsplit("/", 1)[1]
    assert said.message == f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."


@provokes("QueueDeletedRecently", "CreateQueue")
def test_a_name_that_was_just_deleted(client, queues, queue, kind, action):
    client.delete_queue(QueueUrl=queue)
    with expected("QueueDeletedRecently"):
        queues(fifo=kind == "fifo", name=queue.rsplit("/", 1)[1])


@provokes("QueueNameExists", "CreateQueue")
def test_a_name_that_another_queue_has(client, queues, queue, kind, action):
    with expected("QueueNameExists") as said:
        queues(fifo=kind == "fifo", name=queue.rsplit("/", 1)[1], DelaySeconds="7")
    assert said.message == "A queue already exists with the same name and a different value for attribute DelaySeconds"


@provokes("InvalidAttributeName", "CreateQueue", "GetQueueAttributes", "SetQueueAttributes")
def test_an_attribute_that_does_not_exist(client, queue, action):
    change = {"AttributeNames": ["Strange"]} if action == "GetQueueAttributes" else {"Attributes": {"Strange": "1"}}
    with expected("InvalidAttributeName") as said:
        call(client, action, request_for(action, queue, **change))
    assert said.message == "Unknown Attribute Strange."


@provokes("InvalidAttributeValue", "CreateQueue", "SetQueueAttributes")
def test_a_value_that_cannot_be(client, queue, action):
    for name, value in (("VisibilityTimeout", "43201"), ("DelaySeconds", ""), ("MaximumMessageSize", "many"), ("Policy", "[]")):
        with expected("InvalidAttributeValue") as said:
            call(client, action, request_for(action, queue, Attributes={name: value}))
        assert said.message == f"Invalid value for the parameter {name}."


@provokes("OverLimit", "AddPermission", "SetQueueAttributes")
def test_a_policy_that_permits_too_much(client, queue, action):
    actions = "SendMessage ReceiveMessage DeleteMessage PurgeQueue GetQueueUrl GetQueueAttributes ChangeMessageVisibility".split()
    if action == "AddPermission":
        with expected("OverLimit") as said:
            client.add_permission(**request_for(action, queue, Actions=[*actions, "ListDeadLetterSourceQueues"]))
        assert said.message == "8 Actions were found, maximum allowed is 7."
        client.add_permission(**request_for(action, queue, Actions=actions))
        accounts = [f"{number:012}" for number in range(300)]
        with expected("OverLimit") as said:
            client.add_permission(**request_for(action, queue, Label="many", AWSAccountIds=accounts))
        assert said.message == "Submitted policy is over max allowed size."
        return
    policy = lambda actions: json.dumps({"Statement": {"Effect": "Allow", "Action": actions}})
    with expected("OverLimit") as said:
        client.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy([*actions, "more"])})
    assert said.message == "8 actions were found in a statement from the submitted policy, max allowed is 7"
    with expected("OverLimit") as said:
        client.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy(["x" * 8192])})
    assert said.message == "Submitted policy is over max allowed size."
    client.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy(actions)})


# In test_limits.py.
PROVOKED.add(("ReceiveMessage", "OverLimit"))


@provokes("ResourceNotFoundException", "CancelMessageMoveTask", "ListMessageMoveTasks", "StartMessageMoveTask")
def test_a_queue_or_a_task_that_does_not_exist(client, queues, queue, action):
    import base64

    handle = lambda **fields: base64.b64encode(json.dumps(fields).encode()).decode()
    if action == "CancelMessageMoveTask":
        with expected("ResourceNotFoundException") as said:
            client.cancel_message_move_task(TaskHandle=handle(taskId="x", sourceArn=queues.arn(queue)))
        assert said.message == "Task does not exist."
        with expected("ResourceNotFoundException") as said:
            client.cancel_message_move_task(TaskHandle=handle(taskId="x", sourceArn=NOWHERE))
        for wrong in ("any", handle(taskId="x"), handle(sourceArn=NOWHERE)):
            with refused("InvalidParameterValue", "Value for parameter TaskHandle is invalid.", status=400):
                client.cancel_message_move_task(TaskHandle=wrong)
    else:
        with expected("ResourceNotFoundException") as said:
            call(client, action, request_for(action, queue))
    assert said.message == "The resource that you specified for the SourceArn parameter doesn't exist."


@pytest.mark.skipif(PROTOCOL != "json", reason="the model of older clients knows fewer errors")
def test_the_table_is_the_model():
    named = {(action, error) for action, errors in model().items() for error in errors}
    assert sorted(model()) == ACTIONS
    possible = {(action, error) for action, error in named if error not in NEVER}
    possible -= {(action, "InvalidAddress") for action in WITHOUT_ADDRESS}
    assert possible <= PROVOKED, possible - PROVOKED
    assert PROVOKED <= named, PROVOKED - named


@pytest.mark.skipif(PROTOCOL != "json", reason="older clients know fewer errors by name")
def test_clients_know_errors_by_their_names(client, queue):
    """What a client that catches the errors of the model writes."""
    with pytest.raises(client.exceptions.QueueDoesNotExist) as caught:
        client.get_queue_url(QueueName="never")
    assert caught.value.response["Error"]["QueryErrorCode"] == "QueueDoesNotExist"
    with pytest.raises(client.exceptions.QueueNameExists):
        client.create_queue(QueueName=queue.rsplit("/", 1)[1], Attributes={"DelaySeconds": "9", **fifo(queue)})
    with pytest.raises(client.exceptions.ReceiptHandleIsInvalid):
        client.delete_message(QueueUrl=queue, ReceiptHandle="any")
    with pytest.raises(client.exceptions.InvalidAddress):
        client.purge_queue(QueueUrl=queue.split("/0000")[0])
    with pytest.raises(ClientError) as caught:
        client.receive_message(QueueUrl=queue, MaxNumberOfMessages=11)
    said = caught.value.response["Error"]
    assert (said["Code"], said["QueryErrorCode"]) == ("InvalidParameterValue", "InvalidParameterValueException")
    assert said["Message"] == "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."


def fifo(queue):
    return {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
