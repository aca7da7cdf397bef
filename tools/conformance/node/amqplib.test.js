// What amqplib sees: publishing, confirms, consuming, rejecting, errors, and calls with direct reply-to.
// AMQP_URL says which broker is judged.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import amqp from 'amqplib';

const URL = process.env.AMQP_URL ?? 'amqp://guest:guest@127.0.0.1:5672/%2F';

let connection;

before(async () => {
  connection = await amqp.connect(URL);
});

after(async () => {
  await connection.close();
});

/** A channel with a queue of its own, both gone when the test ends. */
async function given(t, options = {}) {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue(`conf.node.${randomUUID()}`, options);
  t.after(async () => {
    const cleaner = await connection.createChannel();
    await cleaner.deleteQueue(queue);
    await cleaner.close();
    await channel.close().catch(() => {});
  });
  return { channel, queue };
}

/** The next message of a queue. */
async function fetch(channel, queue) {
  for (let attempt = 0; attempt < 250; attempt += 1) {
    const message = await channel.get(queue);
    if (message) return message;
    await sleep(20);
  }
  return assert.fail(`no message in ${queue}`);
}

/** Resolves with the first `count` messages that a consumer is sent. */
function collect(channel, queue, count, options) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const take = (message) => {
      messages.push(message);
      if (messages.length === count) resolve(messages);
    };
    channel.consume(queue, take, options).catch(reject);
  });
}

test('a message comes out as it went in', async (t) => {
  const { channel, queue } = await given(t);
  const headers = { text: 'grüße', number: 5, big: 2 ** 40, half: 0.5, yes: true, nothing: null, list: [1, 'a'], deep: { a: { b: 1 } } };
  channel.sendToQueue(queue, Buffer.from('hello'), { headers, contentType: 'text/plain', messageId: '7', persistent: true });
  const message = await fetch(channel, queue);
  assert.equal(message.content.toString(), 'hello');
  assert.deepEqual({ ...message.properties.headers }, headers);
  assert.equal(message.properties.contentType, 'text/plain');
  assert.equal(message.properties.messageId, '7');
  assert.equal(message.properties.deliveryMode, 2);
  channel.ack(message);
});

test('a body of many small frames', async (t) => {
  const { channel, queue } = await given(t);
  const body = Buffer.alloc(300_000, 'abcdefg');
  channel.sendToQueue(queue, body);
  assert.ok((await fetch(channel, queue)).content.equals(body));
});

test('every publish of a thousand is confirmed', async (t) => {
  const { channel, queue } = await given(t);
  const confirming = await connection.createConfirmChannel();
  for (let number = 0; number < 1000; number += 1) {
    confirming.sendToQueue(queue, Buffer.from(String(number)), { persistent: true });
  }
  await confirming.waitForConfirms();
  assert.equal((await channel.checkQueue(queue)).messageCount, 1000);
  await confirming.close();
});

test('a full queue nacks', async (t) => {
  const { queue } = await given(t, { maxLength: 1, arguments: { 'x-overflow': 'reject-publish' } });
  const confirming = await connection.createConfirmChannel();
  const publish = () =>
    new Promise((resolve, reject) => {
      confirming.sendToQueue(queue, Buffer.from('x'), {}, (error) => (error ? reject(error) : resolve()));
    });
  await publish();
  await assert.rejects(publish, /nacked/);
  await confirming.close();
});

test('unroutable and mandatory is returned', async (t) => {
  const { channel } = await given(t);
  const returned = once(channel, 'return');
  channel.publish('amq.direct', `nobody.${randomUUID()}`, Buffer.from('back'), { mandatory: true });
  const [message] = await returned;
  assert.equal(message.fields.replyCode, 312);
  assert.equal(message.fields.replyText, 'NO_ROUTE');
  assert.equal(message.content.toString(), 'back');
});

test('a consumer is sent messages in order and acknowledges them', async (t) => {
  const { channel, queue } = await given(t);
  for (let number = 0; number < 50; number += 1) channel.sendToQueue(queue, Buffer.from(String(number)));
  const messages = await collect(channel, queue, 50);
  assert.deepEqual(messages.map((message) => Number(message.content)), [...Array(50).keys()]);
  channel.ackAll();
  await channel.close();
  const other = await connection.createChannel();
  assert.equal((await other.checkQueue(queue)).messageCount, 0);
  await other.close();
});

test('prefetch holds back what is not acknowledged', async (t) => {
  const { channel, queue } = await given(t);
  await channel.prefetch(2);
  for (let number = 0; number < 5; number += 1) channel.sendToQueue(queue, Buffer.from(String(number)));
  const seen = [];
  await channel.consume(queue, (message) => seen.push(message));
  await sleep(300);
  assert.equal(seen.length, 2);
  channel.ack(seen[0]);
  await sleep(200);
  assert.equal(seen.length, 3);
});

