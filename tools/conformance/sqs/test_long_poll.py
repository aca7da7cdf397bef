"""Receives that wait: for nothing, for the first that comes, and for nobody once their client is gone."""

import socket
import threading
import time

from conftest import URL, attributes_of, receive, sends


def test_a_receive_waits_as_long_as_it_says(sqs, queue):
    began = time.monotonic()
    assert receive(sqs, queue, wait=2) == []
    assert time.monotonic() - began >= 1.9


def test_a_receive_waits_as_long_as_its_queue_says(sqs, queues):
    queue = queues(ReceiveMessageWaitTimeSeconds="2")
    began = time.monotonic()
    assert sqs.receive_message(QueueUrl=queue).get("Messages") is None
    assert time.monotonic() - began >= 1.9


def test_each_message_wakes_one_of_those_that_wait(sqs, queue):
    got, lock = [], threading.Lock()

    def wait():
        # One each: a thread that is late finds two, and leaves another nothing to wait for.
        messages = receive(sqs, queue, wait=20, most=1)
        with lock:
            got.append([message["Body"] for message in messages])

    waiting = [threading.Thread(target=wait) for _ in range(5)]
    for thread in waiting:
        thread.start()
    time.sleep(1)
    for number in range(5):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), **sends(queue, group=str(number)))
    for thread in waiting:
        thread.join()
    assert sorted(got) == [["0"], ["1"], ["2"], ["3"], ["4"]]


def test_a_client_that_goes_away_takes_no_message_with_it(sqs, queue):
    host, port = URL.split("//")[1].split(":")
    body = f"Action=ReceiveMessage&QueueUrl={queue}&WaitTimeSeconds=20".encode()
    head = f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(20):
        client = socket.create_connection((host, int(port)))
        client.sendall(request)
        time.sleep(0.02)
        client.close()
    time.sleep(0.5)
    for number in range(20):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), **sends(queue, group=str(number)))
    # The broker may learn late that a client is gone. Then it takes back what it gave it, long before a lease ends.
    end = time.monotonic() + 20
    while attributes_of(sqs, queue)["ApproximateNumberOfMessagesNotVisible"] != "0":
        assert time.monotonic() < end, "a client that is gone has a message"
        time.sleep(0.05)
    bodies = {message["Body"] for _ in range(2) for message in receive(sqs, queue)}
    assert len(bodies) == 20


def test_those_who_wait_do_not_keep_a_broker_from_ending(nexo):
    broker = nexo()
    client = broker.client()
    queue = client.create_queue(QueueName="q")["QueueUrl"]
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(receive(client, queue, wait=20)))
    waiting.start()
    time.sleep(1)
    began = time.monotonic()
    assert broker.end() == 0
    waiting.join()
    assert answers == [[]] and time.monotonic() - began < 9
