"""Signatures: with access keys a broker lets in who has signed, and nobody else."""

import datetime
import json
import re
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from conftest import KEY, SECRET, Nexo, refused

FORM = "application/x-www-form-urlencoded; charset=utf-8"
JSON = "application/x-amz-json-1.0"
XMLNS = "{http://queue.amazonaws.com/doc/2012-11-05/}"
# What JSON calls what the older protocol has codes for.
SHAPES = {
    "AccessDenied": "AccessDeniedException",
    "IncompleteSignature": "IncompleteSignatureException",
    "InvalidClientTokenId": "UnrecognizedClientException",
    "MissingAuthenticationToken": "MissingAuthenticationTokenException",
    "RequestExpired": "RequestExpiredException",
    "SignatureDoesNotMatch": "InvalidSignatureException",
}


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


def signed(url, body, headers=(), signer=SigV4Auth, key=KEY, secret=SECRET, service="sqs", region="eu-west-1", method="POST", **more):
    """A request with its signature, at the moment that the test says it is."""
    request = AWSRequest(method=method, url=url, data=body, headers={"Content-Type": FORM, **dict(headers)})
    signer(Credentials(key, secret), service, region, **more).add_auth(request)
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


@pytest.fixture(params=["json", "query"])
def listing(request, broker):
    """A request for all queues, in either protocol: its address, body and headers."""
    if request.param == "json":
        return broker.url + "/", "{}", {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.ListQueues"}
    return broker.url + "/", "Action=ListQueues&Version=2012-11-05", {"Content-Type": FORM}


def refusal(answer):
    """Status, code and text of a refused request."""
    status, headers, text = answer
    if headers["content-type"] == JSON:
        said = json.loads(text)
        code, side = headers["x-amzn-query-error"].split(";")
        assert side == "Sender" and said["__type"] == f"com.amazon.coral.service#{SHAPES[code]}", said
        return status, code, said["message"]
    error = ElementTree.fromstring(text).find(f"{XMLNS}Error")
    assert error.find(f"{XMLNS}Type").text == "Sender"
    return status, error.find(f"{XMLNS}Code").text, error.find(f"{XMLNS}Message").text


def test_what_was_changed_after_signing_is_refused(broker, listing):
    url, body, headers = listing
    request = signed(url, body, {"X-Extra": "a", **headers})
    assert send(request)[0] == 200
    changes = [
        {"body": body + " "},
        {"url": url + "elsewhere"},
        {"url": url + "?More=1"},
        {"headers": {"X-Extra": "b"}},
        {"headers": {"Content-Type": "text/plain"}},
        {"headers": {"X-Amz-Content-SHA256": "0" * 64}},
        {"headers": {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}},
    ]
    if "X-Amz-Target" in headers:
        changes.append({"headers": {"X-Amz-Target": "AmazonSQS.PurgeQueue"}})
    for change in changes:
        status, code, _ = refusal(send(request, **change))
        assert (status, code) == (403, "SignatureDoesNotMatch"), change


def test_the_action_is_signed_like_everything_else(broker, listing):
    url, body, headers = listing
    request = signed(url, body, {name: value for name, value in headers.items() if name != "X-Amz-Target"})
    status, code, text = refusal(send(request, headers={"X-Amz-Target": "AmazonSQS.ListQueues"}))
    assert (status, code) == (400, "IncompleteSignature")
    assert text == "'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization."


def test_an_address_is_good_for_its_own_action_only(broker):
    client = broker.client()
    queue = client.create_queue(QueueName="kept")["QueueUrl"]
    client.send_message(QueueUrl=queue, MessageBody="x")
    address = f"{queue}?Action=GetQueueAttributes&AttributeName.1=All"
    request = signed(address, None, signer=SigV4QueryAuth, expires=60)
    assert send(request)[0] == 200
    for headers in ({"X-Amz-Target": "AmazonSQS.PurgeQueue"}, {"X-Amz-Target": "AmazonSQS.DeleteQueue", "Content-Type": JSON}):
        assert refusal(send(request, headers=headers))[:2] == (400, "IncompleteSignature")
    assert refusal(send(request, body="Action=PurgeQueue"))[:2] == (403, "SignatureDoesNotMatch")
    assert client.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "x"


def test_a_signature_is_for_this_service_and_this_day(broker, listing):
    url, body, headers = listing
    status, code, text = refusal(send(signed(url, body, headers, service="sns")))
    assert (status, code) == (403, "SignatureDoesNotMatch") and "correct service: 'sqs'" in text
    # Regions there are none, so any will do.
    assert send(signed(url, body, headers, region="mars-north-1"))[0] == 200
    request = signed(url, body, headers)
    authorization = request.headers["Authorization"]
    day = re.search("/(\\d{8})/", authorization).group(1)
    for was, is_now, expected in (
        (f"/{day}/", "/20200101/", "SignatureDoesNotMatch"),
        ("/eu-west-1/", "/eu-west-2/", "SignatureDoesNotMatch"),
        ("aws4_request", "aws5_request", "IncompleteSignature"),
        (f"Credential={KEY}/", "Credential=/", "IncompleteSignature"),
        (f"Credential={KEY}/", "Credential=NOBODY/", "InvalidClientTokenId"),
        (f"Credential={KEY}/", "Credential=OTHER/", "SignatureDoesNotMatch"),
        ("AWS4-HMAC-SHA256", "AWS3-HMAC-SHA256", "IncompleteSignature"),
    ):
        code = refusal(send(request, headers={"Authorization": authorization.replace(was, is_now)}))[1]
        assert code == expected, (was, is_now)


def test_keys_secrets_and_signatures_that_are_missing_or_wrong(broker, listing):
    url, body, headers = listing
    assert refusal(fetch(url, body=body.encode(), headers=headers))[:2] == (403, "MissingAuthenticationToken")
    assert refusal(send(signed(url, body, headers, key="NOBODY")))[:2] == (403, "InvalidClientTokenId")
    assert refusal(send(signed(url, body, headers, secret="wrong")))[:2] == (403, "SignatureDoesNotMatch")
    request = signed(url, body, headers)
    request.headers["X-Amz-Date"] = "yesterday"
    assert refusal(send(request))[:2] == (400, "IncompleteSignature")


def test_signatures_that_are_old_or_of_the_future_are_refused(broker, listing, monkeypatch):
    url, body, headers = listing
    at = lambda minutes: signed_at(monkeypatch, minutes, url, body, headers)
    assert send(at(-10))[0] == 200 and send(at(10))[0] == 200
    status, code, text = refusal(send(at(-20)))
    assert (status, code) == (403, "SignatureDoesNotMatch") and "Signature expired" in text and "- 15 min." in text
    status, code, text = refusal(send(at(20)))
    assert (status, code) == (403, "SignatureDoesNotMatch") and "Signature not yet current" in text


def signed_at(monkeypatch, minutes, *arguments, **more):
    """A request that was signed so many minutes from now."""
    import botocore.auth

    moment = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)).replace(tzinfo=None)
    # botocore has asked for the time in different ways over the years.
    if hasattr(botocore.auth, "get_current_datetime"):
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *a, **k: moment)
    else:
        fixed = type("Fixed", (datetime.datetime,), {"utcnow": classmethod(lambda c: moment)})
        monkeypatch.setattr(botocore.auth.datetime, "datetime", fixed)
    try:
        return signed(*arguments, **more)
    finally:
        monkeypatch.undo()


