"""Network policies on Kubernetes: allowed connections by the labels of pods, in the output of kustomize."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.deployment import CORE, DEPLOY, OTHERS, chooses, kustomization, validate


def test_the_way_out_leads_to_the_store_alone(made: list[dict[str, Any]]) -> None:
    policies = [d for path, d in CORE if d["kind"] == "NetworkPolicy" and path.parent.name == "kubernetes"]
    leaving = {}
    for policy in policies:
        for rule in policy["spec"].get("egress", []):
            assert rule["to"], "a rule without peers is one for everybody"
            for peer in rule["to"]:
                if "ipBlock" in peer:
                    leaving[policy["metadata"]["name"]] = peer["ipBlock"]["cidr"]
                elif "namespaceSelector" in peer:
                    assert peer["namespaceSelector"]["matchLabels"], "every namespace"
    # Nobody's addresses (RFC 5737), until somebody says whose.
    assert set(leaving.values()) == {"192.0.2.0/24"}
    choosing = [policy["spec"]["podSelector"] for policy in policies if policy["metadata"]["name"] in leaving]
    for item in made:
        if item["kind"] != "Service":
            labels = item["spec"].get("template", item)["metadata"]["labels"]
            reaches = any(chooses(selector, labels) for selector in choosing)
            assert reaches == (labels["dask.org/component"] != "scheduler"), labels
    assert any(chooses(selector, {"app.kubernetes.io/name": "dkgp-service"}) for selector in choosing)
    # The parameters are put where the policies have them.
    targets = {
        (target["select"]["name"], path)
        for replacement in kustomization()["replacements"]
        for target in replacement["targets"]
        for path in target["fieldPaths"]
    }
    assert len(targets) == 4
    assert {name for name, _ in targets} == set(leaving)


def built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_puts_the_store_in_and_a_team_has_a_namespace_of_its_own(tmp_path: Path) -> None:
    assert {d["metadata"].get("namespace", "dkgp") for d in built(DEPLOY / "kubernetes")} == {"dkgp"}
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "k")
    for name, before, after in (
        ("settings.yaml", "store-cidr: 192.0.2.0/24", "store-cidr: 10.1.2.0/24"),
        ("settings.yaml", "store-namespace: store", "store-namespace: objects"),
        ("kustomization.yaml", "\nnamespace: dkgp", "\nnamespace: team-a"),
    ):
        path = tmp_path / "k" / name
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))
    documents = built(tmp_path / "k")
    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "NetworkPolicy"}
    for name in ("to-the-store-from-workers", "to-the-store-from-the-service"):
        by_address, by_namespace = policies[name]["egress"][0]["to"]
        assert by_address == {"ipBlock": {"cidr": "10.1.2.0/24"}}
        assert by_namespace["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "objects"}
    assert {d["metadata"].get("namespace", "team-a") for d in documents} == {"team-a"}
    assert "dkgp.svc" not in str(documents)
    for document in documents:
        if not document["apiVersion"].startswith(OTHERS):
            validate(document)


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
