"""A real Celery application with real workers: nothing is lost, whatever happens to a worker."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from kombu import Connection

from celery import chain, chord, group

HERE = Path(__file__).parent
PREFIX = f"conf.celery.{uuid.uuid4().hex[:10]}"
os.environ["SHOP_PREFIX"] = PREFIX

import shop  # noqa: E402


@contextmanager
def worker(tmp_path, *options, **environment):
    """A worker process of one child, ready to take tasks."""
    name = f"worker-{uuid.uuid4().hex[:8]}"
    log = tmp_path / f"{name}.log"
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-n", f"{name}@%h", "-c", "1"]
    command += ["--loglevel=INFO", "--without-gossip", "--without-mingle", *options]
    with open(log, "w") as out:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_until(lambda: " ready." in log.read_text() or process.poll() is not None, 30)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until(check, timeout=20):
    """Waits until this is true."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind():
    yield
    with Connection(shop.URL) as connection:
        channel = connection.default_channel
        for queue in shop.app.conf.task_queues:
            channel.queue_delete(queue.name)
        channel.exchange_delete(f"{PREFIX}.orders")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A worker for the tests that do no harm to it."""
    with worker(tmp_path_factory.mktemp("worker"), "-Q", f"{PREFIX}.orders") as process:
        yield process


def test_a_task_gives_its_result_over_amqp(running):
    assert shop.total.delay([1, 2, 3]).get(timeout=20) == 6


def test_many_tasks_at_once(running):
    results = group(shop.total.s([number, 1]) for number in range(50)).apply_async()
    assert results.get(timeout=30) == [number + 1 for number in range(50)]


def test_a_failure_is_told(running):
    with pytest.raises(ValueError, match="out of stock"):
        shop.fail.delay("out of stock").get(timeout=20)


def test_retries_with_a_countdown(running, tmp_path):
    ledger = tmp_path / "ledger"
    assert shop.charge.delay(str(ledger), 2).get(timeout=20) == 2
    attempts = [line.split() for line in ledger.read_text().splitlines()]
    assert [attempt for attempt, _ in attempts] == ["0", "1", "2"]
    times = [float(when) for _, when in attempts]
    assert all(later - earlier > 0.45 for earlier, later in zip(times, times[1:]))


def test_a_task_with_a_countdown_waits(running):
    began = time.time()
    assert shop.stamp.apply_async(countdown=1).get(timeout=20) - began > 0.95


def test_a_task_with_an_eta_waits_and_others_overtake_it(running):
    # More tasks wait for their time than the worker prefetches: it has to raise its prefetch for each.
    eta = datetime.now(timezone.utc) + timedelta(seconds=2)
    later = [shop.stamp.apply_async(eta=eta) for _ in range(8)]
    now = shop.stamp.delay().get(timeout=20)
    assert now < eta.timestamp()
    assert all(result.get(timeout=20) >= eta.timestamp() - 0.05 for result in later)


def test_a_chain(running):
    assert chain(shop.total.s([1, 2]), shop.total.si([4, 5])).apply_async().get(timeout=20) == 9


def test_a_worker_answers_remote_control(running):
    wait_until(
        lambda: any(
            "pong" in list(answer.values())[0].get("ok", "") for answer in shop.app.control.ping(timeout=2)
        )
    )


def test_priorities(tmp_path):
    ledger = tmp_path / "ledger"
    options = {"queue": f"{PREFIX}.urgent", "routing_key": "urgent"}
    shop.app.amqp.queues[f"{PREFIX}.urgent"].bind(shop.app.connection().default_channel).declare()
    for number, priority in enumerate([1, 5, 0, 9, 5]):
        shop.note.apply_async((str(ledger), f"{priority}-{number}"), priority=priority, **options)
    with worker(tmp_path, "-Q", f"{PREFIX}.urgent", SHOP_PREFETCH="1"):
        wait_until(lambda: ledger.exists() and len(ledger.read_text().split()) == 5)
    assert ledger.read_text().split() == ["9-3", "5-1", "5-4", "1-0", "0-2"]


def test_a_chord_with_a_backend_that_can_count(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    queue = f"{PREFIX}.chord"
    script = (
        "import shop; from celery import chord;"
        "print(chord(shop.total.s([n, n]) for n in range(10))(shop.total.s()).get(timeout=30))"
    )
    environment = {"RESULTS_DIR": str(results), "SHOP_PREFIX": queue}
    try:
        with worker(tmp_path, "-Q", f"{queue}.orders", **environment):
            output = subprocess.run(
                [sys.executable, "-c", script],
                cwd=HERE,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
                capture_output=True,
                text=True,
                timeout=45,
            )
        assert output.stdout.strip() == "90", output.stderr
    finally:
        with Connection(shop.URL) as connection:
            for name in (f"{queue}.orders", f"{queue}.urgent", f"{queue}.shipping"):
                connection.default_channel.queue_delete(name)
            connection.default_channel.exchange_delete(f"{queue}.orders")


def test_rpc_results_refuse_a_chord():
    # What Celery says of itself, so that nobody takes it for a fault of the broker.
    with pytest.raises(NotImplementedError):
        chord([shop.total.s([1])])(shop.total.s())


@pytest.mark.timeout(100)
def test_nothing_is_lost_when_workers_are_killed(tmp_path):
    done = tmp_path / "done"
    done.mkdir()
    queue = f"{PREFIX}.shipping"
    count = 40
    for number in range(count):
        shop.ship.apply_async((str(done), number, 0.05), queue=queue, routing_key="shipping")
    for _ in range(2):
        enough = len(list(done.iterdir())) + 5
        with worker(tmp_path, "-Q", queue) as process:
            wait_until(lambda: len(list(done.iterdir())) >= enough)
            # The worker and its child at once: neither can hand anything back.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert len(list(done.iterdir())) < count
    with worker(tmp_path, "-Q", queue):
        wait_until(lambda: len(list(done.iterdir())) == count, 30)
        with Connection(shop.URL) as connection:
            wait_until(
                lambda: connection.default_channel.queue_declare(queue, passive=True).message_count == 0
            )
    assert sorted(int(path.name) for path in done.iterdir()) == list(range(count))
