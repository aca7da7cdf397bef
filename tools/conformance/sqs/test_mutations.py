"""Good requests of every action in both protocols, changed at random: answered in AWS's words, whatever they are.

`SQS_MUTATIONS` says how many are tried (a few seconds' worth unless it is set), `SQS_SEED` which ones. A failure names the
seed and shows the request.
"""

import base64
import copy
import http.client
import json
import os
import random
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import PROTOCOL, Nexo

ROUNDS = int(os.environ.get("SQS_MUTATIONS", 2500))
# Each run of the suite tries others.
SEED = int(os.environ.get("SQS_SEED", {"json": 1, "query": 2}[PROTOCOL]))
XMLNS = "{http://queue.amazonaws.com/doc/2012-11-05/}"
# What cannot be done again and again, and so is refused even unchanged.
MAY_FAIL = {"CancelMessageMoveTask", "DeleteQueue"}
# Answers that do not leave the connection as it was: the rest of the request was not read.
CLOSING = {408, 413}

ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "grüße <&>"},
    "number": {"DataType": "Number.int", "StringValue": "-7"},
    "bytes": {"DataType": "Binary", "BinaryValue": "AAH/"},
}
TRACE = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}


def good_requests(queue, fifo, handle, arn, dead):
    """A request for every action, as JSON has it."""
    send = {"MessageBody": "hello", "MessageAttributes": ATTRIBUTES, "MessageSystemAttributes": TRACE}
    group = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    change = {"ReceiptHandle": handle, "VisibilityTimeout": 0}
    names = {"AttributeNames": ["All"], "MessageAttributeNames": ["text", "by.*"]}
    return [
        ("AddPermission", {"QueueUrl": queue, "Label": "l", "AWSAccountIds": ["1", "2"], "Actions": ["SendMessage", "*"]}),
        ("CancelMessageMoveTask", {"TaskHandle": base64.b64encode(json.dumps({"taskId": "x", "sourceArn": dead}).encode()).decode()}),
        ("ChangeMessageVisibility", {"QueueUrl": queue, **change}),
        ("ChangeMessageVisibilityBatch", {"QueueUrl": queue, "Entries": [{"Id": "a", **change}, {"Id": "b", **change}]}),
        ("CreateQueue", {"QueueName": "made", "Attributes": {"DelaySeconds": "0", "Policy": "{}"}, "tags": {"a": "b"}}),
        ("CreateQueue", {"QueueName": "made.fifo", "Attributes": {"FifoQueue": "true", "DeduplicationScope": "queue"}}),
        ("DeleteMessage", {"QueueUrl": queue, "ReceiptHandle": handle}),
        ("DeleteMessageBatch", {"QueueUrl": fifo, "Entries": [{"Id": "a", "ReceiptHandle": handle}]}),
        ("DeleteQueue", {"QueueUrl": queue + "-gone"}),
        ("GetQueueAttributes", {"QueueUrl": fifo, "AttributeNames": ["All", "QueueArn"]}),
        ("GetQueueUrl", {"QueueName": "mutated", "QueueOwnerAWSAccountId": "000000000000"}),
        ("ListDeadLetterSourceQueues", {"QueueUrl": queue, "MaxResults": 10, "NextToken": "bXV0YXRlZA"}),
        ("ListMessageMoveTasks", {"SourceArn": dead, "MaxResults": 10}),
        ("ListQueueTags", {"QueueUrl": queue}),
        ("ListQueues", {"QueueNamePrefix": "m", "MaxResults": 10, "NextToken": "bXV0YXRlZA"}),
        ("PurgeQueue", {"QueueUrl": fifo}),
        ("ReceiveMessage", {"QueueUrl": queue, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0, **names}),
        ("ReceiveMessage", {"QueueUrl": fifo, "ReceiveRequestAttemptId": "try", "MessageSystemAttributeNames": ["SenderId"]}),
        ("RemovePermission", {"QueueUrl": queue, "Label": "l"}),
        ("SendMessage", {"QueueUrl": queue, "DelaySeconds": 0, **send}),
        ("SendMessage", {"QueueUrl": fifo, **group, **send}),
        ("SendMessageBatch", {"QueueUrl": queue, "Entries": [{"Id": "a", **send}, {"Id": "b", "MessageBody": "x"}]}),
        ("SendMessageBatch", {"QueueUrl": fifo, "Entries": [{"Id": "a", **send, **group}]}),
        ("SetQueueAttributes", {"QueueUrl": queue, "Attributes": {"VisibilityTimeout": "30", "RedriveAllowPolicy": ""}}),
        ("StartMessageMoveTask", {"SourceArn": dead, "DestinationArn": arn, "MaxNumberOfMessagesPerSecond": 5}),
        ("TagQueue", {"QueueUrl": queue, "Tags": {"a": "b", "c": ""}}),
        ("UntagQueue", {"QueueUrl": queue, "TagKeys": ["a", "c"]}),
    ]


