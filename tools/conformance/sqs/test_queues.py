"""Queues: created, found, listed, described, tagged, purged, deleted."""

import json
import time

import pytest
from conftest import attributes_of, receive, refused, sends


def test_creating_a_queue_again_gives_the_same_address(sqs, queues, kind):
    fifo = kind == "fifo"
    url = queues(fifo=fifo, VisibilityTimeout="45")
    name = url.rsplit("/", 1)[1]
    assert url.endswith(f"/000000000000/{name}")
    assert queues(fifo=fifo, name=name, VisibilityTimeout="45") == url
    # What is not said is not compared.
    assert queues(fifo=fifo, name=name) == url
    with refused("QueueAlreadyExists", "VisibilityTimeout"):
        queues(fifo=fifo, name=name, VisibilityTimeout="46")
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url


def test_a_queue_has_the_defaults_of_aws(sqs, queues):
    seen = attributes_of(sqs, queues())
    assert seen["VisibilityTimeout"] == "30"
    assert seen["MessageRetentionPeriod"] == "345600"
    assert seen["DelaySeconds"] == "0"
    assert seen["ReceiveMessageWaitTimeSeconds"] == "0"
    assert seen["SqsManagedSseEnabled"] == "false" and seen["MaximumMessageSize"] == "1048576"
    assert {"QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", "MaximumMessageSize"} <= seen.keys()
    assert not {"FifoQueue", "Policy", "RedrivePolicy", "ContentBasedDeduplication"} & seen.keys()
    fifo = attributes_of(sqs, queues(fifo=True))
    assert fifo["FifoQueue"] == "true"
    assert fifo["ContentBasedDeduplication"] == "false"
    assert fifo["DeduplicationScope"] == "queue"
    assert fifo["FifoThroughputLimit"] == "perQueue"


def test_every_attribute_that_is_set_is_seen(sqs, queues, queue, kind):
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    allow = json.dumps({"redrivePermission": "denyAll"})
    wanted = {
        "VisibilityTimeout": "0",
        "MessageRetentionPeriod": "3600",
        "MaximumMessageSize": "2048",
        "DelaySeconds": "7",
        "ReceiveMessageWaitTimeSeconds": "3",
        "Policy": policy,
        "RedriveAllowPolicy": allow,
        "KmsMasterKeyId": "alias/aws/sqs",
        "KmsDataKeyReusePeriodSeconds": "600",
        "SqsManagedSseEnabled": "false",
    }
    if kind == "fifo":
        wanted |= {
            "ContentBasedDeduplication": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
        }
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=wanted)
    seen = attributes_of(sqs, queue)
    assert {name: seen[name] for name in wanted} == wanted
    assert attributes_of(sqs, queue, "DelaySeconds") == {"DelaySeconds": "7"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": "", "RedriveAllowPolicy": ""})
    assert not {"Policy", "RedriveAllowPolicy"} & attributes_of(sqs, queue).keys()


def test_no_names_give_no_attributes(sqs, queue):
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)


def test_counts_follow_the_messages(sqs, queue):
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"]
    counts = lambda: tuple(int(attributes_of(sqs, queue, name)[name]) for name in names)
    for number in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), **sends(queue, group=f"g{number}"))
    assert counts() == (3, 0, 0)
    receive(sqs, queue, most=1)
    assert counts() == (2, 1, 0)
    if not queue.endswith(".fifo"):
        sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=600)
        assert counts() == (2, 1, 1)


def test_listing_by_prefix_and_by_page(sqs, queues):
    prefix = queues.name()
    urls = sorted(queues(name=f"{prefix}-{number}") for number in range(5))
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == urls
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=prefix + "-none")
    found, token = [], {}
    for size in (2, 2, 1):
        page = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2, **token)
        assert len(page["QueueUrls"]) == size
        found += page["QueueUrls"]
        token = {"NextToken": page["NextToken"]} if "NextToken" in page else {}
    assert found == urls and not token
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2})
    assert [url for page in pages for url in page["QueueUrls"]] == urls


