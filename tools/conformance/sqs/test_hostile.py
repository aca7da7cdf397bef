"""What no client should send: an answer in AWS's words, never a 500, never a connection that hangs."""

import json
import socket

import pytest
from conftest import URL

HOST, PORT = URL.split("//")[1].split(":")


def exchange(data, then_close=False):
    """Sends bytes and gives back all that comes until the other side closes."""
    with socket.create_connection((HOST, int(PORT)), timeout=60) as client:
        try:
            client.sendall(data)
            if then_close:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        while True:
            try:
                part = client.recv(65536)
            except ConnectionResetError:
                break
            if not part:
                break
            answer += part
        return answer


def post(body, **headers):
    lines = {"Host": f"{HOST}:{PORT}", "Connection": "close", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return exchange(f"POST / HTTP/1.1\r\n{head}\r\n".encode() + body)


def post_json(action, body):
    return post(body, Content_Type="application/x-amz-json-1.0", X_Amz_Target=f"AmazonSQS.{action}")


def status_of(answer):
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer.split()[1])


ACTIONS = """AddPermission CancelMessageMoveTask ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue
DeleteMessage DeleteMessageBatch DeleteQueue GetQueueAttributes GetQueueUrl ListDeadLetterSourceQueues ListMessageMoveTasks
ListQueueTags PurgeQueue ReceiveMessage RemovePermission SendMessage SendMessageBatch SetQueueAttributes StartMessageMoveTask
TagQueue UntagQueue""".split()


@pytest.mark.parametrize("action", ACTIONS)
def test_bodies_that_are_no_request(action):
    for body in (b"{", b"[]", b"null", b"\xff\xfe", b'{"QueueUrl":', b"1" * 5000, b'"x"', b"[" * 100_000, b'{"a":' * 50_000):
        answer = post_json(action, body)
        assert status_of(answer) == 400 and b"SerializationException" in answer, (body[:20], answer)


@pytest.mark.parametrize("action", ACTIONS)
def test_missing_fields_are_named(action):
    for answer in (post_json(action, b"{}"), post(f"Action={action}".encode())):
        assert status_of(answer) in (400, 404), answer
        assert b"MissingParameter" in answer or b"MissingRequiredParameter" in answer, answer


@pytest.mark.parametrize("action", ACTIONS)
def test_wrong_types_are_refused(action, queues):
    queue = queues()
    fields = """QueueUrl QueueName Attributes AttributeNames Entries ReceiptHandle VisibilityTimeout MessageBody DelaySeconds
    MessageAttributes MaxNumberOfMessages WaitTimeSeconds Label AWSAccountIds Actions Tags TagKeys TaskHandle SourceArn
    MaxResults NextToken MessageSystemAttributes MessageGroupId""".split()
    for value in (None, True, 7, -1, 1e308, 2**70, "x", "", [], [None], [[]], {}, {"a": None}, {"a": {"b": []}}, [{}], [{"Id": 5}]):
        for field in fields:
            request = {"QueueUrl": queue, field: value}
            answer = post_json(action, json.dumps(request).encode())
            assert status_of(answer) < 500, (request, answer)


