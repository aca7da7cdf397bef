"""All that a Python program needs to use job queues: HTTP and JSON from the standard library.

Nothing here is special to this example; copy it. `nexo.ts` is the same for Node.
"""

import base64
import json
import urllib.error
import urllib.request
from urllib.parse import quote


class Refused(Exception):
    """The broker said no. `status` is the HTTP status, the text is its reason."""

    def __init__(self, status, reason):
        super().__init__(f"{status}: {reason}")
        self.status = status


class Nexo:
    """A broker's management port, as one user, in one virtual host."""

    def __init__(self, url, user="guest", password="guest", vhost="/"):
        self.url, self.vhost = url.rstrip("/"), quote(vhost, safe="")
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.headers = {"authorization": f"Basic {login}", "content-type": "application/json"}

    def call(self, method, path, body=None):
        """One request. Gives back the answer's JSON, or None if it has none."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)
        try:
            # Longer than any wait that is asked for below: the broker answers first.
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                reason = json.loads(text)["reason"]
            except (ValueError, KeyError, TypeError):
                reason = text.decode(errors="replace")
            raise Refused(error.code, reason) from None
        return json.loads(text) if text else None

    # Setting up. All of it can be repeated: what is there gets the settings that are given.

    def put_budget(self, name, **settings):
        self.call("PUT", f"/api/jobs/budgets/{self.vhost}/{quote(name, safe='')}", settings)

    def put_queue(self, name, **settings):
        self.call("PUT", self._queue(name), settings)

    def put_schedule(self, name, **settings):
        self.call("PUT", self._schedule(name), settings)

    def run_schedule(self, name):
        """Has a schedule do now what it does at its times."""
        self.call("POST", f"{self._schedule(name)}/run")

    # Asking.

    def ask(self, queue, **request):
        """Asks for work. The same waiter may ask again: it is still one waiter, with one answer."""
        return self.call("POST", f"{self._queue(queue)}/ask", request)

    def answer(self, queue, waiter, wait_ms=0):
        """A waiter's answer, or None if there is none by then. Asking again gives the same answer again."""
        path = f"{self._queue(queue)}/answers/{quote(waiter, safe='')}?wait_ms={wait_ms}"
        return self.call("GET", path)["answer"]

    # Working.

    def take(self, queue, worker, wait_ms=0, max=1):
        """Jobs for a worker, most urgent first. Waits for one; nobody has to poll."""
        wanted = {"worker": worker, "wait_ms": wait_ms, "max": max}
        return self.call("POST", f"{self._queue(queue)}/take", wanted)["jobs"]

    def complete(self, receipt, result, **report):
        self.call("POST", f"/api/jobs/receipt/{receipt}/complete", {"result": result, **report})

    def fail(self, receipt, error, **report):
        """Says that it could not be done. Tells whether it is tried again."""
        return self.call("POST", f"/api/jobs/receipt/{receipt}/fail", {"error": error, **report})

    def give_back(self, receipt):
        """For a worker that has to stop: the job keeps its place, and the attempt does not count."""
        self.call("POST", f"/api/jobs/receipt/{receipt}/return", {})

    def report(self, budget, **report):
        """Passes on what the API has said of its tokens, apart from any job."""
        self.call("POST", f"/api/jobs/budgets/{self.vhost}/{quote(budget, safe='')}/report", report)

    # Looking.

    def queue(self, name):
        return self.call("GET", self._queue(name))

    def budget(self, name):
        return self.call("GET", f"/api/jobs/budgets/{self.vhost}/{quote(name, safe='')}")

    # Answers that come as messages: any queue of the broker will do, and any client of it can read them. This is RabbitMQ's
    # management API, which needs no library; a service that runs for long would consume over AMQP.

    def declare(self, queue):
        self.call("PUT", f"/api/queues/{self.vhost}/{quote(queue, safe='')}", {"durable": True})

    def get_messages(self, queue, count=100):
        """Takes messages out of a queue, each as the JSON in its body."""
        wanted = {"count": count, "ackmode": "ack_requeue_false", "encoding": "auto"}
        messages = self.call("POST", f"/api/queues/{self.vhost}/{quote(queue, safe='')}/get", wanted)
        return [json.loads(message["payload"]) for message in messages]

    def _queue(self, name):
        return f"/api/jobs/queues/{self.vhost}/{quote(name, safe='')}"

    def _schedule(self, name):
        return f"/api/nexo/schedules/{self.vhost}/{quote(name, safe='')}"