def test_tags_come_and_go(sqs, queues):
    name = queues.name()
    url = sqs.create_queue(QueueName=name, tags={"team": "a", "cost": "7"})["QueueUrl"]
    queues.made.append(url)
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a", "cost": "7"}
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "new": ""})
    sqs.untag_queue(QueueUrl=url, TagKeys=["cost", "never"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "new": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "new"])
    assert not sqs.list_queue_tags(QueueUrl=url).get("Tags")
    with refused("MissingParameter", "Tags"):
        sqs.tag_queue(QueueUrl=url, Tags={})
    for tags in ({"": "x"}, {"x" * 129: "x"}, {"x": "y" * 257}):
        with refused("InvalidParameterValue", "tag"):
            sqs.tag_queue(QueueUrl=url, Tags=tags)


def test_permissions_are_statements_of_the_policy(sqs, queues, queue):
    sqs.add_permission(QueueUrl=queue, Label="one", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    sqs.add_permission(QueueUrl=queue, Label="all", AWSAccountIds=["1", "2"], Actions=["*"])
    statements = json.loads(attributes_of(sqs, queue, "Policy")["Policy"])["Statement"]
    assert [statement["Sid"] for statement in statements] == ["one", "all"]
    # One of a kind stands for itself, several are a list.
    assert statements[0]["Action"] == "SQS:SendMessage"
    assert statements[0]["Principal"] == {"AWS": "arn:aws:iam::111122223333:root"}
    assert statements[1]["Principal"] == {"AWS": ["arn:aws:iam::1:root", "arn:aws:iam::2:root"]}
    with refused("InvalidParameterValue", "Already exists"):
        sqs.add_permission(QueueUrl=queue, Label="one", AWSAccountIds=["1"], Actions=["*"])
    for action, reason in (("Dance", "valid actions"), ("DeleteQueue", "Only the queue owner is allowed to invoke this action.")):
        with refused("InvalidParameterValue", reason) as said:
            sqs.add_permission(QueueUrl=queue, Label="two", AWSAccountIds=["1"], Actions=[action])
        assert said.message.startswith(f"Value SQS:{action} for parameter ActionName is invalid.")
    for label in ("", "a b", "x" * 81):
        with refused("InvalidParameterValue", "Label"):
            sqs.add_permission(QueueUrl=queue, Label=label, AWSAccountIds=["1"], Actions=["*"])
    with refused("MissingParameter", "Actions"):
        sqs.add_permission(QueueUrl=queue, Label="two", AWSAccountIds=["1"], Actions=[])
    sqs.remove_permission(QueueUrl=queue, Label="one")
    with refused("InvalidParameterValue", "can't find label on existing policy."):
        sqs.remove_permission(QueueUrl=queue, Label="one")
    sqs.remove_permission(QueueUrl=queue, Label="all")
    assert "Policy" not in attributes_of(sqs, queue)
    with refused("InvalidParameterValue", "Value all for parameter Label is invalid. Reason: can't find label."):
        sqs.remove_permission(QueueUrl=queue, Label="all")


def test_a_purged_queue_is_empty(sqs, queue):
    for number in range(5):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number), **sends(queue))
    held = receive(sqs, queue, most=2)
    sqs.purge_queue(QueueUrl=queue)
    numbers = attributes_of(sqs, queue)
    assert numbers["ApproximateNumberOfMessages"] == numbers["ApproximateNumberOfMessagesNotVisible"] == "0"
    for message in held:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert receive(sqs, queue, wait=0) == []
    sqs.send_message(QueueUrl=queue, MessageBody="new", **sends(queue))
    assert [message["Body"] for message in receive(sqs, queue)] == ["new"]


def test_a_deleted_queue_is_gone_and_may_come_back(sqs, queues, queue, kind):
    sqs.send_message(QueueUrl=queue, MessageBody="old", **sends(queue))
    sqs.delete_queue(QueueUrl=queue)
    for call in (
        lambda: sqs.delete_queue(QueueUrl=queue),
        lambda: sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"]),
        lambda: sqs.send_message(QueueUrl=queue, MessageBody="x", **sends(queue)),
        lambda: sqs.receive_message(QueueUrl=queue),
        lambda: sqs.purge_queue(QueueUrl=queue),
        lambda: sqs.list_queue_tags(QueueUrl=queue),
        lambda: sqs.get_queue_url(QueueName=queue.rsplit("/", 1)[1]),
    ):
        with refused("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist", status=400):
            call()
    assert queues(fifo=kind == "fifo", name=queue.rsplit("/", 1)[1]) == queue
    assert receive(sqs, queue, wait=0) == []


