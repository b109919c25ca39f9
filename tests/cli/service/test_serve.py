"""`dkgp serve`: its options, and what it refuses before it listens. The service itself: tests/jobs/service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions
from dkgp.service import serve as serve_module
from dkgp.service.settings import ServiceSettings
from tests.cli.invoke import files_below, refused, run

TOKEN = "a-token-that-is-long-enough"


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
        (("--host", "0.0.0.0", "--no-token"), 2, "open to everybody"),
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


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve_module, "find_spec", lambda name: None)
    refused(run("serve", "--folder", tmp_path / "queue"), "pip install 'dkgp[service]'", exit_code=2)
    assert not list(tmp_path.iterdir())