def test_an_address_is_good_for_as_long_as_it_says(broker, monkeypatch):
    address = f"{broker.url}/?Action=ListQueues"
    presign = lambda minutes, seconds: signed_at(
        monkeypatch, minutes, address, None, signer=SigV4QueryAuth, method="GET", expires=seconds
    )
    assert send(presign(-30, 3600))[0] == 200
    assert refusal(send(presign(-30, 60)))[:2] == (400, "RequestExpired")
    assert refusal(send(presign(20, 3600)))[:2] == (403, "SignatureDoesNotMatch")
    assert refusal(send(presign(0, 8 * 24 * 3600)))[:2] == (400, "IncompleteSignature")
    good = presign(0, 60)
    for part in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"):
        code = refusal(send(good, url=re.sub(f"X-Amz-{part}=[^&]*&?", "", good.url)))[1]
        assert code == "IncompleteSignature", part
    assert refusal(fetch(address, "GET"))[:2] == (403, "MissingAuthenticationToken")


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


def test_without_keys_no_web_page_is_let_in(nexo, broker):
    open_to_all = nexo()
    address, form = open_to_all.url + "/?Action=ListQueues", b"Action=ListQueues"
    page = {"Origin": "https://example.org", "Sec-Fetch-Site": "cross-site"}
    assert refusal(fetch(address, "GET", headers={"Sec-Fetch-Site": "cross-site"}))[:2] == (403, "AccessDenied")
    assert refusal(fetch(open_to_all.url, body=form, headers={**page, "Content-Type": "text/plain"}))[:2] == (403, "AccessDenied")
    assert refusal(fetch(open_to_all.url, body=form, headers={"Origin": "null"}))[:2] == (403, "AccessDenied")
    # Somebody who types the address in means it.
    assert fetch(address, "GET", headers={"Sec-Fetch-Site": "none"})[0] == 200
    # With keys a page needs one like everybody else.
    assert send(signed(broker.url + "/", "Action=ListQueues", page))[0] == 200


def test_without_keys_only_names_of_this_machine_are_answered(nexo):
    open_to_all = nexo()
    for host in ("rebound.example", "localhost.example:9324", "10.0.0.1"):
        for target in ("/?Action=ListQueues", "/?Action=DeleteQueue&QueueUrl=q"):
            assert refusal(fetch(open_to_all.url + target, "GET", headers={"Host": host}))[:2] == (403, "AccessDenied"), host
    assert fetch(open_to_all.url + "/?Action=ListQueues", "GET", headers={"Host": "localhost"})[0] == 200


def test_a_refused_signature_is_logged_with_the_id_of_its_key(nexo):
    broker = nexo("--sqs-access-keys", f"{KEY}:{SECRET}")
    for key, secret in ((KEY, "wrong-secret"), ("SOMEBODY", SECRET)):
        with refused("SignatureDoesNotMatch" if key == KEY else "InvalidClientTokenId", status=403):
            broker.client(key=key, secret=secret).list_queues()
    log = broker.log()
    assert KEY in log and "refused" in log and SECRET not in log and "wrong-secret" not in log, log


def test_without_keys_nobody_else_is_let_in():
    import subprocess

    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    outside = [address for address in addresses if "." in address]
    if not outside:
        pytest.skip("this machine has no address but loopback")
    broker = Nexo(host=outside[0])
    try:
        assert refusal(fetch(broker.url + "/?Action=ListQueues", "GET"))[:2] == (403, "AccessDenied")
        headers = {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.ListQueues"}
        assert refusal(fetch(broker.url, body=b"{}", headers=headers))[:2] == (403, "AccessDenied")
    finally:
        broker.clean()
