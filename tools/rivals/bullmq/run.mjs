// The same pattern on two brokers: many clients ask for few keys at random, each key is worked on once at a time, and everyone
// who asked gets the answer.
//
//   node run.mjs nexo HOST:PORT [settings]      over one stream of Nexo's native API
//   node run.mjs http HOST:PORT [settings]      over Nexo's HTTP API, a request for each call
//   node run.mjs bullmq REDIS_PORT [settings]   with BullMQ on Redis
//
// A client of BullMQ sends its commands over a few connections, without waiting for one before the next; the stream is the same
// for Nexo.
//
// Settings: clients=200 keys=50 workers=16 seconds=5. Prints one line of JSON: answers and jobs a second, and how long a client
// waited for its answer.

import http from 'node:http';

const [, , which, where, ...rest] = process.argv;
const settings = { clients: 200, keys: 50, workers: 16, seconds: 5 };
for (const setting of rest) {
  const [name, value] = setting.split('=');
  settings[name] = Number(value);
}
const RESULT = Array.from({ length: 10 }, (_, n) => ({ title: `product ${n}`, discount: n * 10, price: 100 - n }));
const QUEUE = 'deals';

/** Counts while it is measured, and not before. */
const counts = { answers: 0, jobs: 0, waits: [] };
let isMeasured = false;
let isOver = false;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const randomKey = () => `category-${Math.floor(Math.random() * settings.keys)}`;

async function client(ask, number) {
  for (let turn = 0; !isOver; turn += 1) {
    const began = performance.now();
    const answer = await ask(randomKey(), `${number}-${turn}`);
    if (!Array.isArray(answer) || answer.length !== RESULT.length) {
      throw new Error(`an answer is ${JSON.stringify(answer)}`);
    }
    if (isMeasured) {
      counts.answers += 1;
      counts.waits.push(performance.now() - began);
    }
  }
}

async function nexo(address) {
  const grpc = await import('@grpc/grpc-js');
  const { loadSync } = await import('@grpc/proto-loader');
  const place = process.env.NEXO_PROTO ?? new URL('../../../proto', import.meta.url).pathname;
  const loaded = loadSync('nexo/v1/jobs.proto', { includeDirs: [place], longs: Number, defaults: true });
  const { JobService } = grpc.loadPackageDefinition(loaded).nexo.v1;
  const login = new grpc.Metadata();
  login.set('authorization', `Basic ${Buffer.from('guest:guest').toString('base64')}`);
  const service = new JobService(address, grpc.credentials.createInsecure());
  const config = { answerFromCache: false, rememberMs: 10_000, resultTtlMs: 0 };
  await new Promise((resolve, reject) =>
    service.putQueue({ queue: QUEUE, config }, login, (error) => (error ? reject(error) : resolve())),
  );
  /** Calls that are sent together, and those that wait for their answers. */
  const open = () => {
    const stream = service.calls(login);
    const waiting = new Map();
    let unsent = [];
    let last = 0;
    stream.on('data', ({ replies }) => {
      for (const reply of replies) {
        const { resolve, reject } = waiting.get(reply.sequence);
        waiting.delete(reply.sequence);
        if (reply.error) {
          reject(new Error(`${reply.error.code}: ${reply.error.message}`));
        } else {
          resolve(reply);
        }
      }
    });
    stream.on('error', (error) => waiting.forEach(({ reject }) => reject(error)));
    const call = (what) =>
      new Promise((resolve, reject) => {
        last += 1;
        waiting.set(last, { resolve, reject });
        unsent.push({ sequence: last, ...what });
        if (unsent.length === 1) {
          setImmediate(() => {
            stream.write({ calls: unsent });
            unsent = [];
          });
        }
      });
    return { call, end: () => stream.end() };
  };
  const [asking, working] = [open(), open()];
  let isDone = false;
  const result = Buffer.from(JSON.stringify(RESULT));
  // A worker says that a job is done and asks for the next at once, as BullMQ's does.
  const worker = async (number) => {
    const next = () => working.call({ take: { queue: QUEUE, worker: `w${number}`, waitMs: 500 } });
    let taken = next();
    while (!isDone) {
      const { take } = await taken;
      const done = take.jobs.map(({ receipt }) => working.call({ complete: { receipt, result } }));
      taken = next();
      await Promise.all(done);
      counts.jobs += isMeasured ? done.length : 0;
    }
    const { take } = await taken;
    await Promise.all(take.jobs.map(({ receipt }) => working.call({ complete: { receipt, result } })));
  };
  const ask = async (key, id) => {
    const waiter = { id, filter: 'item.price > 0' };
    const reply = await asking.call({ ask: { queue: QUEUE, type: 'search', key, waiter, waitMs: 30_000 } });
    return JSON.parse(reply.ask.answer.result);
  };
  const workers = Array.from({ length: settings.workers }, (_, number) => worker(number));
  const end = async () => {
    isDone = true;
    await Promise.all(workers);
    asking.end();
    working.end();
    service.close();
  };
  return { ask, end };
}

