"""The script `rabbitmqadmin` of RabbitMQ's own package, as people's scripts call it. `RABBITMQADMIN` says where it is."""

import json
import os
import subprocess
import sys
from urllib.parse import urlparse

import pytest
from conftest import HTTP

SCRIPT = os.environ.get("RABBITMQADMIN", "/usr/bin/rabbitmqadmin")

pytestmark = pytest.mark.skipif(not os.path.exists(SCRIPT), reason=f"there is no {SCRIPT}")


def admin(*words, fails=False):
    address = urlparse(HTTP)
    command = [sys.executable, SCRIPT, "-H", address.hostname, "-P", str(address.port), "-u", "guest", "-p", "guest"]
    done = subprocess.run(command + list(words), capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == fails, done
    return done.stdout


def rows(kind, *columns):
    """A list as rows of texts."""
    said = admin("--format", "raw_json", "list", kind, *columns)
    return json.loads(said)


def test_lists(name):
    q = name()
    assert "queue declared" in admin("declare", "queue", f"name={q}", "durable=true")
    assert q in [row["name"] for row in rows("queues", "name")]
    assert "amq.topic" in [row["name"] for row in rows("exchanges")]
    assert {"/"} <= {row["name"] for row in rows("vhosts")}
    for kind in ["bindings", "connections", "channels", "consumers", "nodes"]:
        assert isinstance(rows(kind), list), kind
    assert "rabbitmq_version" in admin("show", "overview")
    assert q in admin("list", "queues", "name", "messages")


def test_declare_bind_publish_get_purge_delete(name):
    q, e = name("q"), name("e")
    admin("declare", "exchange", f"name={e}", "type=topic", "durable=false", "auto_delete=false")
    admin("declare", "queue", f"name={q}", "durable=true", 'arguments={"x-max-length": 10}')
    admin("declare", "binding", f"source={e}", f"destination={q}", "routing_key=a.*")
    assert "Message published" in admin("publish", f"exchange={e}", "routing_key=a.b", "payload=hello")
    assert "NOT routed" in admin("publish", f"exchange={e}", "routing_key=zzz", "payload=hello")
    (seen,) = json.loads(admin("--format", "raw_json", "get", f"queue={q}", "ackmode=ack_requeue_true"))
    assert (seen["payload"], seen["routing_key"], seen["exchange"]) == ("hello", "a.b", e)
    admin("purge", "queue", f"name={q}")
    assert json.loads(admin("--format", "raw_json", "get", f"queue={q}", "ackmode=ack_requeue_false")) == []
    bindings = [row for row in rows("bindings") if row["source"] == e]
    assert [row["properties_key"] for row in bindings] == ["a.%2A"]
    admin("delete", "binding", f"source={e}", f"destination={q}", "destination_type=queue", "properties_key=" + bindings[0]["properties_key"])
    assert [row for row in rows("bindings") if row["source"] == e] == []
    admin("delete", "queue", f"name={q}")
    admin("delete", "exchange", f"name={e}")
    assert q not in [row["name"] for row in rows("queues")]


def test_what_is_refused_is_said(name):
    q = name()
    admin("declare", "queue", f"name={q}", "durable=true")
    admin("declare", "queue", f"name={q}", "durable=false", fails=True)
    admin("delete", "queue", "name=none-of-this-name", fails=True)


def test_export_and_import(name, tmp_path, api):
    q, e = name("q"), name("e")
    admin("declare", "queue", f"name={q}", "durable=true")
    admin("declare", "exchange", f"name={e}", "type=fanout")
    admin("declare", "binding", f"source={e}", f"destination={q}", "routing_key=k")
    path = str(tmp_path / "definitions.json")
    assert "Exported definitions" in admin("export", path)
    exported = json.load(open(path))
    assert q in [item["name"] for item in exported["queues"]]
    admin("delete", "queue", f"name={q}")
    admin("delete", "exchange", f"name={e}")
    assert "Uploaded definitions" in admin("import", path)
    assert q in [row["name"] for row in rows("queues")]
    assert len([row for row in rows("bindings") if row["source"] == e]) == 1


def test_a_connection_is_closed(connect):
    connection = connect(connection_name="rabbitmqadmin-test")
    found = [row for row in rows("connections") if row.get("client_properties", {}).get("connection_name") == "rabbitmqadmin-test"]
    if not found:
        pytest.skip("RabbitMQ has not gathered its figures yet")
    admin("close", "connection", "name=" + found[0]["name"])
    with pytest.raises(Exception):
        while True:
            connection.process_data_events(1)
