"""`dkgp jobs`, `status`, `logs`, `cancel`, `resume`, `wait`: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoke import refused, run, run_json
from tests.cli.processes import ENVIRONMENT, PROGRAM
from tests.cli.service.fake_service import FakeService, job_record

DONE, RUNNING, FAILED = "aaaa00000001", "bbbb00000002", "aabb00000003"
SOLVE = {
    "kind": "progress",
    "label": "train",
    "iteration": 12,
    "column_passes": 1.5,
    "gradient_inf_norm": 0.0032,
    "tolerance": 1e-4,
    "seconds_left": 130.0,
}
EVENTS = (
    {"kind": "state", "state": "running", "attempt": 2},
    {"kind": "note", "message": "a note [/bold] \x1b[31m"},
    {"kind": "warning", "message": "take care"},
    SOLVE,
    {"kind": "progress", "label": "predict", "done": 50, "total": 200, "unit": "samples", "phase": "samples"},
    {"kind": "progress", "label": "tune", "evaluation": 7, "best_log_marginal_likelihood": -27.1234, "done": 7},
    {"kind": "progress", "label": "more", "noise_variance": 0.0123456},
    {"kind": "log", "message": "a line of standard error"},
    {"kind": "error", "error": {"type": "InputError", "message": "no such store", "exit_code": 3}},
    {"kind": "document", "document": {"command": "train"}},
    {"kind": "a kind of tomorrow"},
    {"kind": "state", "state": "failed"},
)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, pipeline: dict[str, Any]) -> FakeService:
    monkeypatch.delenv("DKGP_SERVICE_TOKEN", raising=False)
    monkeypatch.delenv("DKGP_SERVICE_URL", raising=False)
    service = FakeService(monkeypatch)
    times = {"started": "2026-03-04T05:06:10.000+00:00", "finished": "2026-03-04T05:07:30.500+00:00"}
    service.add(job_record(DONE, "done", exit_code=0, document=pipeline["train"], name="nightly", **times))
    service.add(
        job_record(RUNNING, "running", progress={"sequence": 3, **SOLVE}, attempt=2), {"kind": "note", "message": "x"}
    )
    error = {"type": "InputError", "message": "no such [/] store\nlook \x1belsewhere", "exit_code": 3}
    service.add(job_record(FAILED, "failed", exit_code=3, error=error, options={"solver": {"seed": 1}}), *EVENTS)
    return service


def test_jobs_are_a_table_with_the_newest_first(service: FakeService) -> None:
    shown = run("jobs").stdout
    lines = shown.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [FAILED, RUNNING, DONE]
    assert "nightly" in lines[3]
    assert "1 min 20 s" in lines[3]
    assert "largest error 3.2e-03" in lines[2]
    assert "round 12, 1.50 passes" in run("jobs", "--verbose").stdout
    assert "no such [/] store" in lines[1]
    assert "look elsewhere" not in shown
    assert "1 done, 1 running, 1 failed" in shown


def test_jobs_of_some_states(service: FakeService) -> None:
    found = run_json("jobs", "--state", "running", "--state", "failed", "--limit", 1)
    assert [record["id"] for record in found["jobs"]] == [FAILED]
    assert service.requests[-1].url.params.get_list("state") == ["running", "failed"]
    assert run("jobs", "--state", "sleeping").exit_code == 2


def test_no_jobs_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeService(monkeypatch)
    assert "no jobs" in run("jobs").stdout


def test_status_shows_progress_result_or_error(service: FakeService) -> None:
    assert run_json("status", DONE) == service.jobs[DONE]
    done = run("status", DONE).stdout
    assert "1 min 20 s" in done
    assert "largest error" in done  # the training's own table
    assert "rounds, column passes" not in done
    assert "rounds, column passes" in run("status", DONE, "--verbose").stdout
    running = run("status", RUNNING).stdout
    assert "attempt" in running
    assert "largest error 3.2e-03, to come down to 1e-04" in running
    failed = run("status", FAILED).stdout
    assert "InputError: no such [/] store" in failed
    assert "\x1b" not in failed
    assert "seed 1" in failed


def test_the_first_digits_of_an_id_are_enough(service: FakeService) -> None:
    assert run_json("status", "aaa")["id"] == DONE
    refused(run("status", "aa"), DONE, FAILED, exit_code=2)
    assert run("status", "ffff").exit_code == 3
    assert run("status", "ffffffffffff").exit_code == 3
    assert run("status", "nonsense").exit_code == 2


def test_logs_are_lines(service: FakeService) -> None:
    lines = [line.split(" ", 1)[1] for line in run("logs", FAILED).stdout.splitlines()]
    assert lines == [
        "-- running, attempt 2",
        "a note [/bold] \N{REPLACEMENT CHARACTER}[31m",
        "warning: take care",
        "train: largest error 3.2e-03, to come down to 1e-04, about 2 min 10 s left",
        "predict: samples: 50 of 200 (25 %) samples",
        "tune: 7 tries, best log likelihood -27.12",
        "more: noise variance 0.01235",
        "a line of standard error",
        "error: InputError: no such store",
        "-- failed",
    ]


def test_verbose_logs_have_the_figures_of_solvers(service: FakeService) -> None:
    shown = run("logs", "-v", FAILED).stdout
    assert "train: round 12, 1.50 passes, max|g| 3.20e-03 -> 1e-04, about 2 min 10 s left" in shown
    refused(run("logs", "-q", "-v", FAILED), "Got both --quiet and --verbose", exit_code=2)


def test_quiet_logs_have_no_progress(service: FakeService) -> None:
    shown = run("logs", "-q", FAILED).stdout
    assert "largest error" not in shown
    assert "warning: take care" in shown


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_logs_as_json_are_the_events(service: FakeService, follow: tuple[str, ...]) -> None:
    result = run("logs", *follow, FAILED, "--json")
    assert result.exit_code == 0
    assert [json.loads(line) for line in result.stdout.splitlines()] == service.events[FAILED]


READ_BY_NOBODY = """
from dkgp.cli.running import Output
from dkgp.cli.service import print_events

