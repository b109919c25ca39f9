"""deploy/kubernetes and deploy/helm: the schemas of their kinds, what pods may do, and that labels and names meet."""

from __future__ import annotations

import copy
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.deploy.deployment import DEPLOY, documents, pod_specs

VERSION = "1.33"
FILES = [*documents("kubernetes"), *((path, d) for path, d in documents("helm") if path.name != "values.yaml")]
CORE = [(path, d) for path, d in FILES if "dask" not in d["apiVersion"] and "kustomize" not in d["apiVersion"]]
DASK = [(path, d) for path, d in FILES if "dask" in d["apiVersion"]]
PODS = list(pod_specs())


def named(documents: list[tuple[Path, dict[str, Any]]]) -> list[str]:
    return [f"{document['kind']} {document['metadata']['name']}" for _, document in documents]


def validate(document: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed (pip install 'dkgp[test]')"
    )
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each Dask kind, as the operator's chart installs it; unknown fields are refused."""
    package = find_spec("dask_kubernetes")
    if package is None or package.origin is None:
        pytest.skip("dask-kubernetes is not installed (pip install 'dkgp[kubernetes]')")
    folder = Path(package.origin).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
    found = {}
    for kind in ("daskcluster", "daskjob"):
        # Half a megabyte of YAML: the compiled loader, where there is one.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        definition = yaml.load((folder / f"{kind}.yaml").read_text(), Loader=loader)["spec"]
        (version,) = definition["versions"]
        found[definition["names"]["kind"]] = strict(version["schema"]["openAPIV3Schema"])
    return found


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node.get("properties"), dict):
            node.setdefault("additionalProperties", False)
        stack += [value for value in node.values() if isinstance(value, dict)]
        stack += [value for value in (node.get("properties") or {}).values() if isinstance(value, dict)]
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    return schema


@pytest.mark.parametrize("document", [d for _, d in CORE], ids=named(CORE))
def test_core_kind(document: dict[str, Any]) -> None:
    validate(document)


def test_the_check_of_core_kinds_bites() -> None:
    broken = copy.deepcopy(CORE[0][1])
    validate(broken)
    broken["metadata"]["nmae"] = "x"
    with pytest.raises(Exception, match="nmae"):
        validate(broken)


