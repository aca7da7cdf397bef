"""The automations whose client is "python" in automations.json: each asks again and again. `clients.ts` has those of Node.

    python3 clients.py BROKER_URL SECONDS

Some wait for the answer in a call, some have it come as a message into a queue. What is asked and answered is printed, a line of
JSON each, so that `run` can keep books. It ends when its standard input does: `run` closes that.
"""

import json
import sys
import threading
import time
from pathlib import Path

from nexo import Nexo

ANSWERS = "deals.answers.python"
# When each plan needs its answer.
DUE_IN_MS = {"business": 0, "pro": 5 * 60_000, "starter": 10 * 60_000, "free": 20 * 60_000}
PATIENCE = 20.0

printing = threading.Lock()


def tell(**what):
    with printing:
        print(json.dumps({"client": "python", **what}), flush=True)


def request_of(automation, number):
    """What an automation asks for: the work, and who waits for it. Same work means same key."""
    if "category" in automation:
        kind, about = "search", automation["category"]
        payload = {"category": automation["category"]}
    else:
        kind, about = automation["type"], ",".join(automation["products"])
        payload = {"products": automation["products"]}
    waiter = {
        "id": f"{automation['name']}-{number}",
        "user": automation["name"].split("-")[0],
        "class": automation["plan"],
        "due_in_ms": DUE_IN_MS[automation["plan"]],
        "filter": automation["filter"],
    }
    return {"type": kind, "key": f"{kind}:{about}", "payload": payload, "waiter": waiter}


def automate(nexo, automation, until):
    """Asks, gets its answer, rests, and asks again."""
    number = 0
    while time.monotonic() < until:
        number += 1
        request = request_of(automation, number)
        waiter = request["waiter"]["id"]
        tell(asked=waiter, plan=automation["plan"], by=automation["answer"], key=request["key"])
        if automation["answer"] == "queue":
            request["waiter"]["reply_to"] = ANSWERS
            nexo.ask("deals", **request)
        else:
            # One call asks and waits. If it was not long enough, the waiter is still there: wait again.
            answer = nexo.ask("deals", **request, wait_ms=10_000)["answer"]
            patience = time.monotonic() + PATIENCE
            while answer is None and time.monotonic() < patience:
                answer = nexo.answer("deals", waiter, wait_ms=10_000)
            if answer is not None:
                tell(answer=answer)
        time.sleep(max(0, min(automation["every_ms"] / 1000, until - time.monotonic())))


def read_answers(nexo, done):
    """Reads the queue of answers until all are done, and once more: a second answer would be found there."""
    while True:
        last = done.is_set()
        answers = nexo.get_messages(ANSWERS)
        for answer in answers:
            tell(answer=answer)
        if last and not answers:
            return
        time.sleep(0.2)


if __name__ == "__main__":
    broker, seconds = sys.argv[1], float(sys.argv[2])
    nexo, until, done = Nexo(broker), time.monotonic() + seconds, threading.Event()
    all_of_them = json.loads((Path(__file__).parent / "automations.json").read_text())
    own = [automation for automation in all_of_them if automation["client"] == "python"]
    threads = [threading.Thread(target=automate, args=(nexo, automation, until)) for automation in own]
    reader = threading.Thread(target=read_answers, args=(nexo, done))
    for thread in [*threads, reader]:
        thread.start()
    for thread in threads:
        thread.join()
    tell(asked_all=True)
    sys.stdin.read()
    done.set()
    reader.join()
