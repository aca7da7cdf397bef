"""The tool `rabbitmqctl` as people's scripts call it. `RABBITMQCTL` is the command: RabbitMQ's own where RabbitMQ is judged, and
`nexo rabbitmqctl` where Nexo is. Both must print the same.
"""

import json
import os
import shlex
import subprocess

import pytest

TOOL = os.environ.get("RABBITMQCTL")

pytestmark = pytest.mark.skipif(not TOOL, reason="RABBITMQCTL names no tool")


def run(*words):
    return subprocess.run(shlex.split(TOOL) + list(words), capture_output=True, text=True, timeout=120)


def ctl(*words):
    done = run(*words)
    assert done.returncode == 0, done
    return done.stdout


def fails(code, *words):
    done = run(*words)
    assert done.returncode == code, done
    return done.stderr


def test_queues_are_listed_with_columns(name, api):
    q = name()
    assert api.put(f"/api/queues/%2F/{q}", {"durable": True, "arguments": {"x-max-length": 100}}).status == 201
    listed = ctl("list_queues", "name", "messages", "arguments", "durable")
    assert listed.splitlines()[:3] == [
        "Timeout: 60.0 seconds ...",
        "Listing queues for vhost / ...",
        "name\tmessages\targuments\tdurable",
    ]
    row = f'{q}\t0\t[{{"x-max-length",100}}]\ttrue'
    assert row in listed.splitlines()
    assert ctl("-q", "list_queues", "name").splitlines()[0] == "name"
    assert q in ctl("-s", "list_queues", "name").splitlines()
    csv = ctl("list_queues", "--formatter=csv", "name", "messages").splitlines()
    assert csv[0] == '"name","messages"' and f'"{q}","0"' in csv
    rows = json.loads(ctl("list_queues", "--formatter=json", "name", "arguments"))
    # The type in the middle is one of Erlang's, and differs with how the queue was declared.
    assert [(name, value) for name, _, value in next(row for row in rows if row["name"] == q)["arguments"]] == [
        ("x-max-length", 100)
    ]
    fails(64, "list_queues", "nonsense")


