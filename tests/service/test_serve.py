"""`dkgp serve`: addresses, warnings, the end by a signal; and two users on one machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
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
        with pytest.raises(InputError, match=f"127.0.0.1:{port}: the port is already in use.*--port") as caught:
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
        assert httpx.get(f"{service.url}/v1/jobs", trust_env=False, timeout=SECONDS).status_code == 401
        options = {name: str(tmp_path / name) for name in ("dataset", "hyper", "out")}
        for name in ("dataset", "hyper"):
            Path(options[name]).mkdir()
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
ENDS = [
    (False, "time.sleep(600)", 1),
    (True, "pass", 1),
    (True, "busy = False; [timer.join() for timer in threading.enumerate() if isinstance(timer, threading.Timer)]", 0),
]


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
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert json.loads(shown.stdout) == [code for _, _, code in ENDS]
    for number, (_, main, code) in enumerate(ENDS):
        assert ("ended by force" in (tmp_path / str(number)).read_text()) == (code == 1), main


def test_tokens_are_read_when_it_starts(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir(0o700)
    (tmp_path / "queue" / "tokens.json").touch(0o644)
    with pytest.raises(InputError, match=r"tokens\.json' belong to another user or"):
        run_serve(ServiceSettings(str(tmp_path / "queue"), port=0, roots=(str(tmp_path),)), SilentReporter())


SECONDS = 100


@dataclass(frozen=True)
class User:
    """A user of the system, by number alone."""

    number: int
    home: Path

    def command(self, *words: object) -> list[str]:
        """The words as a command of this user's."""
        # By setpriv and not by Popen's own `user`: the interpreter may lie in a folder that only root may look into.
        number = str(self.number)
        return ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", *map(str, words)]

    def surroundings(self, **more: str) -> dict[str, Any]:
        """Return the environment of this user's processes."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "no_proxy": "*", **more}
        return {"env": environment, "cwd": self.home, "text": True}

    def dkgp(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as this user."""
        command = self.command(sys.executable, "-m", "dkgp", *arguments)
        return subprocess.run(command, capture_output=True, timeout=SECONDS, **self.surroundings(**environment))


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    """Two of them, each with a home that is closed to the other."""
    # Not below pytest's own folder, which is closed to all but root.
    base = Path(tempfile.mkdtemp(prefix="dkgp-two-users-"))
    base.chmod(0o711)
    try:
        made = []
        for name, number in (("alice", 23451), ("bob", 23452)):
            home = base / name
            home.mkdir(0o700)
            os.chown(home, number, number)
            made.append(User(number, home))
        probe = made[1].dkgp("--version")
        if probe.returncode != 0:
            pytest.skip("other users cannot run this interpreter")
        yield made[0], made[1]
    finally:
        shutil.rmtree(base)


@contextlib.contextmanager
def service_of(user: User) -> Iterator[tuple[str, int]]:
    """A service that the user starts, as the guide says; its address and process."""
    options = ("--folder", "jobs", "--port", "0", "--cluster", "none", "--json")
    process = subprocess.Popen(
        user.command(sys.executable, "-m", "dkgp", "serve", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **user.surroundings(),
    )
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"], process.pid
        process.terminate()
        _, told = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, told
        assert "read the access token in" in told
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed (Debian: util-linux)")
def test_the_same_user_just_submits_and_another_one_is_let_in_by_a_token_of_their_own(users: tuple[User, User]) -> None:
    alice, bob = users
    job = ("submit", "tune", alice.home / "train.zarr", "--out", alice.home / "hyper.json")
    with service_of(alice) as (url, pid):
        submitted = alice.dkgp(*job)
        assert submitted.returncode == 0, submitted.stderr
        job_id = submitted.stdout.strip()
        assert job_id in alice.dkgp("jobs").stdout

        # Without a token, with a wrong one, and by looking for one.
        for environment in ({}, {"DKGP_SERVICE_TOKEN": "guessed-guessed-guessed"}):
            refused = bob.dkgp("jobs", "--service", url, **environment)
            assert refused.returncode == 2, refused.stderr
            assert "needs its token" in refused.stderr
        token = alice.home / "jobs" / "token"
        secret = token.read_text().strip()
        assert bob.dkgp("jobs", "--service", url, "--token-file", token).returncode == 3
        assert bob.dkgp("token", "add", "bob", "--scope", "admin", "--folder", token.parent).returncode == 3
        places = [f"/proc/{pid}/cmdline", f"/proc/{pid}/environ", token, token.with_name("tokens.json")]
        seen = subprocess.run(bob.command("cat", *places), capture_output=True, env=os.environ)
        assert seen.returncode != 0
        assert secret.encode() not in seen.stdout

        # Given one to submit with: his own jobs, and none of hers.
        added = alice.dkgp("token", "add", "bob", "--scope", "submit", "--folder", "jobs")
        assert added.returncode == 0, added.stderr
        given = added.stdout.strip()
        letting_in = {"DKGP_SERVICE_TOKEN": given, "DKGP_SERVICE_URL": url}
        listed = bob.dkgp("jobs", "--json", **letting_in)
        assert listed.returncode == 0, listed.stderr
        assert json.loads(listed.stdout)["jobs"] == []
        assert "no job" in bob.dkgp("cancel", job_id, **letting_in).stderr
        assert alice.dkgp("token", "revoke", "bob", "--folder", "jobs").returncode == 0
        assert bob.dkgp("jobs", **letting_in).returncode == 2
        lines = [json.loads(line) for line in (alice.home / "jobs" / "audit.jsonl").read_text().splitlines()]
        refusals = {(line["who"], line["status"]) for line in lines if line.get("status", 0) >= 400}
        assert {(None, 401), ("bob", 404)} <= refusals
        text = (alice.home / "jobs" / "audit.jsonl").read_text()
        assert secret not in text
        assert given not in text