# Members of lists and maps as forms spell them: `Attribute.1.Name=…&Attribute.1.Value=…`.
LISTS = {"AWSAccountIds": "AWSAccountId", "Actions": "ActionName", "AttributeNames": "AttributeName", "TagKeys": "TagKey"}
LISTS |= {"MessageAttributeNames": "MessageAttributeName", "MessageSystemAttributeNames": "MessageSystemAttributeName"}
MAPS = {"Attributes": ("Attribute", "Name", "Value"), "Tags": ("Tag", "Key", "Value"), "tags": ("Tag", "Key", "Value")}
MAPS |= {name: (name[:-1], "Name", "Value") for name in ("MessageAttributes", "MessageSystemAttributes")}


def as_form(action, request):
    """The parameters of a request, whatever has become of it."""
    pairs = [("Action", action), ("Version", "2012-11-05")]

    def put(name, value, key=""):
        if key in MAPS and isinstance(value, dict):
            flat, first, second = MAPS[key]
            path = name[: -len(key)] + flat
            for number, (one, other) in enumerate(value.items(), 1):
                pairs.append((f"{path}.{number}.{first}", one))
                put(f"{path}.{number}.{second}", other)
        elif isinstance(value, list):
            flat = LISTS.get(key, f"{action}RequestEntry" if key == "Entries" else key)
            for number, one in enumerate(value, 1):
                put(f"{name[: -len(key)]}{flat}.{number}" if key else f"{name}.{number}", one)
        elif isinstance(value, dict):
            for member, one in value.items():
                put(f"{name}.{member}", one, member)
        elif value is not None:
            pairs.append((name, value if isinstance(value, str) else json.dumps(value)))

    if isinstance(request, dict):
        for name, value in request.items():
            put(name, value, name)
    return pairs


# A receive must not wait, or the run would: no number here is one of seconds that it may ask for.
VALUES = [None, True, False, 0, -1, 1.5, 2**31, 2**63, -(2**63), 2**70, 1e308, float("nan"), float("inf"), "", "x", "\u0000", "\ud83d\ude80"]
VALUES += ["NaN", "-1", "99999999999999999999", "true", " ", "a" * 300, "<&>\"'", "../..", "%00%ff", [], [None], [[]], [{}], {}, {"": ""}]
VALUES += [{"a": {"b": []}}, ["All"] * 20, [{"Id": "a"}] * 11, {"DataType": "String", "StringValue": "\u000b"}, "arn:aws:sqs:::", "{}", "[" * 200]


