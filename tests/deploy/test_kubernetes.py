"""deploy/kubernetes and deploy/helm: the schemas of their kinds, what pods may do, and that labels and names meet."""

from __future__ import annotations

import copy
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.deployment import CORE, DEPLOY, FILES, chooses, from_yaml, kustomization, pod_specs, validate

CERTIFICATES = [d for _, d in FILES if d["apiVersion"].startswith("cert-manager.io")]
DASK = [(path, d) for path, d in FILES if "dask" in d["apiVersion"]]
PODS = list(pod_specs())


def named(documents: list[tuple[Path, dict[str, Any]]]) -> list[str]:
    return [f"{document['kind']} {document['metadata']['name']}" for _, document in documents]


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each Dask kind, as the operator's chart installs it; unknown fields are refused."""
    package = find_spec("dask_kubernetes")
    if package is None or package.origin is None:
        pytest.skip("dask-kubernetes is not installed (pip install 'dkgp[kubernetes]')")
    folder = Path(package.origin).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
    found = {}
    for kind in ("daskcluster", "daskjob"):
        definition = from_yaml(folder / f"{kind}.yaml")[0]["spec"]
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


@pytest.mark.long
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
    # By the service's name alone, so that another namespace needs no other address.
    assert re.fullmatch(r"tls://([\w-]+):8786", address)[1] in services
    # What the operator gives workers and the job's runner is an address in plain text; their own words go before it.
    containers = [
        (item["metadata"]["name"], container)
        for item in made
        if item["kind"] != "Service"
        for container in item["spec"].get("template", item)["spec"]["containers"]
    ]
    told = {}
    for name, container in containers:
        given = [v["value"] for v in container.get("env", []) if v["name"] == "DASK_SCHEDULER_ADDRESS"]
        said = [word for word in container["args"] if re.match(r"\w+://.*:8786$", word)]
        assert len(given) == len(said) == (0 if name.endswith("scheduler") else 1), name
        told |= {re.sub(r"^tcp://|\..*", "", one): word for one, word in zip(given, said, strict=True)}
    assert told == {name: f"tls://{name}:8786" for name in services}


