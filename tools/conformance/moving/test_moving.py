"""Clients that try again, while leadership moves from node to node every few seconds.

Each test has a load that lasts for several moves. What was confirmed must come, and what was settled for certain must not come
again. A client whose answer was lost does not know what became of its request, and repeats it: so a message may come twice where
nothing tells a repetition from another message.

`AMQP_MOVE_COMMAND` has the next node lead. `AMQP_URL`, `SQS_URL` and `GRPC_URL` are those of one of the nodes, which leads now and
then; `HTTP_URL` is its management port, and `NEXO_BIN` the command line.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import boto3
import pika
import pytest
import requests
from botocore.config import Config

HERE = Path(__file__).parent
MOVE_EVERY_S = 3.0
LOAD_S = 16.0
MOVES_MIN = 3
PATIENCE_S = 60.0


def term():
    """The term of the leader, once there is one."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            answer = requests.get(f"{os.environ['HTTP_URL']}/api/nexo/cluster", auth=("guest", "guest"), timeout=5)
            if answer.ok and answer.json().get("leader"):
                return max(group["term"] for group in answer.json()["groups"])
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise AssertionError("nobody leads")


@pytest.fixture(autouse=True)
def leaders_move():
    """Moves leadership as long as a test runs, and makes sure that it did."""
    before, stop, failures = term(), threading.Event(), []
    moves = []

    def move():
        while not stop.wait(MOVE_EVERY_S):
            moved = subprocess.run(shlex.split(os.environ["AMQP_MOVE_COMMAND"]), capture_output=True, text=True)
            if moved.returncode:
                failures.append(moved.stderr)
            else:
                moves.append(time.monotonic())

    mover = threading.Thread(target=move)
    mover.start()
    yield moves
    stop.set()
    mover.join()
    assert not failures, failures[0]
    assert len(moves) >= MOVES_MIN and term() >= before + MOVES_MIN, f"leadership moved {len(moves)} times only"


def wait_until(check, what):
    end = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def again(work, *errors):
    """Does something until it is not interrupted; it may fail at once for so long."""
    failing_since = None
    while True:
        began = time.monotonic()
        try:
            return work()
        except errors:
            now = time.monotonic()
            failing_since = failing_since if failing_since and now - began < 1 else now
            assert now < failing_since + PATIENCE_S, "there is no service"
            time.sleep(0.1)


PREFETCH = 20
AMQP_ERRORS = (pika.exceptions.AMQPError, OSError)


class Publisher:
    """Publishes one message at a time with confirms, over connections that come and go."""

    def __init__(self, queue):
        self.queue, self.channel, self.repeated = queue, None, 0

    def open(self):
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
        self.channel = connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare(self.queue, durable=True)

    def publish(self, body):
        def once():
            if self.channel is None or not self.channel.is_open:
                self.open()
            try:
                persistent = pika.BasicProperties(delivery_mode=2)
                self.channel.basic_publish("", self.queue, body, persistent, mandatory=True)
            except Exception:
                self.repeated += 1
                self.channel = None
                raise

        again(once, *AMQP_ERRORS)


def test_pika_loses_nothing_that_was_confirmed(leaders_move):
    queue = f"moving.{uuid.uuid4().hex}"
    publisher = Publisher(queue)
    again(publisher.open, *AMQP_ERRORS)
    confirmed, came, done = set(), [], threading.Event()

    def consume():
        def once():
            connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            for method, _, body in channel.consume(queue, inactivity_timeout=0.2):
                if method is not None:
                    came.append(int(body))
                    channel.basic_ack(method.delivery_tag)
                elif done.is_set() and confirmed <= set(came):
                    connection.close()
                    return

        again(once, *AMQP_ERRORS)

    consumer = threading.Thread(target=consume)
    consumer.start()
    end, number = time.monotonic() + LOAD_S, 0
    while time.monotonic() < end:
        publisher.publish(str(number))
        confirmed.add(number)
        number += 1
    done.set()
    consumer.join(PATIENCE_S)
    missing = confirmed - set(came)
    assert not missing, f"{len(missing)} of {len(confirmed)} confirmed messages did not come"
    assert not consumer.is_alive() and len(confirmed) > 100
    # A move may bring again what is with a consumer: as many as it may have. One more may have begun.
    again_at_most = PREFETCH * (len(leaders_move) + 1) + publisher.repeated
    assert len(came) - len(set(came)) <= again_at_most


