"""`dkgp serve`, `token` and the commands that ask a service: what they print, their exit codes, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from dkgp.cluster import ClusterOptions
from dkgp.service import serve as serve_module
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.settings import ServiceSettings
from dkgp.service.web.app import Service, create_app
from tests.cli.invoke import document_of, files_below, refused, run, run_json
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
    assert "largest residual 3.2e-03" in lines[2]
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
    assert "largest residual" in done  # the training's own table
    assert "rounds, column passes" not in done
    assert "rounds, column passes" in run("status", DONE, "--verbose").stdout
    running = run("status", RUNNING).stdout
    assert "attempt" in running
    assert "largest residual 3.2e-03, tolerance 1e-04" in running
    failed = run("status", FAILED).stdout
    assert "InputError: no such [/] store" in failed
    assert "\x1b" not in failed
    assert re.search(r"--seed +1", failed)


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
        "train: largest residual 3.2e-03, tolerance 1e-04, about 2 min 10 s left",
        "predict: 50 of 200 (25 %) samples",
        "tune: 7 evaluations, best log likelihood -27.12",
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
    assert "largest residual" not in shown
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


TOKEN = "a-token-that-is-long-enough"


class Idle:
    """A supervisor that runs nothing."""

    is_alive = True

    def wake(self) -> None:
        pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the inputs of the jobs that are submitted."""
    folder = tmp_path / "root"
    for name in ("d.zarr", "other.zarr"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture
def queue(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobQueue]:
    """The queue of a service that answers; the environment says where."""
    queue = JobQueue(tmp_path / "queue")
    settings = ServiceSettings(folder=str(tmp_path / "queue"), token=TOKEN, roots=(str(root),), port=0)
    config = uvicorn.Config(create_app(Service(settings, queue, Idle())), port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv("DKGP_SERVICE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("DKGP_SERVICE_TOKEN", TOKEN)
    monkeypatch.chdir(root)
    try:
        yield queue
    finally:
        server.should_exit = True
        thread.join()
        queue.close()


def test_a_job_from_submission_to_resumption(queue: JobQueue, root: Path) -> None:
    job_id = run("submit", "--name", "n", "tune", "d.zarr", "--out", "h.json", "--subset", 50).stdout.strip()
    record = queue.get(job_id)
    assert record.options == {"dataset": f"{root}/d.zarr", "out": f"{root}/h.json", "subset": 50}
    assert run_json("status", job_id[:5]) == record.to_json()
    listed = run_json("jobs", "--state", "queued")
    assert [found["id"] for found in listed["jobs"]] == [job_id]
    assert listed["counts"]["queued"] == 1
    assert job_id in run("jobs").stdout
    assert run("cancel", job_id).stdout == f"{job_id} cancelled\n"
    assert run("cancel", job_id).exit_code == 3
    assert run("wait", job_id).exit_code == 130
    events = [json.loads(line) for line in run("logs", "-f", job_id, "--json").stdout.splitlines()]
    assert [event["state"] for event in events] == ["queued", "cancelled"]
    assert run("logs", job_id).stdout.splitlines()[-1].endswith("-- cancelled")
    assert run_json("resume", job_id)["state"] == "queued"


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("tune", "/etc/d.zarr", "--out", "h.json"), 3, "this service may not"),
        (("tune", "d.zarr", "--out", "../h.json"), 3, "this service may not"),
        (("tune", "d.zarr", "--out", "h.json", "--restarts", "0"), 3, "restarts"),
        (("train", "d.zarr", "--out", "m", "--hyper", "h", "--solver", "bcdc", "--exhaustive"), 2, "--exhaustive"),
    ],
)
def test_what_the_service_refuses(queue: JobQueue, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = run("submit", *arguments)
    assert result.exit_code == exit_code, result.stderr
    assert said in result.stderr
    assert sum(queue.counts().values()) == 0


def test_two_jobs_that_write_one_output(queue: JobQueue) -> None:
    assert run("submit", "tune", "d.zarr", "--out", "h.json").exit_code == 0
    result = run("submit", "--json", "tune", "other.zarr", "--out", "h.json")
    assert document_of(result, 3)["error"]["type"] == "JobStateError"


def test_a_wrong_token_and_none(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("another-token-of-some-length", None):
        if token is None:
            monkeypatch.delenv("DKGP_SERVICE_TOKEN")
        else:
            monkeypatch.setenv("DKGP_SERVICE_TOKEN", token)
        for command in (("jobs",), ("status", "0123456789ab"), ("submit", "tune", "d", "--out", "h")):
            result = run(*command, "--json")
            assert document_of(result, 2)["error"]["type"] == "UsageError"
            assert "--token-file" in result.stderr
    assert sum(queue.counts().values()) == 0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServiceSettings]:
    """The settings with which a service would have been started."""
    found: list[ServiceSettings] = []

    def run_serve(settings: ServiceSettings, reporter: Any, *, on_listening: Callable[[Any], None]) -> dict[str, Any]:
        found.append(settings)
        reporter.note("dkgp serve: http://127.0.0.1:1")
        on_listening({"command": "serve", "url": "http://127.0.0.1:1"})
        return {}

    monkeypatch.setattr(serve_module, "run_serve", run_serve)
    monkeypatch.delenv("DKGP_SERVICE_TOKEN", raising=False)
    return found


def test_the_defaults_are_safe(served: list[ServiceSettings], tmp_path: Path) -> None:
    result = run("serve", "--folder", tmp_path / "queue")
    assert result.exit_code == 0, result.stderr
    (settings,) = served
    assert (settings.host, settings.port, settings.token, settings.concurrent_jobs) == ("127.0.0.1", 8780, None, 1)
    assert settings.no_token is False
    assert settings.roots == (str(Path.cwd()),)
    # Nothing is without a limit.
    assert (settings.job_deadline_seconds, settings.keep_seconds) == (7 * 86_400.0, 90 * 86_400.0)
    assert (settings.max_folder_bytes, settings.max_queued_per_token) == (10 * 2**30, 1000)
    assert "http://127.0.0.1:1" in result.stderr
    assert result.stdout == ""


def test_every_option_arrives(served: list[ServiceSettings], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    address = ("--host", "0.0.0.0", "--port", 0, "--token-file", token, "--https-cert", "c.pem", "--https-key", "k.pem")
    roots = ("--root", tmp_path, "--root", "s3://bucket/runs")
    limits = ("--concurrent-jobs", 3, "--job-deadline", 60, "--keep-days", 0.5, "--max-queued", 7)
    more = (
        "--concurrent-jobs-per-token",
        2,
        "--job-memory",
        "2GiB",
        "--max-folder",
        "1MiB",
        "--max-queued-per-token",
        5,
    )
    cluster = ("--cluster", "processes", "--workers", 2)
    result = run("serve", "--folder", tmp_path / "queue", *address, *roots, *limits, *more, *cluster, "--json")
    assert served == [
        ServiceSettings(
            folder=str(tmp_path / "queue"),
            host="0.0.0.0",
            port=0,
            token=TOKEN,
            https_cert="c.pem",
            https_key="k.pem",
            roots=(str(tmp_path), "s3://bucket/runs"),
            concurrent_jobs=3,
            concurrent_jobs_per_token=2,
            job_memory_bytes=2 * 2**30,
            max_folder_bytes=2**20,
            max_queued_per_token=5,
            job_deadline_seconds=60.0,
            keep_seconds=43_200.0,
            max_queued=7,
            cluster=ClusterOptions(kind="processes", workers=2),
        )
    ], result.stderr
    assert json.loads(result.stdout) == {"command": "serve", "url": "http://127.0.0.1:1"}


def test_the_token_may_come_from_the_environment(
    served: list[ServiceSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DKGP_SERVICE_TOKEN", TOKEN)
    assert run("serve", "--folder", tmp_path / "queue", "--host", "0.0.0.0", "--https").exit_code == 0
    assert served[0].token == TOKEN


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (("--host", "0.0.0.0", "--no-token"), 2, "everyone who can reach"),
        (("--host", "0.0.0.0"), 2, "--plain-http"),
        (("--https", "--plain-http"), 2, "leave one of them out"),
        (("--token-file", "/does/not/exist"), 3, "/does/not/exist"),
        (("--root", "/does/not/exist"), 3, "/does/not/exist"),
        (("--port", "70000"), 2, "70000"),
        (("--concurrent-jobs", "0"), 2, "--concurrent-jobs"),
        (("--job-deadline", "0"), 2, "--job-deadline"),
        (("--keep-days", "-1"), 2, "--keep-days"),
        (("--job-memory", "0"), 2, "job's memory must be at least 1"),
        (("--max-folder", "much"), 2, "--max-folder"),
        (("--max-queued-per-token", "0"), 2, "--max-queued-per-token"),
        (("--workers", "0"), 2, "workers"),
    ],
)
def test_what_cannot_be_served_is_refused(
    served: list[ServiceSettings], tmp_path: Path, options: tuple[str, ...], exit_code: int, said: str
) -> None:
    result = run("serve", "--folder", tmp_path / "queue", *options)
    assert result.exit_code == exit_code
    assert said in result.stderr
    assert not served
    assert files_below(tmp_path) == {}


def test_a_folder_is_needed() -> None:
    assert run("serve").exit_code == 2


def test_without_the_extra_serve_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve_module, "find_spec", lambda name: None)
    refused(run("serve", "--folder", tmp_path / "queue"), "pip install 'dkgp[service]'", exit_code=2)
    assert not list(tmp_path.iterdir())


def test_a_token_is_printed_once_alone_and_written_down(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    result = run("token", "add", "alice", "--scope", "submit", "--folder", folder)
    assert result.exit_code == 0, result.stderr
    secret = result.stdout.strip()
    assert secret.startswith("dkgp_")
    assert "shown only once" in result.stderr
    assert folder.stat().st_mode & 0o777 == 0o700
    listed = run_json("token", "list", "--folder", folder)
    assert [(known["name"], known["scope"], known["expires"]) for known in listed["tokens"]] == [
        ("alice", "submit", None)
    ]
    assert "alice" in run("token", "list", "--folder", folder).stdout
    assert run("token", "revoke", "alice", "--folder", folder).stdout == "alice revoked\n"
    assert run("token", "list", "--folder", folder).stdout == "there are no tokens except the service's own\n"
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["what"], line["token"]) for line in lines] == [("token add", "alice"), ("token revoke", "alice")]
    assert all(secret not in Path(path).read_text() for path in files_below(folder))


def test_what_is_refused_leaves_the_tokens_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    run("token", "add", "alice", "--scope", "read", "--days", "7", "--folder", folder)
    before = files_below(folder)
    refused(run("token", "add", "alice", "--scope", "admin", "--folder", folder), "revoke it first", exit_code=2)
    refused(run("token", "add", "a b", "--scope", "read", "--folder", folder), "1 to 64 letters", exit_code=2)
    refused(run("token", "add", "bob", "--scope", "root", "--folder", folder), "root", exit_code=2)
    refused(run("token", "revoke", "bob", "--folder", folder), "there are: alice")
    assert files_below(folder) == before
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    refused(run("token", "add", "bob", "--scope", "read", "--folder", tmp_path / "open"), "other users can write")
