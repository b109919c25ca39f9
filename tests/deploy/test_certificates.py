"""The pages' lines on certificates, as they stand: what they make lets a client in, and nobody without it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster, Security

from tests.deploy.deployment import DEPLOY, command_lines, from_yaml, python_snippets
from tests.deploy.wiring import free_ports

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


def test_the_charts_values_make_a_cluster_that_talks_tls_alone(tmp_path: Path) -> None:
    """The command lines of the chart's pods and their environment, with a secret as the five lines make it."""
    values = from_yaml(DEPLOY / "helm" / "values.yaml")[0]
    made = Security.temporary()
    secret = {"ca.crt": made.tls_ca_file, "tls.crt": made.tls_worker_cert, "tls.key": made.tls_worker_key}
    lines = {line.place: line.arguments for line in command_lines() if line.place.startswith("helm ")}
    port, _ = free_ports(2)

    def environment(pod: str) -> dict[str, str]:
        own = {}
        for entry in values[pod]["env"]:
            named = entry.get("valueFrom", {}).get("secretKeyRef", {})
            if "value" in entry:
                own[entry["name"]] = entry["value"]
            elif named.get("name") == "dkgp-dask":
                own[entry["name"]] = secret[named["key"]]
        return {**os.environ, **own}

    def start(pod: str) -> subprocess.Popen[bytes]:
        words = [word.replace("dkgp-dask-scheduler", "127.0.0.1") for word in lines[f"helm {pod}"]]
        words = [word.replace("8786", str(port)).replace("/tmp", str(tmp_path)) for word in words]
        # In a pod the dashboards' ports are free.
        words = [word if word not in (":8787", "8788") else ":0" for word in words]
        with (tmp_path / f"{pod}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words], env=environment(pod), stdout=log, stderr=log, start_new_session=True
            )

    with contextlib.ExitStack() as stack:
        for pod in ("scheduler", "worker"):
            process = start(pod)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        with Client(f"tls://127.0.0.1:{port}", security=made, timeout="60s") as client:
            client.wait_for_workers(1, timeout=60)
            assert client.submit(sum, (1, 2)).result() == 3
            assert all(address.startswith("tls://") for address in client.scheduler_info()["workers"])
        for address, shown in ((f"tcp://127.0.0.1:{port}", None), (f"tls://127.0.0.1:{port}", Security.temporary())):
            with pytest.raises(OSError, match=r"TLS|[Tt]imed out|certificate|reset|closed"):
                Client(address, security=shown, timeout="5s")


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
