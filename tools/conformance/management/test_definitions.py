"""A file that a RabbitMQ 3.10 has exported, with 50 queues, users, permissions and policies, goes in, and every client logs in
with the password that it had there: `old-` and its name."""

import json
import pathlib

import pika
import pytest
from conftest import AMQP
from test_api import until

FILE = json.loads((pathlib.Path(__file__).parent / "fixtures" / "rabbitmq-3.10-definitions.json").read_text())
NAMES = [user["name"] for user in FILE["users"] if user["password_hash"]]


def connect(user, password, vhost):
    parameters = pika.URLParameters(AMQP)
    parameters.credentials = pika.PlainCredentials(user, password)
    parameters.virtual_host = vhost
    return pika.BlockingConnection(parameters)


def home_of(user):
    return next(item["vhost"] for item in FILE["permissions"] if item["user"] == user)


@pytest.fixture(scope="module", autouse=True)
def imported(api):
    reply = api.post("/api/definitions", FILE)
    assert reply.status in (201, 204), reply
    yield
    for vhost in ["shop", "warehouse"]:
        assert api.delete("/api/vhosts/" + vhost).status == 204
    assert api.post("/api/users/bulk-delete", {"users": [user["name"] for user in FILE["users"]]}).status == 204


def test_all_of_it_is_there(api):
    shown = api.get("/api/definitions")
    for kind in ["users", "permissions", "topic_permissions", "policies", "parameters", "queues", "exchanges", "bindings"]:
        for item in FILE[kind]:
            assert any(item.items() <= found.items() for found in shown[kind]), (kind, item)
    assert {"shop", "warehouse"} <= {vhost["name"] for vhost in shown["vhosts"]}
    until(lambda: api.get("/api/queues/shop/orders-00").get("policy") == "limits")


@pytest.mark.parametrize("user", NAMES)
def test_everybody_logs_in_with_the_old_password(user):
    connect(user, "old-" + user, home_of(user)).close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(user, "new-" + user, home_of(user))


def test_nobody_has_the_password_of_one_without():
    for password in ["", "old-certificate"]:
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect("certificate", password, "/")


def test_permissions_hold(api):
    connection = connect("orders", "old-orders", "shop")
    connection.channel().queue_declare("orders-00", passive=True)
    connection.channel().queue_purge("orders-01")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        connection.channel().queue_declare("other")
    assert refused.value.reply_code == 403
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect("orders", "old-orders", "warehouse")
    connection.close()
    billing = connect("billing", "old-billing", "shop")
    channel = billing.channel()
    channel.confirm_delivery()
    channel.basic_publish("events", "billing.paid", b"x")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_publish("events", "order.1.x", b"x")
    assert refused.value.reply_code == 403
    billing.close()


def test_tags_hold(api):
    def status(user, path):
        return api.call("GET", path, login=f"{user}:old-{user}").status

    assert (status("admin", "/api/users"), status("monitor", "/api/users")) == (200, 401)
    assert (status("monitor", "/api/nodes"), status("billing", "/api/nodes")) == (200, 401)
    assert (status("billing", "/api/overview"), status("orders", "/api/overview")) == (200, 401)
    seen = api.call("GET", "/api/queues", login="billing:old-billing").json
    assert len(seen) == 30 and {queue["vhost"] for queue in seen} == {"shop"}
