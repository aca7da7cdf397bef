// The automations whose client is "node" in automations.json: each asks again and again. `clients.py` has those of Python.
//
//     node clients.js BROKER_URL SECONDS
//
// `run` compiles it and starts it where automations.json is. Some automations wait for the answer in a call, some have it come as a
// message into a queue. What is asked and answered is printed, a line of JSON each, so that `run` can keep books. It ends when its
// standard input does: `run` closes that.

import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { Nexo, type Request, type Waiter } from './nexo.js';

type Plan = 'business' | 'pro' | 'starter' | 'free';

interface Automation {
  name: string;
  plan: Plan;
  category?: string;
  type?: string;
  products?: string[];
  filter: string;
  every_ms: number;
  answer: 'call' | 'queue';
  client: string;
}

const ANSWERS = 'deals.answers.node';
// When each plan needs its answer.
const DUE_IN_MS: Record<Plan, number> = { business: 0, pro: 5 * 60_000, starter: 10 * 60_000, free: 20 * 60_000 };
const PATIENCE_MS = 20_000;

const [broker, seconds] = process.argv.slice(2);
if (broker === undefined || seconds === undefined) throw new Error('clients.js BROKER_URL SECONDS');
const nexo = new Nexo(broker);
const until = Date.now() + 1000 * Number(seconds);
let done = false;
const closed = new Promise((resolve) => process.stdin.on('end', resolve).resume());

function tell(what: Record<string, unknown>): void {
  console.log(JSON.stringify({ client: 'node', ...what }));
}

/** What an automation asks for: the work, and who waits for it. Same work means same key. */
function requestOf(automation: Automation, number: number): Request & { waiter: Waiter } {
  const { category, products = [] } = automation;
  const type = category === undefined ? automation.type : 'search';
  const payload = category === undefined ? { products } : { category };
  const waiter = {
    id: `${automation.name}-${number}`,
    user: automation.name.split('-')[0],
    class: automation.plan,
    due_in_ms: DUE_IN_MS[automation.plan],
    filter: automation.filter,
  };
  return { type, key: `${type}:${category ?? products.join(',')}`, payload, waiter };
}

/** Asks, gets its answer, rests, and asks again. */
async function automate(automation: Automation): Promise<void> {
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
async function readAnswers(): Promise<void> {
  for (;;) {
    const last = done;
    const answers = await nexo.getAnswers(ANSWERS);
    for (const answer of answers) tell({ answer });
    if (last && answers.length === 0) return;
    await sleep(200);
  }
}

const all = JSON.parse(await readFile('automations.json', 'utf8')) as Automation[];
const own = all.filter(({ client }) => client === 'node');
const reading = readAnswers();
await Promise.all(own.map(automate));
tell({ asked_all: true });
await closed;
done = true;
await reading;