def test_dask_talks_tls_with_a_certificate_that_somebody_makes(made: list[dict[str, Any]]) -> None:
    (settings,) = [d["data"] for _, d in CORE if d["kind"] == "ConfigMap" and d["metadata"]["name"] == "dkgp-tls"]
    assert settings["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
    files = {name: value for name, value in settings.items() if "__TLS__" in name}
    assert len(files) == 7
    for place, spec in PODS:
        (container,) = spec["containers"]
        sources = [source.get("configMapRef", {}).get("name") for source in container["envFrom"]]
        assert "dkgp-tls" in sources, place
        # The scheduler has nothing to do with the store.
        assert ("dkgp-settings" in sources) == (not place.endswith("scheduler")), place
        (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "dask-tls"]
        (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "dask-tls"]
        assert all(value.startswith(f"{mount['mountPath']}/") for value in files.values())
        assert mount["readOnly"] is True
        assert not volume["secret"]["defaultMode"] & 0o007
        assert volume["secret"]["secretName"] in made_by_cert_manager()
    assert not re.search("tcp://", "".join(path.read_text() for path in (DEPLOY / "kubernetes").glob("*.yaml")))


def made_by_cert_manager() -> set[str]:
    return {document["spec"]["secretName"] for document in CERTIFICATES if document["kind"] == "Certificate"}


def test_certificates_lead_to_one_authority_that_is_this_namespaces() -> None:
    """The chain of issuers; cert-manager's own schemas are not here."""
    issuers = {d["metadata"]["name"]: d["spec"] for d in CERTIFICATES if d["kind"] == "Issuer"}
    certificates = {d["metadata"]["name"]: d["spec"] for d in CERTIFICATES if d["kind"] == "Certificate"}
    assert len(issuers) + len(certificates) == len(CERTIFICATES) == 4
    for spec in certificates.values():
        assert spec["issuerRef"] == {"name": spec["issuerRef"]["name"], "kind": "Issuer", "group": "cert-manager.io"}
    leaf = certificates["dkgp-dask"]
    assert {"server auth", "client auth"} <= set(leaf["usages"])
    assert not leaf.get("isCA")
    authority = issuers[leaf["issuerRef"]["name"]]["ca"]["secretName"]
    (above,) = [spec for spec in certificates.values() if spec["secretName"] == authority]
    assert above["isCA"] is True
    assert issuers[above["issuerRef"]["name"]] == {"selfSigned": {}}
    hours = [int(spec["duration"].partition("h")[0]) for spec in (leaf, above)]
    assert hours[0] <= 366 * 24
    assert hours[0] < hours[1]
    # Nobody mounts the authority's key.
    assert authority not in str([spec for _, spec in PODS])


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
        assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        # The rest is read-only, and Numba, Matplotlib and Dask write there.
        assert {"name": "scratch", "mountPath": "/tmp"} in container["volumeMounts"]
    mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    for volume in spec["volumes"]:
        # What is written there is written to the node's disk, which is everybody's.
        assert "emptyDir" not in volume or volume["emptyDir"].keys() == {"sizeLimit"}


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
    assert referred == example | {"dkgp-dask"}
    assert "dkgp-dask" in made_by_cert_manager()
    for _, document in CORE:
        if document["kind"] == "ConfigMap":
            assert not [key for key in document["data"] if re.search("SECRET|PASSWORD|TOKEN|ACCESS_KEY", key)]


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
    flags = ("--folder", "--token-file", "--metrics-token-file")
    folder, token, metrics = (arguments[arguments.index(name) + 1] for name in flags)
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert folder.startswith(mounts["queue"])
    assert token == mounts["token"] + "/token"
    assert metrics == mounts["token"] + "/metrics-token"
    (example,) = [d["stringData"] for _, d in CORE if d["metadata"]["name"] == "dkgp-service" and "stringData" in d]
    assert set(example) == {"token", "metrics-token"}
    (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "token"]
    assert not secret["defaultMode"] & 0o007, "dkgp refuses a token that everybody may read"


def test_job_can_be_started_again() -> None:
    (job,) = [document for _, document in DASK if document["kind"] == "DaskJob"]
    spec = job["spec"]["job"]["spec"]
    assert spec["restartPolicy"] == "Never"
    arguments = spec["containers"][0]["args"]
    assert "--resume" in arguments
    assert "--overwrite" not in arguments
    assert int(arguments[arguments.index("--workers") + 1]) == job["spec"]["cluster"]["spec"]["worker"]["replicas"]


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
    assert f"tls://{release}-dask-scheduler:8786" in text
    assert "tcp://" not in text
    assert from_yaml(DEPLOY / "helm" / "values.yaml")[0]["jupyter"]["enabled"] is False


def test_the_charts_pods_have_the_certificate_that_the_other_files_make() -> None:
    values = from_yaml(DEPLOY / "helm" / "values.yaml")[0]
    made = {d["spec"]["secretName"] for d in CERTIFICATES if not d["spec"].get("isCA") and d["kind"] == "Certificate"}
    # What the operator's pods read from files, by name of the setting.
    (settings,) = [d["data"] for _, d in CORE if d["metadata"]["name"] == "dkgp-tls"]
    for pod in ("scheduler", "worker"):
        assert values[pod].get("extraArgs", []).count("--protocol") == (pod == "scheduler")
        entries = {entry["name"]: entry for entry in values[pod]["env"]}
        tls = {name for name in settings if "__TLS__" not in name or f"__{pod.upper()}__" in name or "CA_FILE" in name}
        assert len(tls) == 4
        assert tls == {name for name in entries if name in settings}
        for name in tls:
            if "value" in entries[name]:
                assert entries[name]["value"] == settings[name]
            else:
                named = entries[name]["valueFrom"]["secretKeyRef"]
                assert {named["name"]} == made
                assert settings[name] == f"/run/secrets/dask/{named['key']}"
                assert "optional" not in named, "a pod without a certificate does not start"
        assert entries["DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME"]["value"] == "tls"
