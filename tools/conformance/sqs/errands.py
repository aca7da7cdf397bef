"""A small Celery application on SQS. Results are kept in files: what is judged is the broker."""

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from celery import Celery

ENDPOINT = urlsplit(os.environ.get("SQS_URL", "http://127.0.0.1:9324"))
PREFIX = os.environ.get("ERRANDS_PREFIX", "errands-")

# Without TLS the transport says http only if it is told the host and port this way.
app = Celery(
    "errands",
    broker=f"sqs://key:secret@{ENDPOINT.netloc}",
    backend=f"file://{os.environ.get('RESULTS_DIR', '/tmp')}",
)
app.conf.update(
    task_default_queue="errands",
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "region": "eu-west-1",
        "is_secure": False,
        "queue_name_prefix": PREFIX,
        "visibility_timeout": 3,
        "polling_interval": 0.1,
        "wait_time_seconds": 2,
    },
    worker_enable_remote_control=False,
)


@app.task(name="errands.add")
def add(a, b):
    """Adds."""
    return a + b


@app.task(name="errands.try_hard", bind=True, max_retries=5)
def try_hard(self, succeed_at):
    """Fails until the attempt of this number."""
    if self.request.retries < succeed_at:
        raise self.retry(countdown=0.5)
    return self.request.retries


@app.task(name="errands.stamp")
def stamp():
    """When it ran."""
    return time.time()


@app.task(name="errands.slow", acks_late=True, reject_on_worker_lost=True)
def slow(folder, number, seconds):
    """Takes a while, then says that it is done; may be done twice, must not be lost."""
    time.sleep(seconds)
    Path(folder, str(number)).touch()
    return number
