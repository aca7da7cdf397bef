"""The management API, by what RabbitMQ answers. Where Nexo differs on purpose, docs/management.md says why."""

import time
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

Q = "/api/queues/%2F/"
E = "/api/exchanges/%2F/"
B = "/api/bindings/%2F/"


def until(look, patience=20):
    """Waits for figures: RabbitMQ gathers them every few seconds."""
    end = time.monotonic() + patience
    while not (seen := look()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.2)
    return seen


@pytest.mark.parametrize("login", [None, "guest:wrong", "nobody:guest"])
def test_whoever_does_not_log_in_is_refused(api, login):
    reply = api.call("GET", "/api/overview", login=login)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'
    if login:
        assert reply.json == {"error": "not_authorized", "reason": "Login failed"}


def test_whoami(api):
    seen = api.get("/api/whoami")
    assert seen["name"] == "guest" and seen["tags"] == ["administrator"]


def test_overview_has_what_tools_read(api):
    seen = api.get("/api/overview")
    assert seen["rabbitmq_version"].startswith("3.") and seen["management_version"].startswith("3.")
    assert set(seen["object_totals"]) >= {"channels", "connections", "consumers", "exchanges", "queues"}
    assert {"node", "listeners", "exchange_types", "message_stats", "queue_totals", "cluster_name"} <= set(seen)
    assert {"protocol", "port", "ip_address", "node"} <= set(seen["listeners"][0])


def test_nodes_have_what_tools_read(api):
    (node,) = until(lambda: [node for node in api.get("/api/nodes") if "mem_used" in node])
    numbers = ["mem_used", "mem_limit", "disk_free", "disk_free_limit", "fd_used", "fd_total", "sockets_used", "uptime"]
    assert all(isinstance(node[number], int) for number in numbers)
    assert node["running"] is True and node["mem_alarm"] is False and node["disk_free_alarm"] is False
    assert api.get("/api/nodes/" + node["name"])["name"] == node["name"]


def test_what_is_not_there(api):
    for path in ["/api/queues/%2F/none", "/api/exchanges/%2F/none", "/api/vhosts/none", "/api/queues/none", "/api/connections/none"]:
        reply = api.call("GET", path)
        assert (reply.status, reply.json) == (404, {"error": "Object Not Found", "reason": "Not Found"}), path


def test_a_queue_is_declared_once(api, name):
    q = Q + name()
    asked = {"durable": "true", "auto_delete": "false", "arguments": {"x-message-ttl": 60000}}
    assert api.put(q, asked).status == 201
    assert api.put(q, asked).status == 204
    seen = api.get(q)
    assert seen["arguments"] == {"x-message-ttl": 60000} and seen["durable"] is True and seen["type"] == "classic"
    assert api.delete(q).status == 204
    assert api.delete(q).status == 404


def test_a_queue_that_differs_is_refused(api, name):
    n = name()
    assert api.put(Q + n).status == 201
    reply = api.put(Q + n, {"durable": True})
    words = f"inequivalent arg 'durable' for queue '{n}' in vhost '/': received 'true' but current is 'false'"
    assert (reply.status, reply.json) == (400, {"error": "bad_request", "reason": words})


@pytest.mark.parametrize("arguments", [{"x-message-ttl": "soon"}, {"x-max-length": -1}, {"x-queue-type": "none"}, {"x-any": None}])
def test_arguments_that_cannot_be_are_refused(api, name, arguments):
    assert api.put(Q + name(), {"arguments": arguments}).status == 400


@pytest.mark.parametrize("body", [b"{bad", b"[]"])
def test_a_body_that_is_no_object_is_refused(api, name, body):
    reply = api.call("PUT", Q + name(), body)
    assert (reply.status, reply.json) == (400, {"error": "bad_request", "reason": "not_json"})


def test_lists_have_columns_order_and_pages(api, name):
    prefix = name("list")
    names = [f"{prefix}-{suffix}" for suffix in "bac"]
    for one in names:
        assert api.put(Q + one).status == 201
    try:
        query = f"?page=1&page_size=2&name={prefix}-&sort=name&sort_reverse=true&columns=name"
        seen = api.get("/api/queues" + query)
        assert seen["items"] == [{"name": f"{prefix}-c"}, {"name": f"{prefix}-b"}]
        assert (seen["filtered_count"], seen["item_count"], seen["page_count"]) == (3, 2, 2)
        assert (seen["page"], seen["page_size"]) == (1, 2) and seen["total_count"] >= 3
        pattern = quote(f"^{prefix}-[ab]$", "")
        seen = api.get(f"/api/queues?page=1&name={pattern}&use_regex=true&sort=name&columns=name")
        assert [item["name"] for item in seen["items"]] == [f"{prefix}-a", f"{prefix}-b"]
        reply = api.call("GET", f"/api/queues?page=99&page_size=2&name={prefix}")
        assert (reply.status, reply.json["error"]) == (400, "page_out_of_range")
        assert api.call("GET", "/api/queues?page=1&page_size=501").status == 400
        assert api.call("GET", "/api/queues?page=x").status == 400
    finally:
        for one in names:
            api.delete(Q + one)


