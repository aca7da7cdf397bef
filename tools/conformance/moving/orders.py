"""A small Celery application. Results are kept in files: a queue for results belongs to its connection, and goes with it."""

import os
from pathlib import Path

from kombu import Exchange, Queue

from celery import Celery

PREFIX = os.environ.get("ORDERS_PREFIX", "orders")

app = Celery("orders", broker=os.environ["AMQP_URL"], backend=f"file://{os.environ.get('RESULTS_DIR', '/tmp')}")
app.conf.update(
    task_default_queue=PREFIX,
    task_queues=[Queue(PREFIX, Exchange(PREFIX, "direct"), routing_key="orders")],
    task_default_exchange=PREFIX,
    task_default_routing_key="orders",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_publish_retry=True,
    task_publish_retry_policy={"max_retries": 60, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"confirm_publish": True},
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_enable_remote_control=False,
)


@app.task(name="orders.ship")
def ship(folder, number):
    """Says that it was done; may be done twice, must not be lost."""
    Path(folder, str(number)).touch()
    return number