def test_other_lists_have_the_same_columns(connect, name):
    q = name()
    channel = connect().channel()
    channel.queue_declare(q)
    channel.basic_consume(q, lambda *_: None, consumer_tag="tag")
    for words, head, row in [
        (["list_exchanges"], ["Listing exchanges for vhost / ...", "name\ttype"], "amq.topic\ttopic"),
        (
            ["list_bindings"],
            [
                "Listing bindings for vhost /...",
                "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments",
            ],
            f"\texchange\t{q}\tqueue\t{q}\t[]",
        ),
        (["list_vhosts", "name", "tracing"], ["Listing vhosts ...", "name\ttracing"], "/\tfalse"),
        (["list_users"], ["Listing users ...", "user\ttags"], "guest\t[administrator]"),
        (
            ["list_permissions"],
            ['Listing permissions for vhost "/" ...', "user\tconfigure\twrite\tread"],
            "guest\t.*\t.*\t.*",
        ),
        (
            ["list_user_permissions", "guest"],
            ['Listing permissions for user "guest" ...', "vhost\tconfigure\twrite\tread"],
            "/\t.*\t.*\t.*",
        ),
        (
            ["list_connections", "user", "vhost", "state", "protocol", "channels"],
            ["Listing connections ...", "user\tvhost\tstate\tprotocol\tchannels"],
            "guest\t/\trunning\t{0,9,1}\t1",
        ),
        (
            ["list_channels", "number", "user", "consumer_count"],
            ["Listing channels ...", "number\tuser\tconsumer_count"],
            "1\tguest\t1",
        ),
        (
            ["list_consumers", "queue_name", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"],
            ["Listing consumers in vhost / ...", "queue_name\tconsumer_tag\tack_required\tprefetch_count\tactive\targuments"],
            f"{q}\ttag\ttrue\t0\ttrue\t[]",
        ),
    ]:
        lines = ctl(*words).splitlines()
        assert lines[:2] == head, words
        assert row in lines, words


def test_virtual_hosts(name):
    v = name("v")
    assert ctl("add_vhost", v) == f'Adding vhost "{v}" ...\n'
    assert ctl("set_vhost_limits", "-p", v, '{"max-queues": 5}') == (
        f'Setting vhost limits to "{{"max-queues": 5}}" for vhost "{v}" ...\n'
    )
    assert ctl("-q", "list_vhost_limits", "-p", v) == '{"max-queues":5}\n'
    assert ctl("clear_vhost_limits", "-p", v) == f'Clearing vhost "{v}" limits ...\n'
    assert ctl("trace_on", "-p", v) == f'Starting tracing for vhost "{v}" ...\nTrace enabled for vhost {v}\n'
    assert f"{v}\ttrue" in ctl("-q", "list_vhosts", "name", "tracing").splitlines()
    assert ctl("trace_off", "-p", v) == f'Stopping tracing for vhost "{v}" ...\nTrace disabled for vhost {v}\n'
    assert ctl("delete_vhost", v) == f'Deleting vhost "{v}" ...\n'
    assert fails(65, "delete_vhost", v) == f"Virtual host '{v}' does not exist\n"


def test_queues_are_purged_and_deleted(name, api):
    q = name()
    api.put(f"/api/queues/%2F/{q}")
    assert ctl("purge_queue", q) == f"Purging queue '{q}' in vhost '/' ...\n"
    assert ctl("delete_queue", q, "--if-empty") == (
        f"Deleting queue '{q}' on vhost '/' if queue is empty ...\nQueue was successfully deleted with 0 ready messages\n"
    )
    assert fails(69, "purge_queue", q) == "Error:\nnot_found\n"
    assert fails(64, "delete_queue", q) == "Error:\nQueue not found\n"


def test_users(name):
    u = name("u")
    try:
        said = ctl("add_user", u, "secret").splitlines()
        assert said[0] == f'Adding user "{u}" ...' and said[1].startswith("Done. Don't forget to grant")
        assert fails(70, "add_user", u, "secret") == f'Error:\nUser "{u}" already exists\n'
        assert ctl("set_user_tags", u, "management", "monitoring") == (
            f'Setting tags for user "{u}" to [management, monitoring] ...\n'
        )
        assert f"{u}\t[management, monitoring]" in ctl("list_users").splitlines()
        assert ctl("authenticate_user", u, "secret") == f'Authenticating user "{u}" ...\nSuccess\n'
        assert ctl("change_password", u, "other") == f'Changing password for user "{u}" ...\n'
        assert f"user '{u}' - invalid credentials" in fails(65, "authenticate_user", u, "secret")
        assert f"{u}\t[management, monitoring]" in ctl("list_users").splitlines()
        assert ctl("set_permissions", u, "^a", ".*", "b") == f'Setting permissions for user "{u}" in vhost "/" ...\n'
        assert ctl("-q", "list_user_permissions", u) == "vhost\tconfigure\twrite\tread\n/\t^a\t.*\tb\n"
        ctl("set_topic_permissions", u, "amq.topic", "^x", ".*")
        assert f"{u}\tamq.topic\t^x\t.*" in ctl("list_topic_permissions").splitlines()
        ctl("clear_topic_permissions", u, "amq.topic")
        assert u not in ctl("list_topic_permissions")
        ctl("set_user_limits", u, '{"max-connections": 5}')
        assert ctl("-q", "list_user_limits", "--user", u) == '{"max-connections":5}\n'
        ctl("clear_user_limits", u, "max-connections")
        assert ctl("-q", "list_user_limits", "--user", u) == "{}\n"
        assert ctl("clear_permissions", u) == f'Clearing permissions for user "{u}" in vhost "/" ...\n'
        assert ctl("clear_password", u) == f'Clearing password for user "{u}" ...\n'
    finally:
        run("delete_user", u)
    assert fails(67, "delete_user", u) == f'Error:\nUser "{u}" does not exist\n'


def test_policies(name):
    p = name("p")
    definition = '{"max-length":10}'
    assert ctl("set_policy", p, "^none-of-this", definition, "--priority", "3", "--apply-to", "queues") == (
        f'Setting policy "{p}" for pattern "^none-of-this" to "{definition}" with priority "3" for vhost "/" ...\n'
    )
    listed = ctl("list_policies").splitlines()
    assert listed[:2] == ['Listing policies for vhost "/" ...', "vhost\tname\tpattern\tapply-to\tdefinition\tpriority"]
    assert f"/\t{p}\t^none-of-this\tqueues\t{definition}\t3" in listed
    assert ctl("clear_policy", p) == f'Clearing policy "{p}" on vhost "/" ...\n'
    assert fails(69, "clear_policy", p) == "Error:\nParameter does not exist\n"


def test_mistakes(name):
    assert "not enough arguments." in fails(64, "add_user")
    fails(64, "nonsense_command")
    assert "--bogus : " in fails(64, "list_users", "--bogus")
    assert "a fraction between 0.0 and 1.0" in fails(65, "set_vm_memory_high_watermark", "7")
    fails(67, "delete_user", name("nobody"))


def test_definitions(tmp_path):
    path = str(tmp_path / "definitions.json")
    assert ctl("export_definitions", path) == f'Exporting definitions in JSON to a file at "{path}" ...\n'
    assert "queues" in json.load(open(path))
    assert ctl("import_definitions", path).startswith(f'Importing definitions in JSON from a file at "{path}" ...\n')
    fails(65, "import_definitions", "/none/of/this")


def test_the_broker_is_well():
    assert ctl("await_startup") == ""
    assert ctl("ping").splitlines()[-1] == "Ping succeeded"
    assert ctl("status").startswith("Status of node ")
    assert "virtual_host_count" in json.loads(ctl("status", "--formatter=json"))["totals"]
    assert "Cluster status of node " in ctl("cluster_status")