def test_a_list_without_stats(api, name):
    n = name()
    api.put(Q + n)
    (seen,) = [item for item in api.get("/api/queues?disable_stats=true") if item["name"] == n]
    assert {"name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments", "state"} <= set(seen)
    assert "message_stats" not in seen and "messages_ready" not in seen


def test_an_exchange_is_declared_once(api, name):
    e = E + name()
    asked = {"type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}}
    assert api.put(e, asked).status == 201
    assert api.put(e, asked).status == 204
    seen = api.get(e)
    assert (seen["type"], seen["internal"], seen["arguments"]) == ("topic", False, asked["arguments"])
    assert api.put(e, {"type": "direct"}).status == 400
    assert api.delete(e).status == 204
    assert api.delete(e).status == 404


def test_bindings_have_keys(api, name, is_rabbitmq):
    e, q = name("e"), name("q")
    api.put(E + e, {"type": "topic"})
    api.put(Q + q)
    path = f"{B}e/{e}/q/{q}"
    # Debian's RabbitMQ answers 500 to all that shows a binding with arguments.
    with_arguments = {"routing_key": "a b~c/d"} if is_rabbitmq else {"routing_key": "a b~c/d", "arguments": {"x": 1}}
    reply = api.post(path, {"routing_key": "a.*"})
    assert (reply.status, reply.headers["location"]) == (201, f"{q}/a.%252A")
    for body in [{"routing_key": "a.*"}, {}, with_arguments]:
        assert api.post(path, body).status == 201
    found = {item["properties_key"]: item for item in api.get(path)}
    assert len(found) == 3 and "~" in found
    for key, item in found.items():
        seen = api.get(f"{path}/{quote(key, '')}")
        assert seen == item
        assert set(item) == {"source", "vhost", "destination", "destination_type", "routing_key", "arguments", "properties_key"}
    assert [item["source"] for item in api.get(f"{Q}{q}/bindings")].count("") == 1
    assert len(api.get(f"{E}{e}/bindings/source")) == 3
    for key in found:
        assert api.delete(f"{path}/{quote(key, '')}").status == 204
        assert api.delete(f"{path}/{quote(key, '')}").status == 404


def test_a_binding_needs_both_ends(api, name):
    q = name()
    api.put(Q + q)
    reply = api.post(f"{B}e/none/q/{q}", {})
    assert (reply.status, reply.json) == (404, {"error": "not_found", "reason": "no exchange 'none' in vhost '/'"})
    reply = api.post(f"{B}e/amq.topic/q/none", {})
    assert (reply.status, reply.json) == (404, {"error": "not_found", "reason": "no queue 'none' in vhost '/'"})
    reply = api.post(f"{B}e/amq.default/q/{q}", {})
    assert (reply.status, reply.json) == (401, {"error": "not_authorised", "reason": "Access refused."})
    assert api.get(f"{B}e/none/q/{q}") == []


def test_publish_and_get(api, name):
    q = name()
    api.put(Q + q)
    path = E + "amq.default/publish"
    properties = {"delivery_mode": 2, "headers": {"h": 1, "l": [1, "a"]}, "content_type": "text/plain", "priority": 3}
    message = {"properties": properties, "routing_key": q, "payload": "hello", "payload_encoding": "string"}
    assert api.post(path, message).json == {"routed": True}
    assert api.post(path, {**message, "routing_key": q + "-none"}).json == {"routed": False}
    got = api.post(f"{Q}{q}/get", {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"})
    (seen,) = got.json
    assert seen["properties"] == properties and seen["exchange"] == "" and seen["routing_key"] == q
    assert (seen["payload"], seen["payload_encoding"], seen["payload_bytes"]) == ("hello", "string", 5)
    assert (seen["redelivered"], seen["message_count"]) == (False, 0)
    got = api.post(f"{Q}{q}/get", {"count": "1", "ackmode": "ack_requeue_false", "encoding": "base64", "truncate": 2})
    (seen,) = got.json
    assert (seen["payload"], seen["payload_encoding"], seen["redelivered"]) == ("aGU=", "base64", True)
    assert api.post(f"{Q}{q}/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}).json == []


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"payload_encoding": "x"}, ["unsupported_encoding", "x"]),
        ({"payload": "!", "payload_encoding": "base64"}, ["not_base64", "!"]),
        ({"properties": {"priority": "x"}}, ["not_int", "priority"]),
        ({"properties": {"headers": {"a": None}}}, "null_not_allowed"),
        (
            {"properties": {"user_id": "other"}},
            "406 PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'",
        ),
    ],
)
def test_a_publish_with_a_mistake_is_refused(api, name, change, reason):
    q = name()
    api.put(Q + q)
    message = {"properties": {}, "routing_key": q, "payload": "hello", "payload_encoding": "string", **change}
    reply = api.post(E + "amq.default/publish", message)
    assert (reply.status, reply.json) == (400, {"error": "bad_request", "reason": reason})


