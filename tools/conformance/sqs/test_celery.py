"""Celery on SQS, with real workers."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import PROTOCOL, make_client

pytestmark = pytest.mark.skipif(PROTOCOL != "json", reason="Celery's transport wants a newer botocore")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def errands(tmp_path_factory):
    os.environ["ERRANDS_PREFIX"] = f"conf-{uuid.uuid4().hex[:12]}-"
    os.environ["RESULTS_DIR"] = str(tmp_path_factory.mktemp("results"))
    import errands

    yield errands
    client = make_client()
    for url in client.list_queues(QueueNamePrefix=os.environ["ERRANDS_PREFIX"]).get("QueueUrls", []):
        client.delete_queue(QueueUrl=url)


@contextmanager
def worker(tmp_path):
    """A worker process of one child, ready to take tasks."""
    log = tmp_path / f"worker-{uuid.uuid4().hex[:8]}.log"
    command = [sys.executable, "-m", "celery", "-A", "errands", "worker", "-c", "1", "--loglevel=INFO"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with open(log, "w") as out:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while " ready." not in log.read_text():
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def running(errands, tmp_path_factory):
    with worker(tmp_path_factory.mktemp("worker")) as process:
        yield process


def test_tasks_are_done(errands, running):
    results = [errands.add.delay(number, 1) for number in range(20)]
    assert [result.get(timeout=60) for result in results] == list(range(1, 21))


def test_a_task_that_fails_is_tried_again(errands, running):
    assert errands.try_hard.delay(2).get(timeout=60) == 2


def test_a_task_with_a_countdown_waits_for_it(errands, running):
    began = time.time()
    assert errands.stamp.apply_async(countdown=2).get(timeout=60) - began >= 1.9


def test_tasks_of_a_killed_worker_are_done_by_another(errands, tmp_path):
    done = tmp_path / "done"
    done.mkdir()
    with worker(tmp_path) as first:
        for number in range(5):
            errands.slow.delay(str(done), number, 0.3)
        end = time.monotonic() + 60
        while not list(done.iterdir()):
            assert time.monotonic() < end, "the first worker does nothing"
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with worker(tmp_path):
        end = time.monotonic() + 60
        while len(list(done.iterdir())) < 5:
            assert time.monotonic() < end, "tasks were lost with the first worker"
            time.sleep(0.05)