def test_strange_targets_methods_and_paths():
    assert status_of(post_json("Dance", b"{}")) == 400
    assert b"InvalidAction" in post(b"Action=Dance")
    assert b"MissingAction" in post(b"")
    assert b"UnknownOperationException" in exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        answer = exchange(f"{method} /a/b?Action=ListQueues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert status_of(answer) < 500
    assert status_of(exchange(b"GET /%ff%00/../..?Action=%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 400


@pytest.mark.parametrize(
    "form",
    [
        b"Action=SendMessage&QueueUrl=%ff",
        b"Action=SendMessage&MessageBody=%c3",
        b"Action=ReceiveMessage&MaxNumberOfMessages=ten",
        b"Action=ReceiveMessage&MaxNumberOfMessages=99999999999999999999",
        b"Action=SendMessageBatch&SendMessageBatchRequestEntry.x.Id=a",
        b"Action=SendMessageBatch&SendMessageBatchRequestEntry.1.MessageAttribute.1.Value=a",
        b"Action=CreateQueue&Attribute.1.Value=x",
        b"Action=CreateQueue&QueueName=" + b"x" * 100_000,
        b"Action=CreateQueue&QueueName=a%0ab",
        b"&&&===&Action=CreateQueue",
        b"%%%%%",
        b"Action=CreateQueue&" + b"&".join(b"Attribute.%d.Name=x" % i for i in range(20_000)),
        b"Action=GetQueueUrl&QueueName=" + b"%F0%9F%9A%80" * 100,
    ],
)
def test_forms_that_make_no_sense(form):
    answer = post(form, Content_Type="application/x-www-form-urlencoded")
    assert 400 <= status_of(answer) < 500 and b"<ErrorResponse" in answer, answer[:300]


@pytest.mark.parametrize("address", ["", "x", "http://", "http://h", "ftp://h/q", "http://h/%ff", "http://h/" + "x" * 5000, "http://h/a%00b", "//", "http://[::1/q"])
def test_addresses_that_name_no_queue(address):
    for action in ("SendMessage", "ReceiveMessage", "DeleteQueue"):
        answer = post_json(action, json.dumps({"QueueUrl": address, "MessageBody": "x"}).encode())
        assert status_of(answer) in (400, 404) and (b"InvalidAddress" in answer or b"QueueDoesNotExist" in answer), answer


def test_a_request_that_is_too_long_is_refused_before_it_is_read():
    head = f"POST / HTTP/1.1\r\nHost: {HOST}:{PORT}\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"
    answer = exchange(head.encode() + b"x" * 1000)
    assert status_of(answer) == 413 and b"RequestEntityTooLarge" in answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 1000,
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nshort",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: \xff\xfe\r\nX-Amz-Target: \xff\r\nContent-Length: 2\r\n\r\n{}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_the_connection(data):
    answer = exchange(data, then_close=True)
    assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]


LIST = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"


def test_requests_come_in_all_ways_that_http_has():
    close = "Connection: close\r\n"
    for request, count in (
        (LIST + close + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 1),
        (LIST + close + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", 1),
        (LIST + close + "\r\n", 1),
        ((LIST + "Content-Length: 2\r\n\r\n{}") * 4 + LIST + close + "\r\n", 5),
        (LIST.replace("HTTP/1.1", "HTTP/1.0") + "Content-Length: 2\r\n\r\n{}", 1),
        ("GET /?Action=ListQueues HTTP/1.1\r\nHost: localhost\r\n" + close + "\r\n", 1),
        ("GET /?Action=ListQueues HTTP/1.0\r\n\r\n", 1),
    ):
        answer = exchange(request.encode())
        assert answer.count(b" 200 OK\r\n") == count, (request, answer)


def test_the_path_of_a_request_can_name_its_queue(sqs, queues):
    """As clients did before they said `QueueUrl`."""
    queue = queues()
    path = queue.split(f":{PORT}")[1]
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{PORT}\r\nConnection: close\r\n"
    for headers, body in (
        ("", "Action=SendMessage&MessageBody=form"),
        ("Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n", '{"MessageBody":"json"}'),
    ):
        answer = exchange(f"{head}{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert status_of(answer) == 200, answer
    bodies = {message["Body"] for message in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]}
    assert bodies == {"form", "json"}


def test_bodies_that_are_packed_are_not_unpacked():
    import gzip

    for body, headers, code in (
        (gzip.compress(b"{}"), {"Content_Type": "application/x-amz-json-1.0", "X_Amz_Target": "AmazonSQS.ListQueues"}, b"Serialization"),
        (gzip.compress(b"Action=ListQueues"), {"Content_Type": "application/x-www-form-urlencoded"}, b"MalformedQueryString"),
        (b"<ListQueues/>", {"Content_Type": "text/xml"}, b"MissingAction"),
        (b"--x\r\n\r\nListQueues\r\n--x--", {"Content_Type": "multipart/form-data; boundary=x"}, b"MissingAction"),
    ):
        answer = post(body, Content_Encoding="gzip", **headers)
        assert status_of(answer) == 400 and code in answer, answer


def test_other_methods_are_refused():
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = exchange(f"{method} /?Action=ListQueues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert status_of(answer) == 400 and b"<Code>AWS.SimpleQueueService.UnsupportedOperation</Code>" in answer
    for method in ("GET", "PUT"):
        answer = exchange((LIST.replace("POST", method) + "Connection: close\r\n\r\n").encode())
        assert status_of(answer) == 400 and b"com.amazonaws.sqs#UnsupportedOperation" in answer


def test_more_values_than_anybody_needs_are_not_read(queues):
    """A few bytes of a request take some hundred in memory: what is long is counted first."""
    queue = json.dumps(queues()).encode()
    many = 200_000
    for action, members in (
        ("SendMessageBatch", b'"Entries":[' + b"{}," * many + b"{}]"),
        ("ReceiveMessage", b'"AttributeNames":[' + b'"",' * many + b'""]'),
        ("SendMessage", b'"MessageAttributes":{' + b",".join(b'"%d":{}' % number for number in range(many)) + b"}"),
        ("ListQueues", b'"Unknown":[' + b"0," * many + b"0]"),
    ):
        answer = post_json(action, b'{"QueueUrl":' + queue + b"," + members + b"}")
        assert status_of(answer) == 400 and b"more than 100000 values" in answer, answer[:500]
    answer = post(b"Action=ListQueues&" + b"a&" * many)
    assert status_of(answer) == 400 and b"at most 100000 parameters" in answer, answer[:500]
    # What is long because of its texts is another thing.
    body = json.dumps({"MessageBody": ',"\\' * many}).encode()
    answer = post_json("SendMessage", b'{"QueueUrl":' + queue + b"," + body[1:])
    assert status_of(answer) == 200, answer[:500]