@pytest.mark.parametrize("document", [d for _, d in DASK], ids=named(DASK))
def test_dask_kind(document: dict[str, Any], schemas: dict[str, dict[str, Any]]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schemas[document["kind"]])
    validator.validate(document)
    # The check bites: a field that does not exist, and one of the wrong type.
    broken = copy.deepcopy(document)
    workers = broken["spec"] if document["kind"] == "DaskCluster" else broken["spec"]["cluster"]["spec"]
    workers["worker"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(jsonschema.ValidationError, match="arguments"):
        validator.validate(broken)
    del workers["worker"]["spec"]["containers"][0]["arguments"]
    workers["worker"]["replicas"] = "four"
    with pytest.raises(jsonschema.ValidationError, match="four"):
        validator.validate(broken)


@pytest.fixture(scope="module")
def operator() -> ModuleType:
    pytest.importorskip("dask_kubernetes", reason="dask-kubernetes is not installed")
    from dask_kubernetes.operator.controller import controller

    return controller


@pytest.fixture(scope="module")
def made(operator: ModuleType) -> list[dict[str, Any]]:
    """What the operator makes of the Dask kinds, by its own functions."""
    objects = []
    for _, document in DASK:
        name, spec = document["metadata"]["name"], document["spec"]
        cluster = spec["cluster"]["spec"] if document["kind"] == "DaskJob" else spec
        scheduler, worker = cluster["scheduler"], cluster["worker"]
        objects.append(operator.build_scheduler_deployment_spec(name, scheduler["spec"], {}, {}))
        objects.append(operator.build_scheduler_service_spec(name, scheduler["service"], {}, {}))
        worker_spec = copy.deepcopy(worker["spec"])
        objects.append(operator.build_worker_deployment_spec(f"{name}-default", "dkgp", name, "0", worker_spec, {}, {}))
        if document["kind"] == "DaskJob":
            objects.append(operator.build_job_pod_spec(name, name, "dkgp", spec["job"]["spec"], {}, {}))
    return objects


def test_what_the_operator_makes_is_valid(made: list[dict[str, Any]]) -> None:
    assert sorted(item["kind"] for item in made) == ["Deployment"] * 4 + ["Pod"] + ["Service"] * 2
    for item in made:
        validate(item)


def test_scheduler_is_where_it_is_looked_for(made: list[dict[str, Any]]) -> None:
    services = {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "Service"}
    deployments = [item for item in made if item["kind"] == "Deployment"]
    for name, spec in services.items():
        (meant,) = [
            item
            for item in deployments
            if spec["selector"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert meant["metadata"]["name"] == name
    (serve,) = [spec["containers"][0]["args"] for place, spec in PODS if place.startswith("service.yaml")]
    address = serve[serve.index("--scheduler") + 1]
    assert re.fullmatch(r"tcp://(.+)\.dkgp\.svc\.cluster\.local:8786", address)[1] in services
    # Workers and the job's runner take the same form of address from what the operator gives them.
    given = [
        variable["value"]
        for item in made
        for container in (item["spec"].get("template", item)["spec"].get("containers", []))
        for variable in container.get("env", [])
        if variable["name"] == "DASK_SCHEDULER_ADDRESS"
    ]
    assert len(given) == 3
    assert {re.sub(r"^tcp://|\..*", "", one) for one in given} == set(services)


@pytest.mark.parametrize(("place", "spec"), PODS, ids=[place for place, _ in PODS])
def test_pod_keeps_to_the_restricted_standard(place: str, spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "dkgp"
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        # The rest is read-only, and Numba, Matplotlib and Dask write there.
        assert {"name": "scratch", "mountPath": "/tmp"} in container["volumeMounts"]
    mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_namespace_asks_for_that_standard() -> None:
    (namespace,) = [document for _, document in CORE if document["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(("place", "spec"), PODS, ids=[place for place, _ in PODS])
def test_what_stands_is_probed(place: str, spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    assert ("livenessProbe" in probes) == (not place.endswith(" job"))
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in probes.values():
        assert probe["httpGet"]["port"] in ports
        assert probe["httpGet"]["path"] == ("/healthz" if "serve" in container["args"] else "/health")


def test_worker_leaves_room_below_its_pods_limit() -> None:
    from dask.utils import parse_bytes

    workers = [spec["containers"][0] for place, spec in PODS if place.endswith(" worker")]
    assert len(workers) == 2
    for container in workers:
        arguments, limits = container["args"], container["resources"]["limits"]
        own = parse_bytes(arguments[arguments.index("--memory-limit") + 1])
        assert 0.9 < own / parse_bytes(limits["memory"].replace("Gi", "GiB")) < 1
        assert arguments[arguments.index("--nthreads") + 1] == limits["cpu"]


def test_secrets_are_referred_to_and_not_written() -> None:
    applied = kustomization()["resources"]
    for path, document in CORE:
        if document["kind"] == "Secret":
            assert path.name not in applied
            assert set(document["stringData"].values()) == {"REPLACE-ME"}
    example = {document["metadata"]["name"] for _, document in CORE if document["kind"] == "Secret"}
    referred = set()
    for _, spec in PODS:
        for container in spec["containers"]:
            assert not [variable for variable in container.get("env", []) if "value" in variable]
            referred |= {
                source["secretRef"]["name"] for source in container.get("envFrom", []) if "secretRef" in source
            }
        referred |= {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert referred == example
    for _, document in CORE:
        if document["kind"] == "ConfigMap":
            assert not [key for key in document["data"] if re.search("SECRET|PASSWORD|TOKEN|ACCESS_KEY", key)]


def kustomization() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    return found


def test_everything_is_applied_but_runs_and_examples() -> None:
    applied = kustomization()["resources"]
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert there - set(applied) == {"kustomization.yaml", "job.yaml", "secrets.example.yaml"}
    assert set(applied) <= there
    namespaces = {document["metadata"].get("namespace", "dkgp") for _, document in FILES if "metadata" in document}
    assert namespaces == {kustomization()["namespace"]}


def test_service_has_one_writer() -> None:
    (deployment,) = [document for _, document in CORE if document["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    (service,) = [document for _, document in CORE if document["kind"] == "Service"]
    assert service["spec"]["selector"] == labels
    (claim,) = [document for _, document in CORE if document["kind"] == "PersistentVolumeClaim"]
    pod = deployment["spec"]["template"]["spec"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == [claim["metadata"]["name"]]
    arguments = pod["containers"][0]["args"]
    folder, token = (arguments[arguments.index(name) + 1] for name in ("--folder", "--token-file"))
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert folder.startswith(mounts["queue"])
    assert token == mounts["token"] + "/token"
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert not secret["defaultMode"] & 0o007, "dkgp refuses a token that everybody may read"


def test_job_can_be_started_again() -> None:
    (job,) = [document for _, document in DASK if document["kind"] == "DaskJob"]
    spec = job["spec"]["job"]["spec"]
    assert spec["restartPolicy"] == "Never"
    arguments = spec["containers"][0]["args"]
    assert "--resume" in arguments
    assert "--overwrite" not in arguments
    assert int(arguments[arguments.index("--workers") + 1]) == job["spec"]["cluster"]["spec"]["worker"]["replicas"]


def chooses(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "Exists" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        expression["key"] in labels for expression in expressions
    )


def test_who_may_reach_whom(made: list[dict[str, Any]]) -> None:
    """The policies, applied to the labels that pods really have."""
    policies = [d["spec"] for path, d in CORE if d["kind"] == "NetworkPolicy" and path.parent.name == "kubernetes"]
    pods = {}
    for item in made:
        if item["kind"] != "Service":
            labels = item["spec"].get("template", item)["metadata"]["labels"]
            pods[f"{labels['dask.org/cluster-name']} {labels['dask.org/component']}"] = labels
    pods["serve"] = {"app.kubernetes.io/name": "dkgp-service"}
    pods["stranger"] = {"app": "something else"}

    def allows(direction: str, this: str, other: str, port: int) -> bool:
        side = "from" if direction == "ingress" else "to"
        return any(
            chooses(peer["podSelector"], pods[other])
            and port in [p["port"] for p in rule.get("ports", [{"port": port}])]
            for policy in policies
            if chooses(policy["podSelector"], pods[this]) and direction.capitalize() in policy["policyTypes"]
            for rule in policy.get(direction, [])
            for peer in rule.get(side, [])
            if "podSelector" in peer and "namespaceSelector" not in peer
        )

    def reaches(one: str, other: str, port: int) -> bool:
        return allows("egress", one, other, port) and allows("ingress", other, one, port)

    assert len(pods) == 7
    # A policy without rules for all pods: what is not allowed is refused.
    assert any(policy["podSelector"] == {} and not {"ingress", "egress"} & policy.keys() for policy in policies)
    assert reaches("serve", "dkgp scheduler", 8786)
    assert reaches("dkgp worker", "dkgp scheduler", 8786)
    assert reaches("dkgp scheduler", "dkgp worker", 40123)
    assert reaches("dkgp-train job-runner", "dkgp-train scheduler", 8786)
    assert not reaches("serve", "dkgp worker", 40123)
    for pod in pods:
        assert not reaches("stranger", pod, 8786)
        assert not reaches("stranger", pod, 8780)
        assert not reaches(pod, "serve", 8780) or pod == "serve"


def test_disruption_budgets_are_of_pods_that_exist(made: list[dict[str, Any]]) -> None:
    labels = [item["spec"]["template"]["metadata"]["labels"] for item in made if item["kind"] == "Deployment"]
    budgets = [document["spec"] for _, document in CORE if document["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == 2
    for budget in budgets:
        assert any(chooses(budget["selector"], pod) for pod in labels)


def test_helm_policies_go_by_the_charts_labels() -> None:
    text = (DEPLOY / "helm" / "values.yaml").read_text()
    release = re.search(r"helm install (\S+) dask ", text)[1]
    for path, document in CORE:
        if path.parent.name == "helm":
            for selector in re.findall(r"'release': '(\w+)'", str(document)):
                assert selector == release
    assert f"tcp://{release}-dask-scheduler.dkgp.svc" in text
    assert yaml.safe_load(text)["jupyter"]["enabled"] is False
