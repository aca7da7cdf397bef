"""What survives when a broker is killed: everything that was answered."""

import json

from conftest import Queues, attributes_of, receive, receive_all, sends


def test_what_was_answered_survives_a_kill(nexo):
    broker = nexo()
    client = broker.client()
    queues = Queues(client)
    dead = queues(name="dead.fifo", fifo=True)
    policy = json.dumps({"deadLetterTargetArn": queues.arn(dead), "maxReceiveCount": 3})
    queues(name="jobs.fifo", fifo=True, ContentBasedDeduplication="true", DelaySeconds="0", RedrivePolicy=policy)
    standard = queues(name="jobs")
    client.tag_queue(QueueUrl=standard, Tags={"team": "a"})
    fifo = queues.made[1]
    first = client.send_message(QueueUrl=fifo, MessageBody="once", MessageGroupId="g")
    attributes = {"n": {"DataType": "Number.x", "StringValue": "1.50"}}
    for number in range(50):
        client.send_message(QueueUrl=standard, MessageBody=str(number), MessageAttributes=attributes)
    held = receive(client, standard, most=10, VisibilityTimeout=600)
    client.delete_message_batch(
        QueueUrl=standard,
        Entries=[{"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]} for i, message in enumerate(held[:5])],
    )
    before = attributes_of(client, fifo)
    broker.kill()
    broker.start()
    client = broker.client()
    here = lambda url: broker.url + "/" + url.split("/", 3)[3]
    fifo, standard = here(fifo), here(standard)
    assert attributes_of(client, fifo) == before
    assert client.list_queue_tags(QueueUrl=standard)["Tags"] == {"team": "a"}
    again = client.send_message(QueueUrl=fifo, MessageBody="once", MessageGroupId="g")
    assert again["MessageId"] == first["MessageId"], "a repetition is recognised after a restart"
    assert attributes_of(client, fifo)["ApproximateNumberOfMessages"] == "1"
    got = receive_all(client, standard, 40, MessageAttributeNames=["All"])
    assert {message["Body"] for message in got} == {str(number) for number in range(10, 50)}
    assert all(message["MessageAttributes"] == attributes for message in got)
    # What was with a client before is with it still.
    client.delete_message(QueueUrl=standard, ReceiptHandle=held[9]["ReceiptHandle"])
    assert attributes_of(client, standard)["ApproximateNumberOfMessagesNotVisible"] == str(40 + 4)