@pytest.mark.parametrize(
    "body, reason",
    [
        ({"count": 1, "encoding": "auto"}, "[{key_missing,ackmode}]"),
        ({"count": "x", "ackmode": "ack_requeue_true", "encoding": "auto"}, ["not_integer", "x"]),
        ({"count": 1, "ackmode": "ack_requeue_true", "encoding": "x"}, "Unsupported encoding. Please use auto or base64."),
    ],
)
def test_a_get_with_a_mistake_is_refused(api, name, body, reason):
    q = name()
    api.put(Q + q)
    # It looks at the encoding when there is a message to encode.
    api.post(E + "amq.default/publish", {"properties": {}, "routing_key": q, "payload": "x", "payload_encoding": "string"})
    reply = api.post(f"{Q}{q}/get", body)
    assert (reply.status, reply.json) == (400, {"error": "bad_request", "reason": reason})


def test_what_is_got_or_published_nowhere(api):
    reply = api.post(Q + "none/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
    assert (reply.status, reply.json) == (404, {"error": "not_found", "reason": "NOT_FOUND - no queue 'none' in vhost '/'"})
    message = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}
    reply = api.post(E + "none/publish", message)
    assert (reply.status, reply.json["reason"]) == (400, "404 NOT_FOUND - no exchange 'none' in vhost '/'")
    assert api.post(E + "none/publish", {"routing_key": "k"}).json["reason"] == (
        "[{key_missing,properties},\n {key_missing,payload},\n {key_missing,payload_encoding}]"
    )


def test_purge(api, name):
    q = name()
    api.put(Q + q)
    api.post(E + "amq.default/publish", {"properties": {}, "routing_key": q, "payload": "x", "payload_encoding": "string"})
    assert api.delete(f"{Q}{q}?if-empty=true").status == 400
    assert api.delete(f"{Q}{q}/contents").status == 204
    assert api.delete(f"{Q}{q}?if-empty=true").status == 204


def test_a_connection_is_seen_and_closed(api, name, connect):
    label, q = name("connection"), name()
    api.put(Q + q)
    connection = connect(connection_name=label)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(q, lambda *_: None, consumer_tag="tag")

    def mine():
        return [item for item in api.get("/api/connections") if item.get("user_provided_name") == label]

    (seen,) = until(mine)
    assert (seen["user"], seen["vhost"], seen["protocol"]) == ("guest", "/", "AMQP 0-9-1")
    assert seen["client_properties"]["connection_name"] == label
    path = "/api/connections/" + quote(seen["name"], "")

    def figures():
        channels = api.get(path + "/channels")
        return channels and channels[0].get("consumer_count") == 1 and channels[0]

    shown = until(figures)
    assert (shown["number"], shown["confirm"], shown["transactional"], shown["prefetch_count"]) == (1, True, False, 7)
    assert shown["connection_details"]["name"] == seen["name"]
    (consumer,) = until(lambda: [item for item in api.get("/api/consumers") if item["queue"]["name"] == q])
    assert (consumer["consumer_tag"], consumer["ack_required"], consumer["prefetch_count"]) == ("tag", True, 7)
    assert consumer["channel_details"]["connection_name"] == seen["name"]
    assert api.delete(path, headers={"X-Reason": "maintenance"}).status == 204
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:
            connection.process_data_events(1)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - maintenance")
    until(lambda: not mine())