def sqs_client():
    return boto3.client(
        "sqs",
        endpoint_url=os.environ["SQS_URL"],
        region_name="eu-west-1",
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        config=Config(retries={"mode": "standard", "max_attempts": 20}, read_timeout=30, connect_timeout=5),
    )


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_boto3_with_its_own_retries_notices_nothing(fifo):
    sqs = sqs_client()
    name = f"moving-{uuid.uuid4().hex}" + (".fifo" if fifo else "")
    queue = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})["QueueUrl"]
    sent, came, deleted, wrong, done = [], [], set(), [], threading.Event()

    def receive():
        receiver = sqs_client()
        idle = 0
        # Longer than the visibility: what comes again because its deletion was lost comes by then.
        while not (done.is_set() and idle >= 5):
            answer = receiver.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=3)
            messages = answer.get("Messages", [])
            idle = 0 if messages else idle + 1
            for message in messages:
                number = int(message["Body"])
                if number in deleted and fifo:
                    wrong.append(number)
                came.append(number)
            for message in messages:
                receiver.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                deleted.add(int(message["Body"]))

    receiver = threading.Thread(target=receive)
    receiver.start()
    end, number = time.monotonic() + LOAD_S, 0
    while time.monotonic() < end:
        more = {"MessageGroupId": "g", "MessageDeduplicationId": str(number)} if fifo else {}
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), **more)
        sent.append(number)
        number += 1
    # What a lost lease gave back comes within its visibility.
    wait_until(lambda: set(sent) <= set(came), "what was sent must come")
    done.set()
    receiver.join(PATIENCE_S)
    assert not receiver.is_alive() and deleted >= set(sent)
    assert not wrong, f"{wrong} came after they were deleted"
    assert len(sent) > 50
    if fifo:
        first = list(dict.fromkeys(came))
        assert first == sent, "each once, in order"
    sqs.delete_queue(QueueUrl=queue)


def nexo(*args, check=True, **more):
    command = [os.environ["NEXO_BIN"], "--server", os.environ["GRPC_URL"], *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=check, **more)


def test_the_command_line_pushes_once_and_its_worker_stays(tmp_path):
    queue = f"moving-{uuid.uuid4().hex}"
    wait_until(lambda: nexo("queue", "create", queue, check=False).returncode == 0, "a queue can be made")
    ledger = tmp_path / "ledger"
    ledger.touch()
    worker = subprocess.Popen(
        [os.environ["NEXO_BIN"], "--server", os.environ["GRPC_URL"], "consume", queue, "--exec", f"cat >> {ledger}; echo >> {ledger}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end, number = time.monotonic() + LOAD_S, 0
    while time.monotonic() < end:
        push = ("push", queue, f"m{number}", "--dedup-id", f"d{number}")
        wait_until(lambda: nexo(*push, check=False).returncode == 0, "a message can be pushed")
        number += 1
    pushed = {f"m{one}" for one in range(number)}
    try:
        wait_until(lambda: pushed <= set(ledger.read_text().split()), "what was pushed must come")
        assert worker.poll() is None, worker.stderr.read()
    finally:
        worker.send_signal(signal.SIGINT)
        worker.wait(PATIENCE_S)
    assert set(ledger.read_text().split()) == pushed
    assert number > 20


def test_celery_does_every_task(tmp_path):
    folder, log = tmp_path / "done", tmp_path / "worker.log"
    folder.mkdir()
    os.environ["ORDERS_PREFIX"] = f"moving.{uuid.uuid4().hex[:12]}"
    os.environ["RESULTS_DIR"] = str(tmp_path)
    import orders

    command = [sys.executable, "-m", "celery", "-A", "orders", "worker", "-c", "1", "--loglevel=INFO"]
    command += ["--without-gossip", "--without-mingle"]
    with open(log, "w") as out:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        worker = subprocess.Popen(command, cwd=HERE, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until(lambda: " ready." in log.read_text() or worker.poll() is not None, "the worker gets ready")
        end, number = time.monotonic() + LOAD_S, 0
        while time.monotonic() < end:
            orders.ship.delay(str(folder), number)
            number += 1
            time.sleep(0.02)
        try:
            wait_until(lambda: len(list(folder.iterdir())) == number, f"all {number} tasks are done")
        except AssertionError:
            print(log.read_text()[-3000:])
            raise
        assert worker.poll() is None
        assert number > 100
    finally:
        if worker.poll() is None:
            worker.terminate()
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
