"""A small Celery application: a shop that takes orders.

Results come back over AMQP (`rpc://`). A chord needs a backend that can count its members, which `rpc://`
cannot, so the chord runs on an application of its own, with a backend of files (`RESULTS_DIR`): its tasks and
messages still go through the broker.
"""

import os
import time
from pathlib import Path

from kombu import Exchange, Queue

from celery import Celery

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
PREFIX = os.environ.get("SHOP_PREFIX", "shop")
RESULTS = os.environ.get("RESULTS_DIR")

app = Celery("shop", broker=URL, backend=f"file://{RESULTS}" if RESULTS else "rpc://")
app.conf.update(
    task_default_queue=f"{PREFIX}.orders",
    task_queues=[
        Queue(f"{PREFIX}.orders", Exchange(f"{PREFIX}.orders", "direct"), routing_key="orders"),
        Queue(f"{PREFIX}.shipping", Exchange(f"{PREFIX}.orders", "direct"), routing_key="shipping"),
        Queue(
            f"{PREFIX}.urgent",
            Exchange(f"{PREFIX}.orders", "direct"),
            routing_key="urgent",
            queue_arguments={"x-max-priority": 10},
        ),
    ],
    task_default_exchange=f"{PREFIX}.orders",
    task_default_routing_key="orders",
    task_publish_retry=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=int(os.environ.get("SHOP_PREFETCH", "4")),
    result_expires=60,
    worker_enable_remote_control=True,
)


@app.task(name="shop.total")
def total(prices):
    """Adds up."""
    return sum(prices)


@app.task(name="shop.fail")
def fail(why):
    """Always fails."""
    raise ValueError(why)


@app.task(name="shop.charge", bind=True, max_retries=5)
def charge(self, ledger, succeed_at):
    """Fails until the attempt of this number, trying again after a countdown."""
    with open(ledger, "a") as file:
        file.write(f"{self.request.retries} {time.time()}\n")
    if self.request.retries < succeed_at:
        raise self.retry(countdown=0.5)
    return self.request.retries


@app.task(name="shop.stamp")
def stamp():
    """When it ran."""
    return time.time()


@app.task(name="shop.note")
def note(ledger, text):
    """Writes a line."""
    with open(ledger, "a") as file:
        file.write(f"{text}\n")


@app.task(name="shop.ship", acks_late=True, reject_on_worker_lost=True)
def ship(folder, number, seconds):
    """Takes a while, then says that it is done; may be done twice, must not be lost."""
    time.sleep(seconds)
    Path(folder, str(number)).touch()
    return number
