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


def test_a_kill_under_load_loses_nothing_that_was_answered(nexo):
    import threading

    broker = nexo()
    client = broker.client()
    queues = [Queues(client)(name="load", VisibilityTimeout="2"), Queues(client)(name="load.fifo", fifo=True, VisibilityTimeout="2")]
    answered, deleted, doubtful = {url: set() for url in queues}, set(), set()

    def send(url, sender):
        try:
            for batch in range(100_000):
                bodies = [f"{url.rsplit('/', 1)[1]}-{sender}-{batch}-{i}" for i in range(10)]
                entries = [{"Id": str(i), "MessageBody": body, **sends(url, group=body)} for i, body in enumerate(bodies)]
                answer = broker_client.send_message_batch(QueueUrl=url, Entries=entries)
                answered[url].update(bodies[int(entry["Id"])] for entry in answer["Successful"])
        except Exception:
            pass

    def work(url):
        try:
            while True:
                for message in receive(broker_client, url):
                    doubtful.add(message["Body"])
                    broker_client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    deleted.add(message["Body"])
        except Exception:
            pass

    for life in range(3):
        broker_client = broker.client()
        here = {url: broker.url + "/" + url.split("/", 3)[3] for url in queues}
        answered = {here[url]: answered[url] for url in queues}
        queues = list(here.values())
        threads = [threading.Thread(target=send, args=(url, f"{life}{n}")) for url in queues for n in range(2)]
        threads += [threading.Thread(target=work, args=(url,)) for url in queues]
        for thread in threads:
            thread.start()
        threading.Event().wait(2)
        broker.kill()
        for thread in threads:
            thread.join()
        broker.start()
    client = broker.client()
    for url in queues:
        there, here = set(), broker.url + "/" + url.split("/", 3)[3]
        while messages := receive(client, here, wait=5, VisibilityTimeout=600):
            there.update(message["Body"] for message in messages)
        assert len(answered[url]) > 100, "the test puts load on the broker"
        # A delete whose answer did not come may have been done.
        assert not answered[url] - there - doubtful, "an answered message is lost"
        assert not there & deleted, "a message whose delete was answered is back"