class Mutations:
    """Changes requests, the same way for the same seed."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def tree(self, request):
        """The same request with some values, names or members changed."""
        request = copy.deepcopy(request)
        for _ in range(self.chance.choice([1, 1, 1, 2, 4])):
            places = list(self.places(request))
            if not places:
                break
            parent, key = self.chance.choice(places)
            how = self.chance.randrange(6)
            if how == 0:
                del parent[key]
            elif how == 1 and isinstance(parent, dict):
                parent[self.chance.choice([key.lower(), key + "s", "", "\u0000", "Unknown", "a" * 300])] = parent.pop(key)
            elif how == 2 and isinstance(parent, list):
                parent.extend([copy.deepcopy(parent[key])] * self.chance.choice([1, 10, 100]))
            elif how == 3:
                parent[key] = [parent[key]]
            else:
                parent[key] = self.other(parent[key])
        return request

    def other(self, value):
        """Another value: mostly of the same type, or the request would not be read any further."""
        if self.chance.random() < 0.2:
            return copy.deepcopy(self.chance.choice(VALUES))
        if isinstance(value, str) and self.chance.random() < 0.5:
            at = self.chance.randrange(len(value) + 1)
            return value[:at] + self.chance.choice(["", "", value, "x", " ", "/", ".", "\u0000", "\u0001", "\ufffe", "é", "&<"]) + value[at:][1:]
        alike = [other for other in VALUES if type(other) is type(value)]
        return copy.deepcopy(self.chance.choice(alike or VALUES))

    def places(self, value):
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
        for key, member in list(members):
            yield value, key
            yield from self.places(member)

    def bytes(self, body):
        """The same bytes, some flipped, cut off, repeated or put in."""
        body = bytearray(body)
        for _ in range(self.chance.choice([1, 1, 2, 5])):
            at = self.chance.randrange(len(body) + 1)
            how = self.chance.randrange(5)
            if how == 0:
                del body[at:]
            elif how == 1 and at < len(body):
                body[at] ^= 1 << self.chance.randrange(8)
            elif how == 2:
                body[at:at] = bytes(self.chance.randrange(256) for _ in range(self.chance.randrange(4)))
            elif how == 3:
                body[at:at] = body[at : at + self.chance.randrange(40)]
            else:
                body[at:at] = self.chance.choice([b"\xff", b"\x00", b"\xef\xbb\xbf", b"%", b"%f", b'"', b"\\u", b"\\ud800", b"{", b"]", b"&", b"=", b","])
        return bytes(body)

    def json(self, action, request):
        body = json.dumps(self.tree(request), ensure_ascii=self.chance.random() < 0.5).encode("utf-8", "surrogatepass")
        if self.chance.random() < 0.05 and len(body) > 2:
            # Names that come twice.
            body = body[:-1] + b"," + body[1:]
        target = f"AmazonSQS.{action}"
        if self.chance.random() < 0.03:
            target = self.chance.choice(["", "AmazonSQS", "AmazonSQS.", "AmazonSNS." + action, target.lower(), target + "x", "\xff"])
        return {"Content-Type": self.content_type("application/x-amz-json-1.0"), "X-Amz-Target": target}, self.perhaps(body)

    def form(self, action, request):
        pairs = as_form(action, self.tree(request))
        if self.chance.random() < 0.3:
            at = self.chance.randrange(len(pairs))
            name, value = pairs[at]
            digits = self.chance.choice(["0", "-1", "4294967296", "x", "", "01", "2"])
            pairs[at : at + 1] = self.chance.choice([[], [(name, value)] * 3, [(name.replace("1", digits), value)], [(name + ".1", value)]])
        body = urllib.parse.urlencode(pairs, errors="surrogatepass").encode()
        return {"Content-Type": self.content_type("application/x-www-form-urlencoded")}, self.perhaps(body)

    def perhaps(self, body):
        return self.bytes(body) if self.chance.random() < 0.2 else body

    def content_type(self, usual):
        if self.chance.random() < 0.95:
            return usual
        return self.chance.choice(["", "text/plain", "application/json", "multipart/form-data", "application/x-amz-json-1.1", usual + "; charset=latin1"])


def check(status, headers, body):
    """That an answer has the shape of its protocol."""
    assert status == 200 or 400 <= status < 500, "neither done nor the sender's fault"
    assert headers["x-amzn-requestid"]
    if headers["content-type"] == "application/x-amz-json-1.0":
        said = json.loads(body) if body else {}
        assert isinstance(said, dict)
        if status == 200:
            assert "x-amzn-query-error" not in headers
            return None
        namespace, shape = said["__type"].split("#")
        assert namespace in ("com.amazonaws.sqs", "com.amazon.coral.service") and said["message"]
        code, side = headers["x-amzn-query-error"].split(";")
        assert side == "Sender"
        return code, shape
    assert headers["content-type"] == "text/xml"
    root = ElementTree.fromstring(body)
    if status == 200:
        assert root.tag.endswith("Response") and root.find(f"{XMLNS}ResponseMetadata/{XMLNS}RequestId").text
        return None
    assert root.tag == f"{XMLNS}ErrorResponse" and root.find(f"{XMLNS}RequestId").text
    error = root.find(f"{XMLNS}Error")
    assert error.find(f"{XMLNS}Type").text == "Sender" and error.find(f"{XMLNS}Message").text
    return error.find(f"{XMLNS}Code").text, None


@pytest.fixture
def broker():
    broker = Nexo("--sqs-limits", "strict")
    yield broker
    broker.clean()


@pytest.mark.timeout(3600)
def test_changed_requests_are_answered_and_harm_nobody(broker):
    client = broker.client()
    arn_of = lambda url: client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    dead = arn_of(client.create_queue(QueueName="mutated-dead")["QueueUrl"])
    policy = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 1000})
    queue = client.create_queue(QueueName="mutated", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    fifo = client.create_queue(QueueName="mutated.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    safe = client.create_queue(QueueName="safe")["QueueUrl"]
    client.send_message(QueueUrl=safe, MessageBody="unharmed")
    client.send_message(QueueUrl=queue, MessageBody="x")
    [got] = client.receive_message(QueueUrl=queue)["Messages"]
    requests = good_requests(queue, fifo, got["ReceiptHandle"], arn_of(queue), dead)
    assert len({action for action, _ in requests}) == 23

    connection = http.client.HTTPConnection(broker.url.split("//")[1], timeout=60)
    for action, request in requests:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        connection.request("POST", "/", json.dumps(request), headers)
        unchanged = connection.getresponse()
        text = unchanged.read()
        assert unchanged.status == 200 or action in MAY_FAIL, (action, text)
    shapes = {}
    for number in range(ROUNDS):
        # A request depends on its own number alone, so that one that failed can be tried by itself.
        mutations = Mutations(SEED * 1_000_000_007 + number)
        action, request = mutations.chance.choice(requests)
        headers, body = (mutations.json if mutations.chance.random() < 0.5 else mutations.form)(action, request)
        try:
            connection.request("POST", "/", body, {name: value.encode("latin1") for name, value in headers.items()})
            answer = connection.getresponse()
            text = answer.read()
            told = check(answer.status, answer.headers, text)
            if answer.status not in CLOSING:
                # The next request goes over the same connection.
                assert answer.headers.get("connection") != "close"
        except Exception as error:
            shown = body if len(body) < 5000 else body[:5000] + b"..."
            raise AssertionError(f"seed {SEED}, number {number}: {action} {headers} {shown!r}") from error
        if told and told[1]:
            # One shape, one code.
            assert shapes.setdefault(told[1], told[0]) == told[0]
        if number % 100 == 0:
            connection.request("GET", "/?Action=GetQueueUrl&QueueName=safe")
            assert connection.getresponse().read().count(b"/000000000000/safe") == 1
    connection.close()

    [message] = client.receive_message(QueueUrl=safe)["Messages"]
    assert message["Body"] == "unharmed"
    assert broker.end() == 0
    assert "panicked" not in broker.log()
