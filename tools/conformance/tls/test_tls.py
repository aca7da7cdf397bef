"""What pika and boto3 see of TLS."""

import ssl
import time

import boto3
import pika
import pytest
from botocore.config import Config
from botocore.exceptions import SSLError
from conftest import block
from pika.exceptions import AMQPConnectionError, ProbableAuthenticationError

# What pika says if either end refuses the other's certificate.
REFUSED = (AMQPConnectionError, ssl.SSLError)


def context_of(certificates, client=None):
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    if client:
        context.load_cert_chain(*client)
    return context


def connect(nexo, context, **more):
    options = pika.SSLOptions(context, "localhost")
    return pika.BlockingConnection(pika.ConnectionParameters("localhost", nexo.amqps, ssl_options=options, **more))


def echo(connection, body):
    """Sends a body through a queue of its own."""
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, body)
    return channel.basic_get(queue, auto_ack=True)[2]


def sqs_client(nexo, certificates, **more):
    return boto3.client(
        "sqs",
        endpoint_url=f"https://localhost:{nexo.sqs}",
        verify=certificates.path("ca.pem"),
        region_name="eu-west-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"max_attempts": 0}, **more),
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pika_publishes_and_consumes_over_tls(nexo, certificates, version):
    context = context_of(certificates)
    context.minimum_version = context.maximum_version = version
    with connect(nexo(), context) as connection:
        for size in (0, 1, 20_000, 3_000_000):
            assert echo(connection, b"x" * size) == b"x" * size


def test_boto3_works_over_https(nexo, certificates):
    broker = nexo()
    sqs = sqs_client(broker, certificates)
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert url.startswith(f"https://localhost:{broker.sqs}/")
    body = "hello" * 40_000
    sqs.send_message(QueueUrl=url, MessageBody=body)
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == body


def test_who_does_not_know_the_authority_does_not_go_on(nexo, other):
    broker = nexo()
    with pytest.raises(REFUSED):
        connect(broker, context_of(other))
    with pytest.raises(SSLError):
        sqs_client(broker, other).list_queues()


def test_a_certificate_that_must_be_shown(nexo, certificates):
    broker = nexo("--tls-client-ca", certificates.path("ca.pem"), "--tls-verify", "require")
    client = certificates.client("worker")
    with pytest.raises(REFUSED):
        connect(broker, context_of(certificates))
    with connect(broker, context_of(certificates, client)) as connection:
        assert echo(connection, b"x") == b"x"
    with pytest.raises(Exception, match="(?i)ssl|certificate|connection"):
        sqs_client(broker, certificates).list_queues()
    assert "ResponseMetadata" in sqs_client(broker, certificates, client_cert=client).list_queues()


def test_external_logs_in_by_certificate(nexo, certificates):
    ask = ["--tls-client-ca", certificates.path("ca.pem"), "--tls-verify", "request", "--tls-login-from", "common_name"]
    broker = nexo(*ask)
    external = {"credentials": pika.credentials.ExternalCredentials()}
    guest = context_of(certificates, certificates.client("guest"))
    with connect(broker, guest, **external) as connection:
        assert echo(connection, b"x") == b"x"
    for nobody in (certificates.client("mallory"), None):
        with pytest.raises(ProbableAuthenticationError):
            connect(broker, context_of(certificates, nobody), **external)


def test_a_new_certificate_after_sighup(nexo, certificates, other):
    broker = nexo()
    old = connect(broker, context_of(certificates))
    for name in ("cert.pem", "key.pem"):
        with open(other.path(name)) as new, open(certificates.path(name), "w") as used:
            used.write(new.read())
    broker.hang_up()
    deadline = time.monotonic() + 30
    while True:
        try:
            connect(broker, context_of(other)).close()
            break
        except REFUSED:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert echo(old, b"still here") == b"still here"
    with pytest.raises(REFUSED):
        connect(broker, context_of(certificates))


def test_the_examples_of_the_page_work(nexo, certificates, monkeypatch):
    broker = nexo()
    monkeypatch.chdir(certificates.folder)
    names = {}
    exec(block("import ssl").replace("5671", str(broker.amqps)), names)
    assert names["channel"].queue_declare("jobs", passive=True).method.message_count == 1
    names["connection"].close()
    exec(block("import boto3").replace("9325", str(broker.sqs)), names)
    answer = names["sqs"].receive_message(QueueUrl=names["url"], WaitTimeSeconds=5)
    assert answer["Messages"][0]["Body"] == "hello"
