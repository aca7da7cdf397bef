"""examples/deals runs as its README says, for a shorter time, and notices what it is there to notice.

`NEXO_BIN` is the broker. Node must be installed: half of the clients and workers are its.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEALS = Path(__file__).resolve().parents[3] / "examples" / "deals"

sys.path.insert(0, str(DEALS))
from books import Books  # noqa: E402

# The example reads it, and would build the broker without it.
assert "NEXO_BIN" in os.environ, "NEXO_BIN names the program to test"


def test_every_waiter_gets_one_answer_and_a_search_is_done_once_for_many():
    ran = subprocess.run([DEALS / "run", "--seconds", "9", "--json"], capture_output=True, text=True, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert summary["faults"] == []
    assert summary["answers"] == summary["requests"] >= 18, summary
    assert 0 < summary["searches_done"] < summary["searches_asked"], summary
    assert summary["joined"] + summary["cache_hits"] > 0, summary
    assert summary["tokens_used"] == summary["api"]["sold"] > 0, summary
    assert set(summary["by"]) == {"node, call", "node, queue", "python, call", "python, queue"}, summary
    # There is an automation for a category that does not exist.
    assert summary["statuses"]["failed"] > 0 and summary["statuses"]["done"] > 0, summary


def test_it_leaves_nothing_behind_when_it_is_stopped(tmp_path):
    ran = subprocess.Popen(
        [DEALS / "run", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert b"pending" in ran.stdout.readline()
    assert list(tmp_path.iterdir()), "the broker's data are there"
    ran.send_signal(signal.SIGTERM)
    _, said = ran.communicate(timeout=30)
    assert ran.returncode == 1 and b"stopped" in said, said
    assert list(tmp_path.iterdir()) == []
    # The broker has the directory among its arguments.
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if str(tmp_path).encode() in command]


@pytest.mark.parametrize("answered, fault", [(0, "a-1 got no answer"), (1, None), (2, "a-1 got 2 answers")])
def test_its_books_know_no_answer_and_two(answered, fault):
    books = Books()
    books.note({"asked": "a-1", "client": "python", "by": "call", "plan": "pro", "key": "search:toys"}, 0.0)
    for _ in range(answered):
        books.note({"answer": {"waiter": "a-1", "status": "done", "result": []}}, 1.0)
    assert books.wrong == ([fault] if fault else [])


def test_its_books_know_an_answer_that_nobody_asked_for():
    books = Books()
    books.note({"answer": {"waiter": "b-1", "status": "done", "result": []}}, 1.0)
    assert books.wrong == ["b-1 got an answer and had not asked"]
