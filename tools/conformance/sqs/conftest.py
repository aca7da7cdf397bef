"""Where the SQS API is, clients for it, and queues that no other test uses.

`SQS_URL` says which endpoint is judged. The suite runs once for each protocol: botocore before 1.31.81 speaks the Query
protocol, later ones JSON; which one it is shows in the first line of the run. `NEXO_BIN` is the program under test, for
tests that need a broker of their own (with access keys, with strict limits, killed and started again).
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid

import boto3
import botocore
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

URL = os.environ.get("SQS_URL", "http://127.0.0.1:9324")
VERSION = tuple(int(part) for part in botocore.__version__.split("."))
PROTOCOL = "query" if VERSION < (1, 31, 81) else "json"
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def pytest_report_header():
    return f"SQS protocol: {PROTOCOL} (botocore {botocore.__version__}), endpoint {URL}"


def make_client(url=URL, key=KEY, secret=SECRET, **config):
    """A client that tries once and waits for long polls."""
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}, read_timeout=60, max_pool_connections=20, **config),
    )


@pytest.fixture(scope="session")
def sqs():
    return make_client()


class Queues:
    """Makes queues, and deletes them in the end."""

    def __init__(self, client):
        self.client = client
        self.made = []

    def name(self, suffix=""):
        return f"conf-{uuid.uuid4().hex[:16]}{suffix}"

    def __call__(self, fifo=False, name=None, **attributes):
        name = name or self.name(".fifo" if fifo else "")
        if fifo:
            attributes["FifoQueue"] = "true"
        url = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.made.append(url)
        return url

    def arn(self, url):
        return attributes_of(self.client, url, "QueueArn")["QueueArn"]

    def clean(self):
        for url in self.made:
            try:
                self.client.delete_queue(QueueUrl=url)
            except ClientError:
                pass


@pytest.fixture
def queues(sqs):
    queues = Queues(sqs)
    yield queues
    queues.clean()


@pytest.fixture(params=["standard", "fifo"])
def kind(request):
    return request.param


@pytest.fixture
def queue(queues, kind):
    """A queue of either kind; `sends(queue)` says what a send to it needs besides."""
    return queues(fifo=kind == "fifo")


def sends(queue, group="g", dedup=None):
    """What a send to this queue needs besides its body."""
    if not queue.endswith(".fifo"):
        return {}
    return {"MessageGroupId": group, "MessageDeduplicationId": dedup or uuid.uuid4().hex}


def attributes_of(client, queue, *names):
    return client.get_queue_attributes(QueueUrl=queue, AttributeNames=list(names) or ["All"])["Attributes"]


def receive(client, queue, wait=5, most=10, **more):
    """What comes within a while."""
    answer = client.receive_message(QueueUrl=queue, WaitTimeSeconds=wait, MaxNumberOfMessages=most, **more)
    return answer.get("Messages", [])


def receive_all(client, queue, count, **more):
    """That many messages, in as many receives as it takes."""
    messages = []
    while len(messages) < count:
        some = receive(client, queue, **more)
        assert some, f"{len(messages)} of {count} messages came"
        messages += some
    return messages


class Refused:
    """What a refused call said."""

    code = status = message = None


class refused:
    """Expects a call to be refused with this code."""

    def __init__(self, code, text="", status=None):
        self.code, self.text, self.status = code, text, status
        self.said = Refused()

    def __enter__(self):
        return self.said

    def __exit__(self, kind, error, trace):
        assert kind is not None, f"the call was not refused with {self.code}"
        if not isinstance(error, ClientError):
            return False
        said = error.response["Error"]
        assert said["Code"] == self.code, said
        assert self.text in said["Message"], said
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert status < 500, status
        if self.status:
            assert status == self.status
        self.said.code, self.said.message, self.said.status = said["Code"], said["Message"], status
        return True


class Nexo:
    """A broker of one's own, on free ports, with data that goes with it."""

    def __init__(self, *arguments, host="127.0.0.1"):
        self.data = tempfile.mkdtemp(prefix="nexo-sqs-")
        self.arguments, self.host = arguments, host
        self.start()

    def start(self):
        program = os.environ.get("NEXO_BIN")
        if not program:
            pytest.skip("NEXO_BIN is not set")
        command = [program, "serve", "--sqs", f"{self.host}:0", "--amqp", "127.0.0.1:0", "--grpc", "off", "--http", "off"]
        with open(f"{self.data}.log", "a") as log:
            self.process = subprocess.Popen(
                [*command, "--data-dir", self.data, *self.arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        ready = self.process.stdout.readline()
        self.url = "http://" + re.search(r"sqs=(\S+)", ready).group(1)
        self.amqp = re.search(r"amqp=(\S+)", ready).group(1)

    def client(self, **more):
        return make_client(self.url, **more)

    def log(self):
        """What it has written for whoever runs it."""
        with open(f"{self.data}.log") as log:
            return log.read()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Ends it as a supervisor would; gives back the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=60)

    def clean(self):
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()
        shutil.rmtree(self.data, ignore_errors=True)
        os.remove(f"{self.data}.log")


@pytest.fixture
def nexo():
    """Starts brokers with these arguments; all end with the test."""
    started = []

    def start(*arguments):
        started.append(Nexo(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.clean()