test('a rejected message comes back or is dead-lettered', async (t) => {
  const dead = await given(t);
  const { channel, queue } = await given(t, { deadLetterExchange: '', deadLetterRoutingKey: dead.queue });
  channel.sendToQueue(queue, Buffer.from('bad'));
  channel.nack(await fetch(channel, queue), false, true);
  const again = await fetch(channel, queue);
  assert.equal(again.fields.redelivered, true);
  channel.reject(again, false);
  const { properties } = await fetch(dead.channel, dead.queue);
  const [death] = properties.headers['x-death'];
  assert.deepEqual([death.queue, death.reason, death.count], [queue, 'rejected', 1]);
  assert.equal(properties.headers['x-first-death-queue'], queue);
});

test('a deleted queue tells its consumer with null', async (t) => {
  const { channel, queue } = await given(t);
  const told = collect(channel, queue, 1);
  const other = await connection.createChannel();
  await other.deleteQueue(queue);
  assert.deepEqual(await told, [null]);
  await other.close();
});

test('exchanges are bound to queues and to each other', async (t) => {
  const { channel, queue } = await given(t);
  const [topic, fanout] = [`conf.node.${randomUUID()}`, `conf.node.${randomUUID()}`];
  await channel.assertExchange(topic, 'topic', { autoDelete: true });
  await channel.assertExchange(fanout, 'fanout', { autoDelete: true });
  await channel.bindExchange(fanout, topic, 'a.#');
  await channel.bindQueue(queue, fanout, '');
  channel.publish(topic, 'a.b.c', Buffer.from('through both'));
  assert.equal((await fetch(channel, queue)).content.toString(), 'through both');
  await channel.deleteExchange(fanout);
});

test('an error closes the channel with its code and text', async () => {
  const channel = await connection.createChannel();
  channel.on('error', () => {});
  const missing = `conf.node.${randomUUID()}`;
  await assert.rejects(channel.checkQueue(missing), (error) => {
    assert.equal(error.code, 404);
    assert.match(error.message, new RegExp(`404 \\(NOT-FOUND\\) with message "NOT_FOUND - no queue '${missing}' in vhost '/'"`));
    return true;
  });
});

test('an unknown delivery tag is 406', async () => {
  const channel = await connection.createChannel();
  const failed = once(channel, 'error');
  channel.ack({ fields: { deliveryTag: 9 } });
  const [error] = await failed;
  assert.equal(error.code, 406);
  assert.match(error.message, /PRECONDITION_FAILED - unknown delivery tag 9/);
});

test('a call is answered by direct reply-to', async (t) => {
  const { channel: server, queue } = await given(t);
  await server.consume(queue, (request) => {
    if (request === null) return;
    const { replyTo, correlationId } = request.properties;
    server.sendToQueue(replyTo, Buffer.from(`${request.content}!`), { correlationId });
    server.ack(request);
  });
  const client = await connection.createChannel();
  const answers = collect(client, 'amq.rabbitmq.reply-to', 3, { noAck: true });
  for (const word of ['one', 'two', 'three']) {
    client.sendToQueue(queue, Buffer.from(word), { replyTo: 'amq.rabbitmq.reply-to', correlationId: word });
  }
  const told = (await answers).map((answer) => [answer.properties.correlationId, answer.content.toString()]);
  assert.deepEqual(told, [['one', 'one!'], ['two', 'two!'], ['three', 'three!']]);
  await client.close();
});

test('a call is answered by a queue of the client', async (t) => {
  const { channel: server, queue } = await given(t);
  await server.consume(queue, (request) => {
    if (request === null) return;
    server.sendToQueue(request.properties.replyTo, Buffer.from('answer'), request.properties);
    server.ack(request);
  });
  const client = await connection.createChannel();
  const mine = await client.assertQueue('', { exclusive: true });
  const answer = collect(client, mine.queue, 1, { noAck: true });
  client.sendToQueue(queue, Buffer.from('question'), { replyTo: mine.queue, correlationId: '1' });
  const [message] = await answer;
  assert.equal(message.content.toString(), 'answer');
  await client.close();
});

test('a wrong password is refused', async () => {
  const wrong = new globalThis.URL(URL);
  wrong.password = 'wrong';
  await assert.rejects(amqp.connect(wrong.href), /ACCESS_REFUSED|ACCESS-REFUSED/);
});

test('heartbeats keep an idle connection up', { timeout: 40_000 }, async () => {
  const idle = await amqp.connect(`${URL}?heartbeat=1`);
  idle.on('error', (error) => assert.fail(error));
  await sleep(3500);
  const channel = await idle.createChannel();
  await channel.close();
  await idle.close();
});
