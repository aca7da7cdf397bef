"""pyrabbit2, a client of the management API from PyPI, as programs use it."""

from urllib.parse import urlparse

import pytest
from conftest import HTTP
from pyrabbit2.api import Client, PermissionError
from pyrabbit2.http import HTTPError


def client(user="guest", password="guest"):
    return Client(urlparse(HTTP).netloc, user, password, timeout=30)


def test_it_looks_around():
    guest = client()
    assert guest.is_alive()
    assert guest.get_overview()["rabbitmq_version"] and guest.get_cluster_name()
    assert guest.get_whoami()["name"] == "guest"
    assert "/" in guest.get_vhost_names()
    assert guest.get_nodes()[0]["name"] and "guest" in [user["name"] for user in guest.get_users()]
    assert isinstance(guest.get_connections(), list) and isinstance(guest.get_channels(), list)
    assert "queues" in guest.get_definitions() and guest.get_extensions() is not None


def test_it_works_with_queues(name):
    guest, q, e = client(), name("q"), name("e")
    assert guest.create_queue("/", q, durable=True)
    assert guest.create_exchange("/", e, "topic")
    assert guest.create_binding("/", e, q, "a.b")
    assert guest.publish("/", e, "a.b", "hello")
    (seen,) = guest.get_messages("/", q, count=1, requeue=True)
    assert (seen["payload"], seen["routing_key"]) == ("hello", "a.b")
    assert guest.get_queue("/", q)["name"] == q
    assert [item["routing_key"] for item in guest.get_queue_bindings("/", q) if item["source"] == e] == ["a.b"]
    assert guest.purge_queue("/", q)
    assert guest.delete_binding("/", e, q, "a.b") in (None, 204)
    assert guest.delete_queue("/", q) and guest.delete_exchange("/", e)
    with pytest.raises(HTTPError) as missing:
        guest.get_queue("/", q)
    assert missing.value.status == 404


def test_it_manages_users_and_virtual_hosts(name):
    guest, user, vhost = client(), name("user"), name("vhost")
    assert guest.create_vhost(vhost) and guest.create_user(user, "secret", tags="management")
    try:
        own = client(user, "secret")
        assert own.get_vhost_names() == []
        with pytest.raises(PermissionError):
            own.get_users()
        assert guest.set_vhost_permissions(vhost, user, ".*", ".*", ".*")
        assert guest.get_permission(vhost, user)["configure"] == ".*"
        assert vhost in [item["vhost"] for item in guest.get_user_permissions(user)]
        assert own.get_vhost_names() == [vhost]
        assert own.create_queue(vhost, "q", durable=True)
        assert [queue["name"] for queue in own.get_queues()] == ["q"]
        guest.delete_permission(vhost, user)
        assert own.get_vhost_names() == []
    finally:
        guest.delete_user(user)
        guest.delete_vhost(vhost)
