// @ts-check
// All that a Node program needs to use job queues: fetch and JSON. Types are in comments, so that it runs without a build;
// an editor and `tsc --checkJs` check them. Nothing here is special to this example; copy it. `nexo.py` is the same for Python.

/**
 * @typedef {object} Waiter Who waits for a job, and where the answer goes.
 * @property {string} id
 * @property {string} [user]
 * @property {string} [class]
 * @property {number} [due_in_ms]
 * @property {string} [filter]
 * @property {string} [reply_to]
 */
/**
 * @typedef {object} Request What is asked for.
 * @property {string} key
 * @property {string} [type]
 * @property {unknown} [payload]
 * @property {number} [deadline_in_ms]
 * @property {Waiter} [waiter]
 * @property {number} [wait_ms]
 */
/**
 * @typedef {object} Answer What a waiter is told.
 * @property {string} waiter
 * @property {string} job
 * @property {string} type
 * @property {string} key
 * @property {'done' | 'failed' | 'cancelled' | 'expired'} status
 * @property {any} [result]
 * @property {string} [error]
 */
/** @typedef {{ job: string, state: string, answer?: Answer | null }} Asked */
/**
 * @typedef {object} Job A job in a worker's hands.
 * @property {string} receipt
 * @property {string} job
 * @property {number} attempt
 * @property {string} type
 * @property {string} key
 * @property {any} payload
 * @property {number} cost
 * @property {number} lease_until_ms
 */
/** @typedef {{ used?: number, tokens_left?: number, refill_in_ms?: number }} Report What the API said of its tokens. */

export class Refused extends Error {
  /** @param {number} status @param {string} reason */
  constructor(status, reason) {
    super(`${status}: ${reason}`);
    this.status = status;
  }
}

export class Nexo {
  #url;
  #vhost;
  #headers;

  /** @param {string} url */
  constructor(url, user = 'guest', password = 'guest', vhost = '/') {
    this.#url = url.replace(/\/$/, '');
    this.#vhost = encodeURIComponent(vhost);
    const login = Buffer.from(`${user}:${password}`).toString('base64');
    this.#headers = { authorization: `Basic ${login}`, 'content-type': 'application/json' };
  }

  /**
   * Asks for work. The same waiter may ask again: it is still one waiter, with one answer.
   * @param {string} queue @param {Request} request @returns {Promise<Asked>}
   */
  ask(queue, request) {
    return this.#call('POST', `${this.#queue(queue)}/ask`, request);
  }

  /**
   * A waiter's answer, or null if there is none by then. Asking again gives the same answer again.
   * @param {string} queue @param {string} waiter @param {number} waitMs @returns {Promise<Answer | null>}
   */
  async answer(queue, waiter, waitMs = 0) {
    const path = `${this.#queue(queue)}/answers/${encodeURIComponent(waiter)}?wait_ms=${waitMs}`;
    return (await this.#call('GET', path)).answer;
  }

  /**
   * Jobs for a worker, most urgent first. Waits for one; nobody has to poll.
   * @param {string} queue @param {string} worker @param {number} waitMs @returns {Promise<Job[]>}
   */
  async take(queue, worker, waitMs = 0, max = 1) {
    return (await this.#call('POST', `${this.#queue(queue)}/take`, { worker, wait_ms: waitMs, max })).jobs;
  }

  /** @param {string} receipt @param {unknown} result @param {Report} report */
  async complete(receipt, result, report = {}) {
    await this.#call('POST', `/api/jobs/receipt/${receipt}/complete`, { result, ...report });
  }

  /**
   * Says that it could not be done. Tells whether it is tried again.
   * @param {string} receipt @param {string} error @param {Report & { retry?: boolean }} report
   * @returns {Promise<{ retried: boolean, ready_ms?: number }>}
   */
  fail(receipt, error, report = {}) {
    return this.#call('POST', `/api/jobs/receipt/${receipt}/fail`, { error, ...report });
  }

  /**
   * For a worker that has to stop: the job keeps its place, and the attempt does not count.
   * @param {string} receipt
   */
  async giveBack(receipt) {
    await this.#call('POST', `/api/jobs/receipt/${receipt}/return`, {});
  }

  /**
   * Passes on what the API has said of its tokens, apart from any job.
   * @param {string} budget @param {Report} report
   */
  async report(budget, report) {
    await this.#call('POST', `/api/jobs/budgets/${this.#vhost}/${encodeURIComponent(budget)}/report`, report);
  }

  /**
   * Takes messages out of a queue, each as the JSON in its body.
   * @param {string} queue @returns {Promise<Answer[]>}
   */
  async getMessages(queue, count = 100) {
    const wanted = { count, ackmode: 'ack_requeue_false', encoding: 'auto' };
    const path = `/api/queues/${this.#vhost}/${encodeURIComponent(queue)}/get`;
    /** @type {{ payload: string }[]} */
    const messages = await this.#call('POST', path, wanted);
    return messages.map((message) => JSON.parse(message.payload));
  }

  /** @param {string} name */
  #queue(name) {
    return `/api/jobs/queues/${this.#vhost}/${encodeURIComponent(name)}`;
  }

  /** @param {string} method @param {string} path @param {unknown} [body] @returns {Promise<any>} */
  async #call(method, path, body) {
    const answer = await fetch(this.#url + path, {
      method,
      headers: this.#headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) {
      let reason = text;
      try {
        reason = JSON.parse(text).reason;
      } catch {
        // Not from the broker, or not JSON: as it is.
      }
      throw new Refused(answer.status, reason);
    }
    return text === '' ? null : JSON.parse(text);
  }
}
