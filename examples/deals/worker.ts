// A worker: takes jobs, asks the API, and tells the broker what came of it. `worker.py` is the same for Python.
//
//     node worker.js BROKER_URL API_URL NAME
//
// The broker hands out a job only when the budget can pay for it, so there is no counting of tokens here. What is left to do is
// to pass on what the API says of its own count. The worker ends when its standard input does, after the job in its hands.

import { type Job, Nexo, Refused, type Report } from './nexo.js';

/** What those who ask put into a job, by its type. */
type Work = Job<{ category?: string; products?: string[] } | null>;

/** What the API answers. */
interface Said {
  items?: unknown[];
  error?: string;
  tokensLeft?: number;
  tokensUsed?: number;
  refillIn?: number;
}

const SIDE_BY_SIDE = 2;
const [broker, api, name] = process.argv.slice(2);
if (broker === undefined || api === undefined || name === undefined) throw new Error('worker.js BROKER_URL API_URL NAME');
const nexo = new Nexo(broker);
let stopping = false;
process.stdin.on('end', () => (stopping = true)).resume();

function pathOf({ type, payload }: Work): string | null {
  const { category = '', products = [] } = payload ?? {};
  switch (type) {
    case 'search':
      return `/search?category=${encodeURIComponent(category)}`;
    case 'refresh':
      return `/products?ids=${products.join(',')}`;
    case 'offers':
      return `/products?ids=${products.join(',')}&offers=1`;
    case 'count':
      return '/tokens';
    default:
      return null;
  }
}

/** What the API answers to a job: its status and its JSON. */
async function callApi(job: Work): Promise<[number, Said]> {
  const path = pathOf(job);
  if (path === null) return [404, { error: `this worker knows no jobs of type '${job.type}'` }];
  try {
    const answer = await fetch(api + path, { signal: AbortSignal.timeout(5000) });
    return [answer.status, (await answer.json()) as Said];
  } catch (error) {
    return [503, { error: `the API does not answer: ${error}` }];
  }
}

/** What the API says of its tokens, in the broker's words. */
function reportOf({ tokensUsed, tokensLeft, refillIn }: Said): Report {
  // What is undefined is left out of JSON.
  return { used: tokensUsed, tokens_left: tokensLeft, refill_in_ms: refillIn };
}

async function work(job: Work): Promise<void> {
  const [status, said] = await callApi(job);
  const report = reportOf(said);
  if (status === 200) {
    await nexo.complete(job.receipt, said.items ?? { tokens: said.tokensLeft }, report);
  } else if (status === 429) {
    // Somebody else has used tokens. The budget learns of it, and the job keeps its place and its attempts.
    await nexo.report('tokens', { ...report, used: undefined });
    await nexo.giveBack(job.receipt);
  } else {
    // What will not get better is not tried again. All else is, later and later.
    await nexo.fail(job.receipt, said.error ?? `status ${status}`, { ...report, retry: status >= 500 });
  }
}

async function goOn(worker: string): Promise<void> {
  while (!stopping) {
    const jobs: Work[] = await nexo.take('deals', worker, 1000);
    for (const job of jobs) {
      try {
        await work(job);
      } catch (error) {
        // It took so long that the job is another worker's by now, or it was cancelled. There is nothing to mend.
        if (!(error instanceof Refused && [404, 409].includes(error.status))) throw error;
      }
    }
  }
}

await Promise.all(Array.from({ length: SIDE_BY_SIDE }, (_, number) => goOn(`${name}-${number + 1}`)));
