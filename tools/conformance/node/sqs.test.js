// What the AWS SDK for JavaScript and sqs-consumer see. SQS_URL says which endpoint is judged; without it, as on a
// broker that has no SQS API, there is nothing to judge.

import assert from 'node:assert/strict';
import { createHash, randomUUID } from 'node:crypto';
import { test } from 'node:test';
import {
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SQSClient,
  SendMessageBatchCommand,
  SendMessageCommand,
} from '@aws-sdk/client-sqs';
import { Consumer } from 'sqs-consumer';

const endpoint = process.env.SQS_URL;
const options = { skip: endpoint ? false : 'SQS_URL is not set' };

const client = new SQSClient({
  endpoint,
  region: 'eu-west-1',
  credentials: { accessKeyId: 'key', secretAccessKey: 'secret' },
  maxAttempts: 1,
});

/** A queue that is gone when the test ends. */
async function given(t, attributes = {}) {
  const suffix = attributes.FifoQueue ? '.fifo' : '';
  const QueueName = `conf-node-${randomUUID()}${suffix}`;
  const { QueueUrl } = await client.send(new CreateQueueCommand({ QueueName, Attributes: attributes }));
  t.after(() => client.send(new DeleteQueueCommand({ QueueUrl })).catch(() => {}));
  return QueueUrl;
}

/** What comes within a while. */
async function receive(QueueUrl, more = {}) {
  const answer = await client.send(
    new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds: 10, MaxNumberOfMessages: 10, ...more }),
  );
  return answer.Messages ?? [];
}

test('a message comes out as it went in', options, async (t) => {
  const QueueUrl = await given(t);
  const MessageAttributes = {
    text: { DataType: 'String', StringValue: 'grüße' },
    number: { DataType: 'Number', StringValue: '1.50' },
    bytes: { DataType: 'Binary', BinaryValue: new Uint8Array([0, 255]) },
  };
  const sent = await client.send(new SendMessageCommand({ QueueUrl, MessageBody: '<wörter & mehr>', MessageAttributes }));
  const [got] = await receive(QueueUrl, { MessageAttributeNames: ['All'], MessageSystemAttributeNames: ['All'] });
  assert.equal(got.Body, '<wörter & mehr>');
  assert.equal(got.MessageId, sent.MessageId);
  assert.equal(got.MD5OfBody, createHash('md5').update(got.Body).digest('hex'));
  assert.equal(got.MessageAttributes.text.StringValue, 'grüße');
  assert.equal(got.MessageAttributes.number.StringValue, '1.50');
  assert.deepEqual([...got.MessageAttributes.bytes.BinaryValue], [0, 255]);
  assert.equal(got.Attributes.ApproximateReceiveCount, '1');
});

test('batches fail by entry', options, async (t) => {
  const QueueUrl = await given(t);
  const Entries = [
    { Id: 'good', MessageBody: 'x' },
    { Id: 'bad', MessageBody: 'a\u0001b' },
  ];
  const sent = await client.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
  assert.deepEqual(sent.Successful.map((entry) => entry.Id), ['good']);
  assert.equal(sent.Failed[0].Code, 'InvalidMessageContents');
  const [got] = await receive(QueueUrl);
  const deleted = await client.send(
    new DeleteMessageBatchCommand({ QueueUrl, Entries: [{ Id: '0', ReceiptHandle: got.ReceiptHandle }] }),
  );
  assert.equal(deleted.Successful.length, 1);
});

test('errors are the errors of the SDK', options, async () => {
  await assert.rejects(client.send(new GetQueueUrlCommand({ QueueName: 'never' })), (error) => {
    assert.ok(error instanceof QueueDoesNotExist, error);
    assert.equal(error.$metadata.httpStatusCode, 400);
    return true;
  });
});

test('a FIFO queue keeps order and recognises repetitions', options, async (t) => {
  const QueueUrl = await given(t, { FifoQueue: 'true', ContentBasedDeduplication: 'true' });
  const send = (MessageBody) => client.send(new SendMessageCommand({ QueueUrl, MessageBody, MessageGroupId: 'g' }));
  const first = await send('1');
  await send('2');
  const again = await send('1');
  assert.equal(again.SequenceNumber, first.SequenceNumber);
  const bodies = (messages) => messages.map((message) => message.Body);
  const got = await receive(QueueUrl);
  assert.deepEqual(bodies(got), ['1', '2']);
  // The group is locked while any message of it is with a consumer.
  for (const { ReceiptHandle } of got) {
    await client.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 }));
  }
  assert.deepEqual(bodies(await receive(QueueUrl)), ['1', '2']);
});

test('sqs-consumer works through a queue, and what fails comes back', options, async (t) => {
  const queueUrl = await given(t, { VisibilityTimeout: '600' });
  const bodies = Array.from({ length: 30 }, (_, number) => String(number));
  for (let at = 0; at < bodies.length; at += 10) {
    const Entries = bodies.slice(at, at + 10).map((MessageBody) => ({ Id: MessageBody, MessageBody }));
    await client.send(new SendMessageBatchCommand({ QueueUrl: queueUrl, Entries }));
  }
  const done = new Set();
  let failures = 0;
  await new Promise((resolve, reject) => {
    const consumer = Consumer.create({
      queueUrl,
      sqs: client,
      batchSize: 10,
      waitTimeSeconds: 2,
      terminateVisibilityTimeout: true,
      handleMessage: async (message) => {
        if (message.Body === '7' && failures < 2) {
          failures += 1;
          throw new Error('not yet');
        }
        done.add(message.Body);
        return message;
      },
    });
    consumer.on('error', reject);
    consumer.on('processing_error', () => {});
    consumer.on('empty', () => {
      if (done.size === bodies.length) {
        consumer.stop({ abort: true });
        resolve();
      }
    });
    consumer.start();
  });
  assert.equal(failures, 2);
  const { Attributes } = await client.send(new GetQueueAttributesCommand({ QueueUrl: queueUrl, AttributeNames: ['All'] }));
  assert.equal(Attributes.ApproximateNumberOfMessages, '0');
  assert.equal(Attributes.ApproximateNumberOfMessagesNotVisible, '0');
});