async function overHttp(address) {
  const [host, port] = address.split(':');
  const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
  const auth = `Basic ${Buffer.from('guest:guest').toString('base64')}`;
  const call = (method, path, body) =>
    new Promise((resolve, reject) => {
      const text = body === undefined ? '' : JSON.stringify(body);
      const headers = { authorization: auth, 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
      const request = http.request({ host, port, method, path: `/api/jobs/${path}`, agent, headers }, (answer) => {
        let got = '';
        answer.setEncoding('utf8');
        answer.on('data', (part) => (got += part));
        answer.on('end', () =>
          answer.statusCode < 300 ? resolve(got ? JSON.parse(got) : null) : reject(new Error(`${answer.statusCode}: ${got}`)),
        );
      });
      request.on('error', reject);
      request.end(text);
    });
  const queue = `queues/%2F/${QUEUE}`;
  await call('PUT', queue, { answer_from_cache: false, remember_ms: 10_000, result_ttl_ms: 0 });
  let isDone = false;
  const worker = async (number) => {
    while (!isDone) {
      const { jobs } = await call('POST', `${queue}/take`, { worker: `w${number}`, wait_ms: 500 });
      for (const job of jobs) {
        await call('POST', `receipt/${job.receipt}/complete`, { result: RESULT });
        counts.jobs += isMeasured ? 1 : 0;
      }
    }
  };
  const ask = async (key, id) => {
    const asked = await call('POST', `${queue}/ask`, { key, waiter: { id, filter: 'item.price > 0' }, wait_ms: 30_000 });
    return asked.answer.result;
  };
  const working = Array.from({ length: settings.workers }, (_, number) => worker(number));
  return { ask, end: async () => { isDone = true; await Promise.all(working); agent.destroy(); } };
}

async function bullmq(port) {
  const { Queue, QueueEvents, Worker } = await import('bullmq');
  const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
  const queue = new Queue(QUEUE, { connection });
  queue.setMaxListeners(0);
  const events = new QueueEvents(QUEUE, { connection });
  events.setMaxListeners(0);
  const work = async () => {
    counts.jobs += isMeasured ? 1 : 0;
    return RESULT;
  };
  const worker = new Worker(QUEUE, work, { connection, concurrency: settings.workers });
  await Promise.all([queue.waitUntilReady(), events.waitUntilReady(), worker.waitUntilReady()]);
  const ask = async (key) => {
    const options = { deduplication: { id: key }, removeOnComplete: 2000, removeOnFail: 2000 };
    const job = await queue.add('search', { key }, options);
    const result = await job.waitUntilFinished(events, 30_000);
    return result.filter((item) => item.price > 0);
  };
  return { ask, end: async () => { await worker.close(); await events.close(); await queue.close(); } };
}

const broker = await { nexo, http: overHttp, bullmq }[which](where);
const clients = Array.from({ length: settings.clients }, (_, number) => client(broker.ask, number));
const failed = Promise.all(clients);
await Promise.race([failed, sleep(1000)]);
isMeasured = true;
const began = performance.now();
await Promise.race([failed, sleep(settings.seconds * 1000)]);
isMeasured = false;
const seconds = (performance.now() - began) / 1000;
isOver = true;
await Promise.all(clients);
await broker.end();
counts.waits.sort((a, b) => a - b);
const at = (part) => counts.waits[Math.floor(counts.waits.length * part)] ?? 0;
console.log(
  JSON.stringify({
    ...settings,
    answers_per_second: counts.answers / seconds,
    jobs_per_second: counts.jobs / seconds,
    wait_ms_p50: at(0.5),
    wait_ms_p99: at(0.99),
  }),
);
