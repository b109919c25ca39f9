"""The service as it is run: it listens, says where, runs a job, and ends in good order."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import ExitCode, InputError, MissingExtraError
from dkgp.service.serve import listen, run_serve, url_of
from dkgp.service.settings import ServiceSettings
from tests.service.process import service_process, small_problem


def test_any_free_port_is_told() -> None:
    with listen("127.0.0.1", 0) as first, listen("localhost", 0) as second:
        port = first.getsockname()[1]
        assert port > 0
        assert url_of(first, "127.0.0.1") == f"http://127.0.0.1:{port}"
        assert url_of(second, "localhost") == f"http://localhost:{second.getsockname()[1]}"
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
def test_ipv6_addresses_stand_in_brackets() -> None:
    try:
        listener = listen("[::1]", 0)
    except InputError:
        pytest.skip("no IPv6 loopback on this machine")
    with listener:
        assert url_of(listener, "::1") == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        settings = ServiceSettings(str(tmp_path / "queue"), port=port, roots=(str(tmp_path),))
        with pytest.raises(InputError, match=f"127.0.0.1:{port}: something listens there.*--port") as caught:
            run_serve(settings, SilentReporter())
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert list(tmp_path.iterdir()) == []


def test_a_port_is_free_again_at_once() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            accepted, _ = first.accept()
            # The side that closes first waits for stray packets: without SO_REUSEADDR the port would be taken.
            accepted.close()
    with listen("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


def test_an_address_of_another_machine() -> None:
    with pytest.raises(InputError, match=r"192\.0\.2\.1:0: this machine has no such address"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "pydantic", "prometheus_client"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def find(name: str) -> Any:
        return None if name == package else object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr("dkgp.service.serve.find_spec", find)
    with pytest.raises(MissingExtraError, match=r"dkgp\[service\]"):
        run_serve(ServiceSettings(str(tmp_path / "queue"), roots=(str(tmp_path),)), SilentReporter())


def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    """Listens, says where, takes a job, and ends on SIGTERM with a follower still there."""
    with service_process(tmp_path / "queue", tmp_path) as service:
        assert service.started["command"] == "serve"
        assert service.started["pid"] == service.process.pid
        assert not service.url.endswith(":0")
        assert service.client.get("/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{service.url}/v1/jobs", trust_env=False).status_code == 401
        options = {name: str(tmp_path / name) for name in ("dataset", "hyper", "out")}
        job_id = service.client.post("/v1/jobs", json={"command": "train", "options": options}).json()["id"]
        with service.client.stream("GET", f"/v1/jobs/{job_id}/events?follow=true") as response:
            lines = response.iter_lines()
            assert json.loads(next(lines))["state"] == "queued"
            code, out, err = service.stop()
            list(lines)
    assert (code, out) == (0, ""), err
    assert f"dkgp serve: {service.url}" in err
    assert "stopping" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_from_start_to_end(tmp_path: Path) -> None:
    """Listens, trains, streams, takes another job, and ends on SIGTERM with a follower still there."""
    options = small_problem(tmp_path)
    with service_process(tmp_path / "queue", tmp_path) as service:
        assert service.started["command"] == "serve"
        assert not service.url.endswith(":0")
        client = service.client
        assert client.get("/healthz").json() == {"status": "ok"}
        job_id = client.post("/v1/jobs", json={"command": "train", "options": options}).json()["id"]
        with client.stream("GET", f"/v1/jobs/{job_id}/events?follow=true") as response:
            events = [json.loads(line) for line in response.iter_lines() if line]
        record = client.get(f"/v1/jobs/{job_id}").json()
        assert (record["state"], record["exit_code"], record["error"]) == ("done", 0, None)
        assert record["document"]["converged"] is True
        assert [event["sequence"] for event in events] == list(range(len(events)))
        assert [event["state"] for event in events if event["kind"] == "state"] == ["queued", "running", "done"]
        curve = client.get(f"/v1/jobs/{job_id}/curve").json()
        assert curve["tolerance"] == 1e-3
        assert curve["points"][-1][1] <= 1e-3
        finished = 'dkgp_jobs_finished_total{command="train",outcome="done"} 1.0'
        assert finished in client.get("/metrics").text
        assert 'dkgp_job_duration_seconds_count{command="train",outcome="done"} 1.0' in client.get("/metrics").text

        # One that would run for long, and somebody who follows it.
        long = {**options, "out": str(tmp_path / "long.zarr"), "solver": {"block_size": 50, "tolerance": 1e-12}}
        long_id = client.post("/v1/jobs", json={"command": "train", "options": long}).json()["id"]
        with client.stream("GET", f"/v1/jobs/{long_id}/events?follow=true") as response:
            lines = response.iter_lines()
            while "column_passes" not in next(lines):
                pass
            code, out, err = service.stop()
            list(lines)
    assert (code, out) == (0, ""), err
    assert f"dkgp serve: {service.url}" in err
    assert "stopping" in err
    assert "Traceback" not in err
    # It saved its state, and goes on when there is a service again.
    assert list((tmp_path / "long.zarr.checkpoint").iterdir())


# Whether the service is over, what its process then does, and the code that it ends with: it hangs, a thread outlives
# it, its process goes on.
ENDS = [(False, "time.sleep(60)", 1), (True, "pass", 1), (True, "busy = False; time.sleep(1.0)", 0)]


ENDING = """
import os, subprocess, sys, threading, time
from dkgp.service.serve import LatestEnd

def run(over, main, error):
    global busy
    os.dup2(os.open(error, os.O_CREAT | os.O_WRONLY), 2)
    busy = True
    def request():
        while busy:
            time.sleep(0.05)
    threading.Thread(target=request).start()
    latest_end = LatestEnd(0.5)
    latest_end.begin()
    latest_end.over = over
    exec(main, globals())

# All at once, since most of it is waiting; forked, so that what they import is imported once.
children = []
for number, (over, main, _) in enumerate({ends}):
    if not (child := os.fork()):
        run(over, main, f"{folder}/{{number}}")
        break
    children.append(child)
else:
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.mark.long
def test_no_thread_keeps_a_service_alive_that_was_asked_to_end(tmp_path: Path) -> None:
    code = ENDING.format(ends=ENDS, folder=tmp_path)
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(shown.stdout) == [code for _, _, code in ENDS]
    for number, (_, main, code) in enumerate(ENDS):
        assert ("ended by force" in (tmp_path / str(number)).read_text()) == (code == 1), main


def test_tokens_are_read_when_it_starts(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir(0o700)
    (tmp_path / "queue" / "tokens.json").touch(0o644)
    with pytest.raises(InputError, match=r"tokens\.json' are not yours alone"):
        run_serve(ServiceSettings(str(tmp_path / "queue"), port=0, roots=(str(tmp_path),)), SilentReporter())