def test_a_queue_of_a_connection_is_left_alone(api, name, connect):
    q = name()
    connect().channel().queue_declare(q, exclusive=True)
    assert api.get(Q + q)["exclusive"] is True
    reply = api.put(Q + q)
    assert reply.status == 400 and reply.json["reason"].startswith("cannot obtain exclusive access to locked queue")


def test_definitions_round_trip(api, name):
    q, e = name("q"), name("e")
    api.put(Q + q, {"arguments": {"x-max-length": 5}})
    api.put(E + e, {"type": "fanout"})
    api.post(f"{B}e/{e}/q/{q}", {"routing_key": "k"})
    whole = api.get("/api/definitions")
    assert {"queues", "exchanges", "bindings", "vhosts", "users", "permissions", "policies", "parameters"} <= set(whole)
    mine = {kind: [item for item in whole[kind] if item.get("name") in (q, e) or item.get("source") == e] for kind in ["queues", "exchanges", "bindings"]}
    assert [len(found) for found in mine.values()] == [1, 1, 1]
    assert mine["queues"][0]["arguments"] == {"x-max-length": 5}
    api.delete(Q + q)
    api.delete(E + e)
    assert api.post("/api/definitions", mine).status in (201, 204)
    assert api.get(Q + q)["arguments"] == {"x-max-length": 5}
    assert len(api.get(f"{B}e/{e}/q/{q}")) == 1


@pytest.mark.parametrize("check", ["alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical"])
def test_health_checks_pass(api, check):
    assert api.get("/api/health/checks/" + check)["status"] == "ok"


def test_listeners_are_checked(api):
    port = pika.URLParameters(__import__("conftest").AMQP).port
    assert api.get(f"/api/health/checks/port-listener/{port}") == {"status": "ok", "port": port}
    reply = api.call("GET", "/api/health/checks/port-listener/1")
    assert reply.status == 503 and reply.json["status"] == "failed" and reply.json["missing"] == 1
    assert api.get("/api/health/checks/protocol-listener/amqp091")["status"] == "ok"
    assert api.call("GET", "/api/health/checks/protocol-listener/none").status == 503


def test_vhosts(api):
    (seen,) = [item for item in api.get("/api/vhosts") if item["name"] == "/"]
    assert seen["tracing"] is False and api.get("/api/vhosts/%2F")["name"] == "/"


def test_a_message_is_sent_through_a_queue_for_the_aliveness_test(api):
    for _ in range(2):
        assert api.get("/api/aliveness-test/%2F") == {"status": "ok"}
    seen = api.get(Q + "aliveness-test")
    assert (seen["durable"], seen["auto_delete"], seen["arguments"]) == (False, False, {})
    assert api.delete(Q + "aliveness-test").status == 204


def test_virtual_hosts_are_started_and_queues_spread(api):
    node = api.get("/api/overview")["node"]
    assert api.post(f"/api/vhosts/%2F/start/{node}", None).status == 204
    for path in [f"/api/vhosts/none/start/{node}", "/api/vhosts/%2F/start/none@localhost"]:
        assert api.post(path, None).status == 400, path
    assert api.post("/api/rebalance/queues", None).status == 204


def test_the_cluster_is_called_otherwise(api):
    before = api.get("/api/cluster-name")["name"]
    try:
        assert api.put("/api/cluster-name", {"name": "ours"}).status == 204
        assert api.get("/api/cluster-name") == {"name": "ours"}
        assert api.get("/api/global-parameters/cluster_name")["value"] == "ours"
        assert api.put("/api/cluster-name", {}).status == 400
    finally:
        assert api.put("/api/cluster-name", {"name": before}).status == 204


def test_a_consumer_that_has_a_queue_for_itself_is_named(api, name, connect):
    alone, mine = name(), name()
    api.put(Q + alone, {"arguments": {"x-single-active-consumer": True}})
    api.put(Q + mine)
    channel = connect().channel()
    for tag in ["first", "second"]:
        channel.basic_consume(alone, lambda *_: None, consumer_tag=tag)
    channel.basic_consume(mine, lambda *_: None, consumer_tag="only", exclusive=True)
    until(lambda: api.get(Q + alone).get("single_active_consumer_tag") == "first")
    until(lambda: api.get(Q + mine).get("exclusive_consumer_tag") == "only")
    channel.basic_cancel("first")
    until(lambda: api.get(Q + alone).get("single_active_consumer_tag") == "second")
