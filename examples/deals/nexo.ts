// All that a Node program needs to use job queues: fetch and JSON. Nothing here is special to this example; copy it. `nexo.py` is
// the same for Python.

/** Who waits for a job, and where the answer goes. */
export interface Waiter {
  id: string;
  user?: string;
  class?: string;
  due_in_ms?: number;
  filter?: string;
  reply_to?: string;
}

/** What is asked for. */
export interface Request {
  key: string;
  type?: string;
  payload?: unknown;
  deadline_in_ms?: number;
  waiter?: Waiter;
  wait_ms?: number;
}

/** What a waiter is told. */
export interface Answer {
  waiter: string;
  job: string;
  type: string;
  key: string;
  status: 'done' | 'failed' | 'cancelled' | 'expired';
  result?: unknown;
  error?: string;
}

/** What became of a request, with the answer if it asked for that as well. */
export interface Asked {
  job: string;
  state: 'created' | 'joined' | 'joined_running' | 'cached' | 'known';
  answer?: Answer | null;
}

/** A job in a worker's hands. Its payload is whatever those who ask have put into it. */
export interface Job<Payload = unknown> {
  receipt: string;
  job: string;
  attempt: number;
  type: string;
  key: string;
  payload: Payload;
  cost: number;
  lease_until_ms: number;
}

/** What the API said of its tokens. */
export interface Report {
  used?: number;
  tokens_left?: number;
  refill_in_ms?: number;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    reason: string,
  ) {
    super(`${status}: ${reason}`);
  }
}

export class Nexo {
  readonly #url: string;
  readonly #vhost: string;
  readonly #headers: Record<string, string>;

  constructor(url: string, user = 'guest', password = 'guest', vhost = '/') {
    this.#url = url.replace(/\/$/, '');
    this.#vhost = encodeURIComponent(vhost);
    const login = Buffer.from(`${user}:${password}`).toString('base64');
    this.#headers = { authorization: `Basic ${login}`, 'content-type': 'application/json' };
  }

  /** Asks for work. The same waiter may ask again: it is still one waiter, with one answer. */
  ask(queue: string, request: Request): Promise<Asked> {
    return this.#call('POST', `${this.#queue(queue)}/ask`, request);
  }

  /** A waiter's answer, or null if there is none by then. Asking again gives the same answer again. */
  async answer(queue: string, waiter: string, waitMs = 0): Promise<Answer | null> {
    const path = `${this.#queue(queue)}/answers/${encodeURIComponent(waiter)}?wait_ms=${waitMs}`;
    return (await this.#call<{ answer: Answer | null }>('GET', path)).answer;
  }

  /** Jobs for a worker, most urgent first. Waits for one; nobody has to poll. */
  async take<Payload = unknown>(queue: string, worker: string, waitMs = 0, max = 1): Promise<Job<Payload>[]> {
    const wanted = { worker, wait_ms: waitMs, max };
    return (await this.#call<{ jobs: Job<Payload>[] }>('POST', `${this.#queue(queue)}/take`, wanted)).jobs;
  }

  async complete(receipt: string, result: unknown, report: Report = {}): Promise<void> {
    await this.#call('POST', `/api/jobs/receipt/${receipt}/complete`, { result, ...report });
  }

  /** Says that it could not be done. Tells whether it is tried again. */
  fail(
    receipt: string,
    error: string,
    report: Report & { retry?: boolean } = {},
  ): Promise<{ retried: boolean; ready_ms?: number }> {
    return this.#call('POST', `/api/jobs/receipt/${receipt}/fail`, { error, ...report });
  }

  /** For a worker that has to stop: the job keeps its place, and the attempt does not count. */
  async giveBack(receipt: string): Promise<void> {
    await this.#call('POST', `/api/jobs/receipt/${receipt}/return`, {});
  }

  /** Passes on what the API has said of its tokens, apart from any job. */
  async report(budget: string, report: Report): Promise<void> {
    await this.#call('POST', `/api/jobs/budgets/${this.#vhost}/${encodeURIComponent(budget)}/report`, report);
  }

  /** Takes answers out of a queue: messages, each with an answer as the JSON in its body. */
  async getAnswers(queue: string, count = 100): Promise<Answer[]> {
    const wanted = { count, ackmode: 'ack_requeue_false', encoding: 'auto' };
    const path = `/api/queues/${this.#vhost}/${encodeURIComponent(queue)}/get`;
    const messages = await this.#call<{ payload: string }[]>('POST', path, wanted);
    return messages.map((message) => JSON.parse(message.payload) as Answer);
  }

  #queue(name: string): string {
    return `/api/jobs/queues/${this.#vhost}/${encodeURIComponent(name)}`;
  }

  async #call<T>(method: 'GET' | 'POST', path: string, body?: unknown): Promise<T> {
    const answer = await fetch(this.#url + path, {
      method,
      headers: this.#headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Refused(answer.status, reasonOf(text));
    return (text === '' ? null : JSON.parse(text)) as T;
  }
}

/** Why the broker refused something, in its words. */
function reasonOf(text: string): string {
  try {
    const { reason } = JSON.parse(text) as { reason?: string };
    return reason ?? text;
  } catch {
    // Not from the broker, or not JSON: as it is.
    return text;
  }
}
