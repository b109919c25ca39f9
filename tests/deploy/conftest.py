from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.deployment import documents

DASK = [document for _, document in documents("kubernetes") if "dask" in document["apiVersion"]]


@pytest.fixture(scope="module")
def operator() -> ModuleType:
    pytest.importorskip("dask_kubernetes", reason="dask-kubernetes is not installed")
    from dask_kubernetes.operator.controller import controller

    return controller


@pytest.fixture(scope="module")
def made(operator: ModuleType) -> list[dict[str, Any]]:
    """Return the objects that the operator derives from the Dask resources, by its own functions."""
    objects = []
    for document in DASK:
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
