"""Users, permissions and limits over the management API, as RabbitMQ answers."""

from urllib.parse import quote

import pytest


@pytest.fixture
def user(api, name):
    """A user that goes when the test ends. Its password is its name."""
    one = name("user")
    assert api.put("/api/users/" + one, {"password": one, "tags": "management"}).status == 201
    yield one
    api.delete("/api/users/" + one)


def refused(reply, reason):
    assert (reply.status, reply.json["reason"]) == (400, reason), reply


def test_a_user_is_made_changed_and_deleted(api, user):
    path = "/api/users/" + user
    assert api.call("GET", "/api/whoami", login=f"{user}:{user}").json["name"] == user
    assert api.put(path, {"password": "other", "tags": "monitoring,management"}).status == 204
    assert set(api.get(path)["tags"]) == {"monitoring", "management"}
    assert api.call("GET", "/api/whoami", login=f"{user}:{user}").status == 401
    assert api.call("GET", "/api/whoami", login=f"{user}:other").status == 200
    assert api.put(path, {"tags": "management"}).status == 204
    assert api.call("GET", "/api/whoami", login=f"{user}:other").status == 401
    assert api.delete(path).status == 204
    assert (api.delete(path).status, api.call("GET", path).status) == (404, 404)


def test_a_user_needs_tags_and_one_password(api, name):
    path = "/api/users/" + name("user")
    refused(api.put(path, {"password": "x"}), "tags_not_present")
    both = {"password": "x", "password_hash": "eDp5", "tags": ""}
    refused(api.put(path, both), "both_password_and_password_hash_are_provided")
    assert api.call("GET", path).status == 404


def test_many_go_at_once(api, name):
    names = [name("user") for _ in range(3)]
    for one in names[:2]:
        assert api.put("/api/users/" + one, {"password": one, "tags": ""}).status == 201
    without = {item["name"] for item in api.get("/api/users/without-permissions")}
    assert set(names[:2]) <= without
    refused(api.post("/api/users/bulk-delete", {"users": names[2:]}), ["no_such_user", names[2]])
    assert api.post("/api/users/bulk-delete", {"users": names[:2]}).status == 204
    assert not {item["name"] for item in api.get("/api/users")} & set(names)


def test_permissions(api, user):
    path = f"/api/permissions/%2F/{user}"
    texts = {"configure": "^a", "write": ".*", "read": ""}
    assert api.call("GET", path).status == 404
    assert api.put(path, texts).status == 201
    assert api.put(path, texts).status == 204
    assert api.get(path) == {"user": user, "vhost": "/", **texts}
    assert api.get(path) in api.get("/api/vhosts/%2F/permissions")
    assert api.get(f"/api/users/{user}/permissions") == [api.get(path)]
    assert api.put(path, {"configure": "(", "write": "", "read": ""}).status == 400
    refused(api.put(f"/api/permissions/none/{user}", texts), "vhost_or_user_not_found")
    refused(api.put("/api/permissions/%2F/none", texts), "vhost_or_user_not_found")
    assert api.delete(path).status == 204
    assert (api.delete(path).status, api.delete(f"/api/permissions/none/{user}").status) == (404, 404)


def test_topic_permissions(api, user):
    path = f"/api/topic-permissions/%2F/{user}"
    texts = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert api.call("GET", path).status == 404
    assert api.put(path, texts).status == 201
    assert api.put(path, texts).status == 204
    assert api.get(path) == [{"user": user, "vhost": "/", **texts}]
    assert api.get(path) == api.get(f"/api/users/{user}/topic-permissions")
    refused(api.put(f"/api/topic-permissions/none/{user}", texts), "vhost_or_user_not_found")
    assert api.delete(path).status == 204
    assert api.call("GET", path).status == 404


def test_limits(api, user):
    path = f"/api/user-limits/{user}/max-connections"
    assert api.put(path, {"value": 5}).status == 204
    assert api.get(f"/api/user-limits/{user}") == [{"user": user, "value": {"max-connections": 5}}]
    assert api.delete(path).status == 204
    assert not [item for item in api.get("/api/user-limits") if item["user"] == user and item["value"]]


def test_tags_open_what_they_should(api, user, name, is_rabbitmq):
    def status(path, method="GET"):
        return api.call(method, path, login=f"{user}:{user}").status

    vhost, q = name("vhost"), name()
    assert api.put("/api/vhosts/" + vhost).status == 201
    assert api.put(f"/api/queues/{vhost}/{q}").status == 201
    try:
        assert status("/api/overview") == 200
        assert (status("/api/users"), status("/api/nodes"), status(f"/api/queues/{vhost}")) == (401, 401, 401)
        assert api.call("GET", "/api/vhosts", login=f"{user}:{user}").json == []
        api.put("/api/users/" + user, {"password": user, "tags": "monitoring"})
        assert (status("/api/users"), status("/api/nodes")) == (401, 200)
        # Debian's RabbitMQ shows who monitors the lists of all virtual hosts together alone.
        assert is_rabbitmq or status(f"/api/queues/{vhost}") == 200
        assert status(f"/api/queues/{vhost}/{q}", "DELETE") == 401
        api.put("/api/users/" + user, {"password": user, "tags": ""})
        reply = api.call("GET", "/api/overview", login=f"{user}:{user}")
        assert (reply.status, reply.json["reason"]) == (401, "Not management user")
    finally:
        assert api.delete("/api/vhosts/" + quote(vhost, "")).status == 204
