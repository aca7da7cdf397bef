// @ts-check
// The automations whose client is "node" in automations.json: each asks again and again. `clients.py` has those of Python.
//
//     node clients.mjs BROKER_URL SECONDS
//
// Some wait for the answer in a call, some have it come as a message into a queue. What is asked and answered is printed, a line of
// JSON each, so that `run` can keep books. It ends when its standard input does: `run` closes that.

import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { Nexo } from './nexo.mjs';

/**
 * @typedef {object} Automation
 * @property {string} name
 * @property {'business' | 'pro' | 'starter' | 'free'} plan
 * @property {string} [category]
 * @property {string} [type]
 * @property {string[]} [products]
 * @property {string} filter
 * @property {number} every_ms
 * @property {'call' | 'queue'} answer
 * @property {string} client
 */

const ANSWERS = 'deals.answers.node';
// When each plan needs its answer.
const DUE_IN_MS = { business: 0, pro: 5 * 60_000, starter: 10 * 60_000, free: 20 * 60_000 };
const PATIENCE_MS = 20_000;

const [broker, seconds] = process.argv.slice(2);
const nexo = new Nexo(broker);
const until = Date.now() + 1000 * Number(seconds);
let done = false;
const closed = new Promise((resolve) => process.stdin.on('end', resolve).resume());

/** @param {Record<string, unknown>} what */
function tell(what) {
  console.log(JSON.stringify({ client: 'node', ...what }));
}

/**
 * What an automation asks for: the work, and who waits for it. Same work means same key.
 * @param {Automation} automation @param {number} number
 */
function requestOf(automation, number) {
  const { category, products = [] } = automation;
  const type = category === undefined ? automation.type : 'search';
  const payload = category === undefined ? { products } : { category };
  /** @type {import('./nexo.mjs').Waiter} */
  const waiter = {
    id: `${automation.name}-${number}`,
    user: automation.name.split('-')[0],
    class: automation.plan,
    due_in_ms: DUE_IN_MS[automation.plan],
    filter: automation.filter,
  };
  return { type, key: `${type}:${category ?? products.join(',')}`, payload, waiter };
}

/**
 * Asks, gets its answer, rests, and asks again.
 * @param {Automation} automation
 */
async function automate(automation) {
  for (let number = 1; Date.now() < until; number += 1) {
    const request = requestOf(automation, number);
    const waiter = request.waiter.id;
    tell({ asked: waiter, plan: automation.plan, by: automation.answer, key: request.key });
    if (automation.answer === 'queue') {
      await nexo.ask('deals', { ...request, waiter: { ...request.waiter, reply_to: ANSWERS } });
    } else {
      // One call asks and waits. If it was not long enough, the waiter is still there: wait again.
      let { answer } = await nexo.ask('deals', { ...request, wait_ms: 10_000 });
      const patience = Date.now() + PATIENCE_MS;
      while (!answer && Date.now() < patience) answer = await nexo.answer('deals', waiter, 10_000);
      if (answer) tell({ answer });
    }
    await sleep(Math.max(0, Math.min(automation.every_ms, until - Date.now())));
  }
}

/** Reads the queue of answers until all are done, and once more: a second answer would be found there. */
async function readAnswers() {
  for (;;) {
    const last = done;
    const answers = await nexo.getMessages(ANSWERS);
    for (const answer of answers) tell({ answer });
    if (last && answers.length === 0) return;
    await sleep(200);
  }
}

/** @type {Automation[]} */
const all = JSON.parse(await readFile(new URL('automations.json', import.meta.url), 'utf8'));
const own = all.filter(({ client }) => client === 'node');
const reading = readAnswers();
await Promise.all(own.map(automate));
tell({ asked_all: true });
await closed;
done = true;
await reading;
