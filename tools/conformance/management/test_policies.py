"""Policies and parameters, by what RabbitMQ does. pika sees what they do to queues and exchanges."""

import time
import uuid

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

Q = "/api/queues/%2F/"
E = "/api/exchanges/%2F/"
P = "/api/policies/%2F/"
O = "/api/operator-policies/%2F/"


def until(look, patience=20):
    """Waits: RabbitMQ applies policies, and gathers figures, a moment later."""
    end = time.monotonic() + patience
    while not (seen := look()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)
    return seen


@pytest.fixture
def policy(api):
    """Sets policies that go when the test ends. Their names begin with the queue's, so that they are for nobody else."""
    made = []

    def policy(pattern, definition, operator=False, **more):
        path = (O if operator else P) + f"p-{uuid.uuid4().hex[:12]}"
        made.append(path)
        reply = api.put(path, {"pattern": f"^{pattern}", "definition": definition, **more})
        assert reply.status == 201, reply
        return path

    yield policy
    for path in made:
        api.delete(path)


@pytest.fixture
def applied(api):
    """Waits until a queue or an exchange tells that a policy applies to it, or that none does."""

    def applied(path, policy, field="policy"):
        name = policy and policy.rsplit("/", 1)[1]
        # RabbitMQ leaves the field out, says null, or says nothing.
        until(lambda: (api.get(path).get(field) or None) == name)

    return applied


@pytest.fixture
def channel(connect):
    return connect().channel()


