"""Clients that stop in the middle, and clients that only wait: the first are sent away, the others are not."""

import socket
import threading
import time

import pytest
from conftest import PROTOCOL, URL, receive

HOST, PORT = URL.split("//")[1].split(":")
HEAD = f"POST / HTTP/1.1\r\nHost: {HOST}:{PORT}\r\n"
JSON = HEAD + "Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
FORM = HEAD + "Content-Type: application/x-www-form-urlencoded\r\n"

STALLED = {
    "a body of JSON": JSON + 'Content-Length: 100\r\n\r\n{"Queue',
    "a form": FORM + "Content-Length: 100\r\n\r\nAction=List",
    "no body at all": FORM + "Content-Length: 100\r\n\r\n",
    "a chunk": JSON + "Transfer-Encoding: chunked\r\n\r\n20\r\n{",
    "the next chunk": JSON + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "a body that was asked for": JSON + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
}


def until_closed(data):
    """Sends bytes, then nothing, and gives back all that comes until the other side closes."""
    with socket.create_connection((HOST, int(PORT)), timeout=100) as client:
        client.sendall(data.encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


@pytest.mark.skipif(PROTOCOL != "json", reason="it takes its time, and does not depend on the client")
def test_half_a_request_is_given_up_and_a_long_wait_is_not(sqs, queues):
    answers = {}
    stalled = [
        threading.Thread(target=lambda what, data: answers.update({what: until_closed(data)}), args=one)
        for one in STALLED.items()
    ]
    for thread in stalled:
        thread.start()
    began = time.monotonic()
    assert receive(sqs, queues(), wait=25) == []
    assert time.monotonic() - began >= 24.9
    for thread in stalled:
        thread.join()
    assert answers.keys() == STALLED.keys()
    for what, answer in answers.items():
        assert b"HTTP/1.1 408 " in answer, (what, answer)
        code = b"RequestTimeoutException" if "json" in STALLED[what] else b"<Code>RequestTimeout</Code>"
        assert code in answer and b"did not come in time" in answer, (what, answer)
