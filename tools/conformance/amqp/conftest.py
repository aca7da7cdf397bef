"""Where the broker is, names that no other test uses, and what the tests share.

`AMQP_URL` says which broker is judged. The broker says in its server properties what it is; a test marked
`nexo_only` is skipped on RabbitMQ, where 3.10 lacks what it tests.
"""

import os
import shlex
import subprocess
import uuid
from dataclasses import dataclass

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

pytest.register_assert_rewrite("wire", "words")

from wire import Wire  # noqa: E402

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")


@dataclass
class Broker:
    """The broker under test."""

    product: str
    version: str

    @property
    def is_rabbitmq(self):
        return self.product == "RabbitMQ"


@pytest.fixture(scope="session")
def url():
    return URL


@pytest.fixture(scope="session")
def user():
    """The user that the URL logs in as."""
    return pika.URLParameters(URL).credentials.username


@pytest.fixture(scope="session")
def broker():
    """What the broker says of itself."""
    with Wire(URL) as wire:
        said = wire.start().server_properties
    text = lambda value: value.decode() if isinstance(value, bytes) else value
    return Broker(text(said["product"]), text(said["version"]))


@pytest.fixture(autouse=True)
def skip_what_rabbitmq_lacks(request, broker):
    marker = request.node.get_closest_marker("nexo_only")
    if marker and broker.is_rabbitmq:
        pytest.skip(f"RabbitMQ {broker.version}: {marker.args[0]}")


@pytest.fixture
def wire():
    """A bare connection to which nothing has been sent."""
    with Wire(URL) as wire:
        yield wire


@pytest.fixture
def connect():
    """Opens connections that are closed when the test ends; keywords override the URL's parameters."""
    opened = []

    def connect(**overrides):
        parameters = pika.URLParameters(URL)
        parameters.heartbeat = 0
        parameters.socket_timeout = 10
        parameters.blocked_connection_timeout = 20
        for key, value in overrides.items():
            setattr(parameters, key, value)
        connection = pika.BlockingConnection(parameters)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        try:
            connection.close()
        except Exception:
            pass


@pytest.fixture
def connection(connect):
    return connect()


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def name(request):
    """Makes names that no other test uses; queues and exchanges of these names are deleted at the end."""
    made = []

    def name(hint="q"):
        made.append(f"conf.{hint}.{uuid.uuid4().hex[:12]}")
        return made[-1]

    yield name
    if not made:
        return
    try:
        parameters = pika.URLParameters(URL)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        for one in made:
            channel.queue_delete(one)
            channel.exchange_delete(one)
        connection.close()
    except Exception:
        pass


@pytest.fixture
def queue(channel, name):
    """A durable queue with no arguments."""
    made = name("q")
    channel.queue_declare(made, durable=True)
    return made


@pytest.fixture
def exchange_type(connect, broker):
    """Skips on RabbitMQ when the plugin that brings this exchange type is not enabled."""

    def require(kind, arguments=None):
        probe = f"conf.probe.{uuid.uuid4().hex[:12]}"
        try:
            channel = connect().channel()
            channel.exchange_declare(probe, kind, arguments=arguments)
            channel.exchange_delete(probe)
        except ConnectionClosedByBroker:
            if broker.is_rabbitmq:
                pytest.skip(f"RabbitMQ {broker.version}: no plugin brings exchange type '{kind}'")
            raise

    return require


@pytest.fixture
def command():
    """Runs a command that the environment names, such as AMQP_RESTART_COMMAND; skips where it does not."""

    def run(variable):
        line = os.environ.get(variable)
        if not line:
            pytest.skip(f"{variable} is not set")
        subprocess.run(shlex.split(line), check=True, stdout=subprocess.DEVNULL, timeout=30)

    return run