def depth(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def publish(channel, queue, *bodies, exchange=""):
    for body in bodies:
        channel.basic_publish(exchange, queue, body)


def test_a_policy_is_set_looked_at_and_deleted(api, name):
    path = P + name("p")
    asked = {"pattern": "^none-", "definition": {"message-ttl": 60000}, "priority": 3, "apply-to": "queues"}
    assert api.put(path, asked).status == 201
    assert api.put(path, asked).status == 204
    seen = api.get(path)
    assert seen == {**asked, "vhost": "/", "name": path.rsplit("/", 1)[1]}
    assert seen in api.get("/api/policies") and seen in api.get("/api/policies/%2F")
    assert api.delete(path).status == 204
    assert api.delete(path).status == 404 and api.call("GET", path).status == 404


def test_what_is_left_out_has_its_default(api, policy, name):
    seen = api.get(policy(name(), {"expires": 60000}))
    assert (seen["priority"], seen["apply-to"]) == (0, "all")


@pytest.mark.parametrize(
    "definition, words",
    [
        ({"message-ttl": "soon"}, '<<"soon">> is not a valid message TTL'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": "many"}, '<<"many">> is not a valid maximum length'),
        ({"max-length-bytes": -1}, "-1 is not a valid maximum length in bytes"),
        ({"overflow": "burst"}, '<<"burst">> is not a valid overflow value'),
        ({"dead-letter-exchange": 5}, "5 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": 5}, "5 is not a valid dead letter routing key"),
        ({"alternate-exchange": 5}, "5 is not a valid alternate exchange name"),
        ({"delivery-limit": -1}, "-1 is not a valid delivery limit"),
        ({"queue-mode": "eager"}, '<<"eager">> is not a valid queue-mode value'),
        ({"max-priority": 5}, '[{<<"max-priority">>,5}] are not recognised policy settings'),
        ({}, "no policy provided"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(api, name, definition, words):
    reply = api.put(P + name(), {"pattern": "", "definition": definition})
    assert reply.status == 400 and reply.json["error"] == "bad_request"
    assert reply.json["reason"].replace("&lt;", "<").replace("&gt;", ">") == f"Validation failed\n\n{words}\n"


@pytest.mark.parametrize("body", [{"definition": {"expires": 1}}, {"pattern": ""}, {"pattern": "(", "definition": {"expires": 1}}])
def test_a_policy_without_a_pattern_or_a_definition_is_refused(api, name, body):
    assert api.put(P + name(), body).status == 400


def test_an_operator_policy_only_bounds(api, name):
    path = O + name()
    assert api.put(path, {"pattern": "^none", "definition": {"dead-letter-exchange": "x"}}).status == 400
    assert api.put(path, {"pattern": "^none", "definition": {"max-length": 5}}).status == 201
    assert api.get(path)["definition"] == {"max-length": 5}
    (parameter,) = [item for item in api.get("/api/parameters/operator_policy/%2F") if item["name"] == path.rsplit("/", 1)[1]]
    assert parameter["component"] == "operator_policy" and parameter["value"]["definition"] == {"max-length": 5}
    assert api.delete(path).status == 204


def test_a_length_applies_to_a_queue_that_is_there_and_goes_again(api, name, channel, policy, applied):
    q = name()
    channel.queue_declare(q, durable=True)
    publish(channel, q, *"abcde")
    until(lambda: depth(channel, q) == 5)
    path = policy(q, {"max-length": 2})
    applied(Q + q, path)
    until(lambda: depth(channel, q) == 2)
    assert channel.basic_get(q, auto_ack=True)[2] == b"d"
    assert api.get(Q + q)["effective_policy_definition"] == {"max-length": 2}
    api.delete(path)
    applied(Q + q, None)
    publish(channel, q, *"fghi")
    until(lambda: depth(channel, q) == 5)


def test_messages_expire_as_a_policy_says(name, channel, policy, applied, api):
    q = name()
    channel.queue_declare(q, durable=True)
    path = policy(q, {"message-ttl": 200})
    applied(Q + q, path)
    publish(channel, q, "brief")
    until(lambda: depth(channel, q) == 0)
    api.delete(path)
    applied(Q + q, None)
    publish(channel, q, "stays")
    time.sleep(0.6)
    assert depth(channel, q) == 1


def test_the_smaller_of_argument_and_policy_counts(api, name, channel, policy, applied):
    q = name()
    channel.queue_declare(q, durable=True, arguments={"x-max-length": 3})
    path = policy(q, {"max-length": 5})
    applied(Q + q, path)
    publish(channel, q, *"abcdefg")
    until(lambda: depth(channel, q) == 3)
    bound = policy(q, {"max-length": 1}, operator=True, **{"apply-to": "queues"})
    applied(Q + q, bound, "operator_policy")
    until(lambda: depth(channel, q) == 1)
    assert api.get(Q + q)["effective_policy_definition"] == {"max-length": 1}


def test_a_queue_is_declared_again_as_it_was(name, channel, policy, applied, connect):
    q = name()
    channel.queue_declare(q, durable=True)
    applied(Q + q, policy(q, {"max-length": 5}))
    channel.queue_declare(q, durable=True)
    with pytest.raises(ChannelClosedByBroker) as refused:
        connect().channel().queue_declare(q, durable=True, arguments={"x-max-length": 5})
    assert refused.value.reply_code == 406


def test_dead_letters_go_where_a_policy_says_and_an_argument_goes_before_it(name, channel, policy, applied):
    q, own, letters, other = name(), name(), name("letters"), name("other")
    for queue in (letters, other):
        channel.queue_declare(queue, durable=True)
    channel.queue_declare(q, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
    channel.queue_declare(own, durable=True, arguments=arguments)
    for queue in (q, own):
        applied(Q + queue, policy(queue, {"dead-letter-exchange": "", "dead-letter-routing-key": letters}))
        publish(channel, queue, "bad")
        method, _, _ = until(lambda: (got := channel.basic_get(queue))[0] and got)
        channel.basic_reject(method.delivery_tag, requeue=False)
    until(lambda: (depth(channel, letters), depth(channel, other)) == (1, 1))


def test_a_full_queue_rejects_as_a_policy_says(name, connect, policy, applied):
    q = name()
    channel = connect().channel()
    channel.queue_declare(q, durable=True)
    applied(Q + q, policy(q, {"max-length": 1, "overflow": "reject-publish"}))
    channel.confirm_delivery()
    channel.basic_publish("", q, "first")
    with pytest.raises(pika.exceptions.NackError):
        for _ in range(3):
            channel.basic_publish("", q, "more")


def test_an_unused_queue_goes_when_a_policy_says(api, name, channel, policy):
    q = name()
    channel.queue_declare(q, durable=True)
    policy(q, {"expires": 300})
    until(lambda: api.call("GET", Q + q).status == 404)


def test_the_highest_priority_counts(api, name, channel, policy, applied):
    q = name()
    channel.queue_declare(q, durable=True)
    low, high = policy(q, {"max-length": 1}, priority=1), policy(q, {"message-ttl": 600000}, priority=9)
    applied(Q + q, high)
    assert api.get(Q + q)["effective_policy_definition"] == {"message-ttl": 600000}
    api.delete(high)
    applied(Q + q, low)


def test_a_policy_for_exchanges_is_none_for_queues(api, name, channel, policy, applied):
    n, lost = name(), name("lost")
    channel.queue_declare(n, durable=True)
    channel.queue_declare(lost, durable=True)
    channel.exchange_declare(n, "direct", durable=True)
    channel.queue_bind(lost, "amq.fanout")
    path = policy(n, {"alternate-exchange": "amq.fanout"}, **{"apply-to": "exchanges"})
    applied(E + n, path)
    applied(Q + n, None)
    publish(channel, "nobody", "a", exchange=n)
    until(lambda: depth(channel, lost) == 1)
    api.delete(path)
    applied(E + n, None)
    publish(channel, "nobody", "b", exchange=n)
    time.sleep(0.3)
    assert depth(channel, lost) == 1


def test_a_new_queue_has_its_policy_from_the_beginning(name, channel, policy):
    q = name()
    policy(q, {"max-length": 2})
    time.sleep(0.3)
    channel.queue_declare(q, durable=True)
    publish(channel, q, *"abcd")
    until(lambda: depth(channel, q) == 2)


def test_global_parameters(api, name):
    path = "/api/global-parameters/" + name()
    assert api.put(path, {"value": {"a": [1]}}).status == 201
    assert api.put(path, {"value": 2}).status == 204
    assert api.get(path) == {"name": path.rsplit("/", 1)[1], "value": 2}
    assert api.delete(path).status == 204 and api.delete(path).status == 404


def test_limits_of_a_vhost_are_parameters(api):
    vhost = f"v-{uuid.uuid4().hex[:8]}"
    assert api.put(f"/api/vhosts/{vhost}").status in (201, 204)
    try:
        assert api.put(f"/api/vhost-limits/{vhost}/max-queues", {"value": 7}).status in (201, 204)
        (seen,) = api.get(f"/api/parameters/vhost-limits/{vhost}")
        assert (seen["name"], seen["value"]) == ("limits", {"max-queues": 7})
    finally:
        api.delete(f"/api/vhosts/{vhost}")


def test_policies_go_with_their_vhost(api):
    vhost = f"v-{uuid.uuid4().hex[:8]}"
    api.put(f"/api/vhosts/{vhost}")
    assert api.put(f"/api/policies/{vhost}/p", {"pattern": "", "definition": {"max-length": 1}}).status == 201
    api.delete(f"/api/vhosts/{vhost}")
    assert api.call("GET", f"/api/policies/{vhost}").status == 404
    api.put(f"/api/vhosts/{vhost}")
    assert api.get(f"/api/policies/{vhost}") == []
    api.delete(f"/api/vhosts/{vhost}")
