"""A worker: takes jobs, asks the API, and tells the broker what came of it. `worker.ts` is the same for Node.

    python3 worker.py BROKER_URL API_URL NAME

The broker hands out a job only when the budget can pay for it, so there is no counting of tokens here. What is left to do is
to pass on what the API says of its own count. The worker ends when its standard input does, after the job in its hands.
"""

import json
import sys
import threading
import urllib.error
import urllib.request
from urllib.parse import quote

from nexo import Nexo, Refused

SIDE_BY_SIDE = 2


def call_api(api, job):
    """What the API answers to a job: its status and its JSON."""
    payload = job["payload"] or {}
    if job["type"] == "search":
        path = f"/search?category={quote(payload['category'])}"
    elif job["type"] == "refresh":
        path = f"/products?ids={','.join(payload['products'])}"
    elif job["type"] == "offers":
        path = f"/products?ids={','.join(payload['products'])}&offers=1"
    elif job["type"] == "count":
        path = "/tokens"
    else:
        return 404, {"error": f"this worker knows no jobs of type '{job['type']}'"}
    try:
        with urllib.request.urlopen(api + path, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError as error:
        return 503, {"error": f"the API does not answer: {error}"}


def report_of(said):
    """What the API says of its tokens, in the broker's words."""
    names = {"tokensUsed": "used", "tokensLeft": "tokens_left", "refillIn": "refill_in_ms"}
    return {ours: said[theirs] for theirs, ours in names.items() if theirs in said}


def work(nexo, api, job):
    status, said = call_api(api, job)
    report = report_of(said)
    if status == 200:
        result = said["items"] if "items" in said else {"tokens": said["tokensLeft"]}
        nexo.complete(job["receipt"], result, **report)
    elif status == 429:
        # Somebody else has used tokens. The budget learns of it, and the job keeps its place and its attempts.
        report.pop("used", None)
        nexo.report("tokens", **report)
        nexo.give_back(job["receipt"])
    else:
        # What will not get better is not tried again. All else is, later and later.
        nexo.fail(job["receipt"], said.get("error", f"status {status}"), retry=status >= 500, **report)


def go_on(nexo, api, name, stop):
    while not stop.is_set():
        for job in nexo.take("deals", name, wait_ms=1000):
            try:
                work(nexo, api, job)
            except Refused as refused:
                # It took so long that the job is another worker's by now, or it was cancelled. There is nothing to mend.
                if refused.status not in (404, 409):
                    raise


if __name__ == "__main__":
    broker, api, name = sys.argv[1:]
    stop = threading.Event()
    threads = [
        threading.Thread(target=go_on, args=(Nexo(broker), api, f"{name}-{number}", stop))
        for number in range(1, SIDE_BY_SIDE + 1)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
