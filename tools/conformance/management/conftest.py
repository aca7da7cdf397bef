"""Where the broker's management API is, and names that no other test uses.

`HTTP_URL` says which broker is judged and `AMQP_URL` where it speaks AMQP. The same tests run on RabbitMQ; a test marked
`nexo_only` is skipped there.
"""

import base64
import json
import os
import urllib.error
import urllib.request
import uuid
from urllib.parse import quote

import pika
import pytest

HTTP = os.environ.get("HTTP_URL", "http://127.0.0.1:15672")
AMQP = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")


class Reply:
    """What the broker answered."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:500]!r}>"


class Api:
    """A client of the management API that logs in as guest."""

    def call(self, method, path, body=None, headers=None, login="guest:guest"):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(HTTP + path, data=data, method=method)
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read())

    def get(self, path):
        reply = self.call("GET", path)
        assert reply.status == 200, reply
        return reply.json

    def put(self, path, body=None):
        return self.call("PUT", path, {} if body is None else body)

    def post(self, path, body):
        return self.call("POST", path, body)

    def delete(self, path, headers=None):
        return self.call("DELETE", path, headers=headers)


@pytest.fixture(scope="session")
def api():
    return Api()


@pytest.fixture(scope="session")
def is_rabbitmq(api):
    return api.get("/api/overview").get("product_name") != "Nexo"


@pytest.fixture
def name(api):
    """Makes names; what bears them is deleted at the end."""
    made = []

    def name(prefix="m"):
        made.append(f"{prefix}-{uuid.uuid4().hex[:12]}")
        return made[-1]

    yield name
    for one in made:
        api.delete("/api/queues/%2F/" + quote(one, ""))
        api.delete("/api/exchanges/%2F/" + quote(one, ""))


@pytest.fixture
def connect():
    """Opens AMQP connections that are closed when the test ends."""
    opened = []

    def connect(**properties):
        parameters = pika.URLParameters(AMQP)
        parameters.heartbeat = 0
        parameters.client_properties = properties or None
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield connect
    for connection in opened:
        if connection.is_open:
            connection.close()
