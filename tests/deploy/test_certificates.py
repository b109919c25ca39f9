"""The pages' lines on certificates, as they stand: what they make lets a client in, and nobody without it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster, Security

from tests.deploy.deployment import DEPLOY, python_snippets

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "n_workers": 1,
    "threads_per_worker": 1,
    "processes": False,
    "dashboard_address": None,
    "protocol": "tls",
    "host": "127.0.0.1",
}


def security(authority: str, certificate: str, key: str) -> Security:
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=authority,
        **{f"tls_{role}_cert": certificate for role in roles},
        **{f"tls_{role}_key": key for role in roles},
    )


def test_five_lines(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    page = (DEPLOY / "README.md").read_text()
    block = re.search(r"## Certificates in five lines.*?```sh\n(.*?)```", page, flags=re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    assert len(lines) == 5
    for line in lines:
        if line.startswith("openssl "):
            made = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
            assert made.returncode == 0, made.stderr
    named = set(re.findall(r"--tls-\S+ (\S+)", " ".join(lines)))
    assert named == {"ca.pem", "dask.pem", "dask.key"}
    assert stat.S_IMODE((tmp_path / "dask.key").stat().st_mode) == 0o600

    files = [os.fspath(tmp_path / name) for name in ("ca.pem", "dask.pem", "dask.key")]
    with LocalCluster(security=security(*files), **SMALL) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        with Client(cluster.scheduler_address, security=security(*files)) as client:
            assert client.submit(sum, (1, 2)).result() == 3
        with pytest.raises(OSError, match=r"TLS|[Tt]imed out|certificate"):
            Client(cluster.scheduler_address, security=Security.temporary(), timeout="5s")


def test_cloud_clusters_hand_their_certificates_over(tmp_path: Path) -> None:
    """The page's own function, with a cluster that makes temporary certificates as the cloud's clusters do."""
    snippet = next(text for text in python_snippets(DEPLOY / "cloud" / "README.md") if "def dkgp_on" in text)
    names: dict[str, Any] = {}
    exec(snippet, names)
    ran: list[list[str]] = []

    def run(arguments: list[str], *, check: bool) -> None:
        options = dict(zip(arguments[2::2], arguments[3::2], strict=True))
        files = [options[name] for name in ("--tls-ca", "--tls-cert", "--tls-key")]
        assert all(stat.S_IMODE(os.stat(file).st_mode) == 0o600 for file in files)
        with Client(options["--scheduler"], security=security(*files)) as client:
            assert client.submit(sum, (1, 2)).result() == 3
        ran.append(files)

    names["subprocess"] = SimpleNamespace(run=run)
    with LocalCluster(security=Security.temporary(), **SMALL) as cluster:
        names["dkgp_on"](cluster, "info")
    (files,) = ran
    assert not [file for file in files if os.path.exists(file)], "the key stayed on the disk"


def test_cloud_snippets_are_python() -> None:
    snippets = python_snippets(DEPLOY / "cloud" / "README.md")
    assert len(snippets) == 5
    for snippet in snippets:
        compile(snippet, "deploy/cloud/README.md", "exec")
