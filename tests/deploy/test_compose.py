"""docker-compose.yml: its schema, what it lets containers do, and that its parts fit."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.deploy.deployment import COMPOSE, DEPLOY, IMAGE, compose, example_settings

PROJECT = compose()
SERVICES: dict[str, dict[str, Any]] = PROJECT["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == IMAGE}
FOREIGN = {name: service for name, service in SERVICES.items() if name not in OURS}
STANDING = {name for name, service in SERVICES.items() if service["restart"] == "unless-stopped"}
MAKE_SECRETS = DEPLOY / "compose" / "make-secrets"


def test_schema() -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed (pip install 'dkgp[test]')")
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_roles() -> None:
    assert set(OURS) == {"scheduler", "worker", "bucket", "service", "dkgp"}
    assert {"scheduler", "worker", "store", "service", "prometheus", "grafana"} == STANDING
    assert SERVICES["bucket"]["restart"] == "on-failure"
    # What `--scale worker=4` multiplies must have no name and no port of its own on the host.
    assert not {"container_name", "ports", "hostname"} & SERVICES["worker"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_container_may_do_little(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & service.keys()
    if name in FOREIGN:  # ours has a user in its Dockerfile
        assert int(service["user"].partition(":")[0]) > 0
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    mounts = [volume for volume in service.get("volumes", []) if volume.startswith((".", "/"))]
    assert all(mount.endswith(":ro") for mount in mounts)


@pytest.mark.parametrize("name", FOREIGN)
def test_image_is_pinned(name: str) -> None:
    _, _, tag = FOREIGN[name]["image"].partition(":")
    assert re.match(r"v?\d+\.\d+\.\d+", tag), FOREIGN[name]["image"]
    # By digest where a site says so.
    digest = f"name@sha256:{'0' * 64}"
    settings = {f"DKGP_{which}_IMAGE": digest for which in ("STORE", "PROMETHEUS", "GRAFANA", "PYTHON")}
    named = compose({"DKGP_SECRETS_GROUP": "1000", **settings})["services"]
    assert named[name]["image"] == digest
    assert named["worker"]["build"]["args"]["PYTHON_IMAGE"] == digest


def neighbours(name: str) -> set[str]:
    """The services that share a network with one."""
    networks = set(SERVICES[name]["networks"])
    return {other for other, service in SERVICES.items() if other != name and networks & set(service["networks"])}


def test_scheduler_is_private() -> None:
    # Prometheus reads its metrics, and has no certificate for anything else.
    assert neighbours("scheduler") == {"worker", "service", "dkgp", "prometheus"}
    assert not neighbours("scheduler") & {"store", "grafana", "bucket"}
    assert neighbours("worker") == {"scheduler", "service", "dkgp", "prometheus", "store", "bucket"}
    for name in ("scheduler", "worker"):
        assert "ports" not in SERVICES[name]
    published = {name for name, service in SERVICES.items() if "outside" in service["networks"]}
    assert published == {name for name, service in SERVICES.items() if service.get("ports")}
    assert all(
        network == ({} if name == "outside" else {"internal": True}) for name, network in PROJECT["networks"].items()
    )


def test_whoever_talks_to_the_scheduler_shows_a_certificate_and_nobody_else_has_one() -> None:
    has = {name for name, service in SERVICES.items() if "dask-key" in service.get("secrets", [])}
    assert has == {"scheduler", "worker", "service", "dkgp"}
    for name in has:
        environment = SERVICES[name]["environment"]
        assert environment["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
        files = {variable: value for variable, value in environment.items() if "__TLS__" in variable}
        assert set(files.values()) == {f"/run/secrets/dask-{part}" for part in ("authority", "certificate", "key")}
        assert len(files) == 7
    text = COMPOSE.read_text()
    assert "tls://scheduler:8786" in text
    assert "tcp://" not in text
    command = SERVICES["scheduler"]["command"]
    assert command[command.index("--protocol") + 1] == "tls"


def test_the_stores_own_keys_are_its_own_and_the_buckets_alone() -> None:
    for secret in ("s3-access-key", "s3-secret-key"):
        assert [name for name, service in SERVICES.items() if secret in service.get("secrets", [])] == ["store"]
    roots = [name for name, service in SERVICES.items() if "s3-root-credentials" in service.get("secrets", [])]
    assert roots == ["bucket"]
    for name in ("worker", "service", "dkgp"):
        assert SERVICES[name]["environment"]["AWS_SHARED_CREDENTIALS_FILE"] == "/run/secrets/s3-credentials"
    assert "service-token" not in SERVICES["prometheus"]["secrets"]


@pytest.mark.parametrize("name", sorted(STANDING))
def test_health_is_watched(name: str) -> None:
    service = SERVICES[name]
    url = service.get("environment", {}).get("DKGP_HEALTH_URL")
    assert ("healthcheck" in service) == (name in FOREIGN)
    if name in OURS:
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/healthz?", url)[1])
        assert any(str(port) in argument for argument in service["command"]), "nothing listens at the port asked"
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


def test_order_of_start_can_be_kept() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert needed in STANDING, f"{name} waits for {needed}"
            else:
                assert how["condition"] == "service_completed_successfully"
                assert SERVICES[needed]["restart"] == "on-failure", f"{name} waits for the end of {needed}"
            assert "profiles" not in SERVICES[needed] or "profiles" in service


def test_environments_are_mappings_of_plain_text() -> None:
    for name, service in SERVICES.items():
        environment = service.get("environment", {})
        assert isinstance(environment, dict), f"{name}: quotes in a list become part of the value"
        assert not [
            value for value in environment.values() if not isinstance(value, str) or value.startswith(('"', "'"))
        ]


def test_secrets_are_files_that_are_made() -> None:
    written = set(re.findall(r"^ *keep (\S+) ", MAKE_SECRETS.read_text(), flags=re.MULTILINE))
    assert set(PROJECT["secrets"]) == written
    for name, secret in PROJECT["secrets"].items():
        assert secret == {"file": f"./deploy/compose/secrets/{name}"}
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == written
    for name, service in SERVICES.items():
        if service.get("secrets"):
            assert service["group_add"] == ["1000"], f"{name} could not read its secrets"
        for path in re.findall(r"/run/secrets/([\w-]+)", str({**service, "secrets": None})):
            assert path in service["secrets"], f"{name} reads {path}, which it is not given"
        for variable, value in service.get("environment", {}).items():
            if re.search(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIALS", variable):
                assert value.startswith("/run/secrets/"), f"{name}: {variable} is in the environment"


def test_settings_are_those_of_the_example() -> None:
    text = COMPOSE.read_text()
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    required = set(re.findall(r"\$\{(\w+):\?", text))
    example = example_settings()
    assert required == {"DKGP_SECRETS_GROUP"}
    assert {name: value for name, value in example.items() if name not in required} == defaults
    assert required < set(example)


def test_networks_volumes_and_profiles_exist() -> None:
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(PROJECT["networks"])
        named = {volume.partition(":")[0] for volume in service.get("volumes", []) if volume[0] not in "./"}
        assert named <= set(PROJECT["volumes"])
        assert set(service.get("profiles", [])) <= {"command", "monitoring"}


def test_worker_ends_before_its_container_would() -> None:
    from dask.utils import parse_bytes

    worker = SERVICES["worker"]
    limit = worker["command"][worker["command"].index("--memory-limit") + 1]
    assert limit == worker["mem_limit"]
    amount, unit = re.fullmatch(r"(\d+)(\wb)", limit).groups()
    docker_bytes = int(amount) * 1024 ** " kmgt".index(unit[0])
    assert 0.9 * docker_bytes < parse_bytes(limit) < docker_bytes
    assert worker["cpus"] == worker["command"][worker["command"].index("--nthreads") + 1]


def make_secrets(folder: Path, env: Path) -> str:
    made = subprocess.run(["sh", MAKE_SECRETS, folder, env], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_secrets_are_made_once_and_closed(tmp_path: Path) -> None:
    folder, env = tmp_path / "secrets", tmp_path / "env"
    env.write_text("DKGP_BUCKET=mine\n")
    make_secrets(folder, env)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    contents = {path.name: path.read_text() for path in folder.iterdir()}
    assert contents.keys() == PROJECT["secrets"].keys()
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert env.read_text() == f"DKGP_BUCKET=mine\nDKGP_SECRETS_GROUP={(folder / 'service-token').stat().st_gid}\n"
    for key in ("s3-access-key", "s3-secret-key"):
        assert contents[key].strip() in contents["s3-root-credentials"]
        assert contents[key].strip() not in contents["s3-credentials"]
    assert "PRIVATE KEY" in contents["dask-key"]
    assert "PRIVATE KEY" not in contents["dask-certificate"] + contents["dask-authority"]
    assert {path.name for path in folder.iterdir()} == set(contents), "the authority's key is kept"

    assert make_secrets(folder, env) == ""
    assert {path.name: path.read_text() for path in folder.iterdir()} == contents
    other = tmp_path / "other"
    make_secrets(other, env)
    assert not {path.read_text() for path in other.iterdir()} & set(contents.values())


@pytest.fixture
def store() -> Iterator[tuple[str, list[Any]]]:
    """A store that takes every call down, and refuses those that are not signed with its keys."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    calls: list[Any] = []

    class Store(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = AWSRequest("PUT", f"http://{self.headers['Host']}{self.path}", data=body)
            request.headers["Content-Type"] = self.headers["Content-Type"]
            request.context["timestamp"] = self.headers["X-Amz-Date"]
            signer = SigV4Auth(Credentials("root", "root-secret"), "s3", "us-east-1")
            request.headers["X-Amz-Date"] = self.headers["X-Amz-Date"]
            expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
            is_signed = self.headers["Authorization"].endswith(expected)
            calls.append((self.path, json.loads(body or b"null"), is_signed))
            self.send_response(200 if is_signed else 403)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", calls
        server.shutdown()


@pytest.mark.parametrize("secret", ["root-secret", "wrong"])
def test_the_buckets_user_may_use_the_bucket_alone(
    store: tuple[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    s3fs = pytest.importorskip("s3fs")
    names: dict[str, Any] = {"__name__": "made"}
    exec(compile((DEPLOY / "compose" / "make-bucket.py").read_text(), "make-bucket.py", "exec"), names)
    for name, keys in (("root", ("root", secret)), ("user", ("the-user", "the-secret"))):
        (tmp_path / name).write_text(f"[default]\naws_access_key_id = {keys[0]}\naws_secret_access_key = {keys[1]}\n")
    made: list[str] = []
    monkeypatch.setattr(
        s3fs, "S3FileSystem", lambda: SimpleNamespace(makedirs=lambda name, exist_ok: made.append(name))
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", store[0])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "root"))
    monkeypatch.setenv("DKGP_STORE_ADMIN", "/rustfs/admin/v3")
    code = names["main"](["runs", str(tmp_path / "user")])
    assert made == ["runs"]
    assert code == (0 if secret == "root-secret" else 1)
    if code:
        assert [(path.split("?")[0], signed) for path, _, signed in store[1]] == [
            ("/rustfs/admin/v3/add-canned-policy", False)
        ]
        return
    assert [path for path, _, _ in store[1]] == [
        "/rustfs/admin/v3/add-canned-policy?name=dkgp-runs",
        "/rustfs/admin/v3/add-user?accessKey=the-user",
        "/rustfs/admin/v3/set-user-or-group-policy?policyName=dkgp-runs&userOrGroup=the-user&isGroup=false",
    ]
    policy, user = store[1][0][1], store[1][1][1]
    assert user == {"secretKey": "the-secret", "status": "enabled"}
    resources = {resource for statement in policy["Statement"] for resource in statement["Resource"]}
    assert resources == {"arn:aws:s3:::runs", "arn:aws:s3:::runs/*"}
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert {action.partition(":")[0] for action in actions} == {"s3"}
    assert not {action for action in actions if re.search(r"\*|Policy|CreateBucket|DeleteBucket", action)}


def test_token_that_is_made_is_one_that_the_service_takes(tmp_path: Path) -> None:
    from dkgp.service.settings import read_token

    make_secrets(tmp_path / "secrets", tmp_path / "env")
    path = tmp_path / "secrets" / "service-token"
    assert read_token(path) == path.read_text().strip()
    os.chmod(path, 0o644)
    with pytest.raises(Exception, match="can be read by every user"):
        read_token(path)


def test_secrets_stay_out_of_git_and_of_the_image() -> None:
    assert "secrets/" in (DEPLOY / "compose" / ".gitignore").read_text().splitlines()
    assert (COMPOSE.parent / ".dockerignore").read_text().splitlines()[1] == "*"


def test_yaml_has_no_duplicate_keys() -> None:
    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: Strict, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(keys)), f"twice at {node.start_mark}"
        loader.flatten_mapping(node)
        return {loader.construct_object(key): loader.construct_object(value, deep=True) for key, value in node.value}

    Strict.add_constructor("tag:yaml.org,2002:map", mapping)
    for path in [COMPOSE, *DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")]:
        list(yaml.load_all(path.read_text(), Loader=Strict))
    with pytest.raises(AssertionError, match="twice at"):
        yaml.load("a: {b: 1, c: 2, b: 3}", Loader=Strict)