class Client:
    def events(self, job_id):
        for number in range(10_000):
            yield {"sequence": number, "time": "2026-03-04T05:06:07+00:00", "kind": "note", "message": "m" * 100}

print_events(Client(), "0" * 12, Output(as_json=True, quiet=False, verbose=False, debug=False), follow=False)
"""


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As in `dkgp logs ID | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        code = [PROGRAM[0], "-c", READ_BY_NOBODY]
        ended = subprocess.run(code, env=ENVIRONMENT, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_logs_of_nobody(service: FakeService) -> None:
    assert run_json("logs", "ffffffffffff", exit_code=3)["error"]["type"] == "UnknownJobError"


def test_cancel_and_resume(service: FakeService) -> None:
    assert run("cancel", "bbbb").stdout == f"{RUNNING} being cancelled\n"
    assert run_json("resume", FAILED)["resume"] is True
    assert run("cancel", FAILED).stdout == f"{FAILED} cancelled\n"
    service.refusal = (409, "JobStateError", "job aaaa00000001 is done; nothing to cancel")
    refused(run("cancel", DONE), "nothing to cancel")


def test_wait_ends_like_the_job(service: FakeService) -> None:
    assert run("wait", DONE).exit_code == 0
    assert run("wait", FAILED).exit_code == 3
    service.add(job_record("cccc00000004", "not_converged", exit_code=4))
    service.add(job_record("dddd00000005", "cancelled"))
    result = run("wait", DONE, "cccc", FAILED, "dddd")
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        f"{DONE} done",
        "cccc00000004 not_converged",
        f"{FAILED} failed",
        "dddd00000005 cancelled",
    ]
    found = run_json("wait", "dddd", DONE, exit_code=130)
    assert [record["id"] for record in found["jobs"]] == ["dddd00000005", DONE]
    assert found["exit_code"] == 130


def test_wait_gives_up(service: FakeService) -> None:
    error = run_json("wait", RUNNING, "--timeout", 0, exit_code=124)["error"]
    assert error["type"] == "WaitTimeoutError"
    assert service.jobs[RUNNING]["state"] == "running"


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    refused(run("jobs"), "pip install 'dkgp[service]'", exit_code=2)
