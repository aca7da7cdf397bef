"""Signatures: with access keys a broker lets in who has signed, and nobody else."""

import datetime
import urllib.error
import urllib.parse
import urllib.request

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from conftest import KEY, SECRET, Nexo, refused

FORM = "application/x-www-form-urlencoded; charset=utf-8"


@pytest.fixture(scope="module")
def broker():
    broker = Nexo("--sqs-access-keys", f"OTHER:other,{KEY}:{SECRET}")
    yield broker
    broker.clean()


def fetch(url, method="POST", body=None, headers={}):
    """Status, headers and text of an answer."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def signed(url, body, headers=(), signer=SigV4Auth, key=KEY, secret=SECRET, service="sqs", method="POST", **more):
    """A request with its signature, at the moment that the test says it is."""
    request = AWSRequest(method=method, url=url, data=body, headers={"Content-Type": FORM, **dict(headers)})
    signer(Credentials(key, secret), service, "eu-west-1", **more).add_auth(request)
    return request.prepare()


def send(request, **change):
    body = change.pop("body", request.body)
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()}
    # A changed body is sent whole.
    headers.pop("Content-Length", None)
    headers.update(change.pop("headers", {}))
    body = body.encode() if isinstance(body, str) else body
    return fetch(change.pop("url", request.url), request.method, body, headers)


def test_a_client_with_a_key_is_let_in(broker):
    client = broker.client()
    url = client.create_queue(QueueName="signed queue.é")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    assert client.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"
    assert broker.client(key="OTHER", secret="other").list_queues()["QueueUrls"] == [url]


def test_unknown_keys_and_wrong_secrets_are_refused(broker):
    with refused("InvalidClientTokenId", "security token", status=403):
        broker.client(key="NOBODY").list_queues()
    with refused("SignatureDoesNotMatch", "does not match", status=403):
        broker.client(secret="wrong").list_queues()


def test_a_request_without_a_signature_is_refused(broker):
    status, headers, text = fetch(broker.url + "/?Action=ListQueues", "GET")
    assert status == 403 and "MissingAuthenticationToken" in text
    status, headers, text = fetch(
        broker.url, body=b"{}", headers={"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    )
    assert status == 403 and headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"


def test_what_was_changed_after_signing_is_refused(broker):
    request = signed(broker.url + "/", "Action=ListQueues&Version=2012-11-05", {"X-Extra": "a"})
    assert send(request)[0] == 200
    for change in (
        {"body": "Action=ListQueues&Version=2012-11-05&MaxResults=5"},
        {"url": broker.url + "/elsewhere"},
        {"url": broker.url + "/?More=1"},
        {"headers": {"X-Extra": "b"}},
        {"headers": {"X-Amz-Content-SHA256": "0" * 64}},
        {"headers": {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}},
    ):
        status, _, text = send(request, **change)
        assert status == 403 and "SignatureDoesNotMatch" in text, change


def test_signatures_that_are_old_or_of_the_future_are_refused(broker, monkeypatch):
    import botocore.auth

    real = datetime.datetime.now(datetime.timezone.utc)

    def at(minutes):
        moment = real + datetime.timedelta(minutes=minutes)
        # botocore has asked for the time in different ways over the years.
        if hasattr(botocore.auth, "get_current_datetime"):
            monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *a, **k: moment.replace(tzinfo=None))
        else:
            fixed = type("Fixed", (datetime.datetime,), {"utcnow": classmethod(lambda c: moment.replace(tzinfo=None))})
            monkeypatch.setattr(botocore.auth.datetime, "datetime", fixed)
        try:
            return signed(broker.url + "/", "Action=ListQueues")
        finally:
            monkeypatch.undo()

    assert send(at(-10))[0] == 200 and send(at(10))[0] == 200
    status, _, text = send(at(-20))
    assert status == 403 and "Signature expired" in text and "- 15 min." in text
    status, _, text = send(at(20))
    assert status == 403 and "Signature not yet current" in text


def test_an_address_can_carry_its_signature(broker):
    client = broker.client()
    client.create_queue(QueueName="presigned")
    body = urllib.parse.urlencode({"Action": "GetQueueUrl", "QueueName": "presigned"})
    request = signed(f"{broker.url}/?{body}", None, signer=SigV4QueryAuth, method="GET", expires=60)
    status, _, text = send(request)
    assert status == 200 and "/000000000000/presigned" in text
    status, _, text = send(request, url=request.url.replace("presigned", "another"))
    assert status == 403 and "SignatureDoesNotMatch" in text


def test_half_a_signature_is_refused(broker):
    for header in (
        "nonsense",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=x",
        f"AWS4-HMAC-SHA256 Credential={KEY}/20200101/r/sqs, SignedHeaders=host, Signature=00",
        f"AWS4-HMAC-SHA256 Credential={KEY}/20200101/r/sqs/aws4_request, SignedHeaders=date, Signature=00",
        f"AWS4-HMAC-SHA256 Credential={KEY}/x/r/sqs/aws4_request, SignedHeaders=host, Signature=00",
    ):
        status, _, text = fetch(broker.url + "/?Action=ListQueues", "GET", headers={"Authorization": header, "X-Amz-Date": "x"})
        assert status == 400 and "IncompleteSignature" in text, (header, text)


def test_without_keys_any_signature_does_from_this_machine(sqs, nexo):
    broker = nexo()
    assert "QueueUrls" not in broker.client(key="ANYBODY", secret="anything").list_queues()
    assert fetch(broker.url + "/?Action=ListQueues", "GET")[0] == 200


def test_without_keys_nobody_else_is_let_in():
    import subprocess

    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    outside = [address for address in addresses if "." in address]
    if not outside:
        pytest.skip("this machine has no address but loopback")
    broker = Nexo(host=outside[0])
    try:
        status, _, text = fetch(broker.url + "/?Action=ListQueues", "GET")
        assert status == 403 and "AccessDenied" in text
    finally:
        broker.clean()
