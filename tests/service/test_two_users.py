"""Two users of one machine: the one who runs the service needs no token at hand, the other gets in with one alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed (Debian: util-linux)"),
]

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
        """What a process of this user finds."""
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
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"], process.pid
        process.terminate()
        _, told = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, told
        assert "your own commands find its token" in told
    finally:
        process.kill()
        process.communicate()


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