def test_a_waiting_receive_ends_when_its_queue_is_deleted(sqs, queue):
    import threading

    timer = threading.Timer(0.5, lambda: sqs.delete_queue(QueueUrl=queue))
    timer.start()
    began = time.monotonic()
    assert receive(sqs, queue, wait=20) == []
    timer.join()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    "attributes, code",
    [
        ({"VisibilityTimeout": "x"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "-1"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "1.5"}, "InvalidAttributeValue"),
        ({"Policy": "no json"}, "InvalidAttributeValue"),
        ({"Strange": "1"}, "InvalidAttributeName"),
        ({"QueueArn": "1"}, "InvalidAttributeName"),
        ({"FifoQueue": "false"}, "InvalidAttributeName"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"RedrivePolicy": "{}"}, "InvalidParameterValue"),
        ({"RedriveAllowPolicy": "{}"}, "InvalidParameterValue"),
    ],
)
def test_attributes_that_cannot_be_are_refused(sqs, queues, attributes, code):
    with refused(code, status=400):
        queues(**attributes)
    url = queues()
    with refused(code, status=400):
        sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
    with refused("InvalidAttributeName"):
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Strange"])


def test_a_fifo_queue_is_named_so(sqs, queues):
    with refused("InvalidParameterValue", "must end with .fifo suffix"):
        sqs.create_queue(QueueName=queues.name(), Attributes={"FifoQueue": "true"})
    with refused("InvalidParameterValue", "Can only include"):
        sqs.create_queue(QueueName=queues.name(".fifo"))
    url = queues(fifo=True)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"})
    with refused("InvalidAttributeValue", "Reason: Modifying queue type is not supported."):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "false"})
    for value in ("true", "false"):
        with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
            sqs.set_queue_attributes(QueueUrl=queues(), Attributes={"FifoQueue": value})


def test_a_limit_for_each_group_needs_deduplication_in_each_group(sqs, queues):
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    with refused("InvalidAttributeValue", "perMessageGroupId"):
        queues(fifo=True, FifoThroughputLimit="perMessageGroupId")
    url = queues(fifo=True)
    with refused("InvalidAttributeValue", "perMessageGroupId"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoThroughputLimit": "perMessageGroupId"})
    sqs.set_queue_attributes(QueueUrl=url, Attributes=high)
    with refused("InvalidAttributeValue", "perMessageGroupId"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": "queue"})
    assert high.items() <= attributes_of(sqs, url).items()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"})


def test_nothing_to_set_is_not_enough(sqs, queue):
    with refused("MissingParameter", "The request must contain the parameter Attribute.Name."):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={})


def test_a_queue_is_encrypted_in_one_way(sqs, queues, queue):
    def change(**attributes):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=attributes)
        return attributes_of(sqs, queue)

    assert change(SqsManagedSseEnabled="true")["SqsManagedSseEnabled"] == "true"
    assert change(KmsMasterKeyId="key")["SqsManagedSseEnabled"] == "false", "one's own key takes its place"
    with refused("InvalidAttributeName", "You can use one type of server-side encryption (SSE) at one time."):
        change(SqsManagedSseEnabled="true")
    with refused("InvalidAttributeName", "one type of server-side encryption"):
        queues(KmsMasterKeyId="key", SqsManagedSseEnabled="true")
    seen = change(KmsMasterKeyId="", SqsManagedSseEnabled="true")
    assert seen["SqsManagedSseEnabled"] == "true" and "KmsMasterKeyId" not in seen


def test_a_queue_does_not_carry_more_than_it_can(sqs, queue):
    megabyte = "x" * (1024 * 1024 + 1)
    for attributes in ({"Policy": json.dumps({"a": megabyte})}, {"KmsMasterKeyId": megabyte}):
        with refused("OverLimit", status=403):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes=attributes)
    with refused("OverLimit", status=403):
        sqs.tag_queue(QueueUrl=queue, Tags={f"{number:0128}": "x" * 256 for number in range(3000)})
    assert not sqs.list_queue_tags(QueueUrl=queue).get("Tags")


def test_wrong_pages_are_refused(sqs, queue):
    for max_results in (0, 1001, -1):
        with refused("InvalidParameterValue", "MaxResults"):
            sqs.list_queues(MaxResults=max_results)
        with refused("InvalidParameterValue", "MaxResults"):
            sqs.list_dead_letter_source_queues(QueueUrl=queue, MaxResults=max_results)
    with refused("InvalidParameterValue", "NextToken"):
        sqs.list_queues(NextToken="%%%", MaxResults=5)
