"""The metrics, read by Prometheus' own parser."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dkgp.service.queue.records import STATES
from tests.service.problem import claim
from tests.service.stage import Stage, staged


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, concurrent_jobs=3, max_queued=4) as stage:
        yield stage


def samples(stage: Stage) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and by the values of the labels, in the labels' own order."""
    response = stage.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels[name] for name in sorted(sample.labels))] = (
                sample.value
            )
    return found


def test_names_and_help_follow_the_conventions(stage: Stage) -> None:
    stage.submit()
    text = stage.client.get("/metrics").text
    families = list(text_string_to_metric_families(text))
    own = {family.name for family in families if family.name.startswith("dkgp_")}
    for name in (
        "dkgp_jobs",
        "dkgp_jobs_submitted",
        "dkgp_job_duration_seconds",
        "dkgp_build_info",
        "dkgp_http_requests",
    ):
        assert name in own
    for family in families:
        assert family.documentation, family.name
        assert re.fullmatch("[a-z][a-z0-9_]*", family.name)
        if family.type == "counter":
            assert f"# TYPE {family.name}_total counter" in text
    assert samples(stage)["process_open_fds"][()] > 0


def test_jobs_by_state_and_limits(stage: Stage) -> None:
    first = stage.submit("1.zarr")["id"]
    stage.submit("2.zarr")
    stage.client.post(f"/v1/jobs/{first}/cancel")
    found = samples(stage)
    assert found["dkgp_jobs"] == {(state,): float(state in ("queued", "cancelled")) for state in STATES}
    assert found["dkgp_jobs_concurrent_limit"] == {(): 3.0}
    assert found["dkgp_jobs_queued_limit"] == {(): 4.0}
    assert list(found["dkgp_build_info"].values()) == [1.0]
    assert found["dkgp_jobs_submitted_total"] == {("train",): 2.0}


def test_refusals_by_reason(stage: Stage) -> None:
    def post(**more: Any) -> None:
        stage.client.post("/v1/jobs", json={"command": "train", "options": stage.options(**more)})

    post(unknown=1)
    post(out="/etc/model.zarr")
    for i in (1, 1, 2, 3, 4, 5):
        post(out=str(stage.root / f"{i}.zarr"))
    assert samples(stage)["dkgp_jobs_refused_total"] == {
        ("options",): 1.0,
        ("roots",): 1.0,
        ("conflict",): 1.0,
        ("queue_full",): 1.0,
    }


def test_ends_are_counted_once_each(stage: Stage) -> None:
    samples(stage)
    first, second = stage.submit("1.zarr")["id"], stage.submit("2.zarr")["id"]
    assert samples(stage).get("dkgp_jobs_finished_total", {}) == {}
    stage.client.post(f"/v1/jobs/{first}/cancel")
    for _ in range(2):
        assert samples(stage)["dkgp_jobs_finished_total"] == {("train", "cancelled"): 1.0}
    # Ended between two looks; and again after a resumption; and one that was submitted before this service began.
    stage.client.post(f"/v1/jobs/{second}/cancel")
    stage.client.post(f"/v1/jobs/{first}/resume")
    stage.client.post(f"/v1/jobs/{first}/cancel")
    assert samples(stage)["dkgp_jobs_finished_total"] == {("train", "cancelled"): 3.0}


def test_a_running_job(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    claimed = claim(stage.queue)
    assert claimed.id == job_id
    with contextlib.closing(stage.events(job_id)) as writer:
        writer.write("progress", label="train", column_passes=2.5, gradient_inf_norm=0.125, tolerance=1e-3)
    found = samples(stage)
    labels = ("train", job_id)
    assert found["dkgp_job_column_passes"] == {labels: 2.5}
    assert found["dkgp_job_gradient_inf_norm"] == {labels: 0.125}
    assert found["dkgp_job_tolerance"] == {labels: 1e-3}
    assert list(found["dkgp_job_measure"].values()) == [0.125]
    assert set(next(iter(found["dkgp_job_measure"]))) == {*labels, "max|g|"}
    assert 0.0 <= found["dkgp_job_running_seconds"][labels] < 3600.0


def test_a_running_job_that_brings_a_gap_down(stage: Stage) -> None:
    stage.submit()
    claimed = claim(stage.queue)
    assert claimed is not None
    figures = {"column_passes": 2.5, "gradient_inf_norm": 7.0, "measure": "duality_gap", "tolerance": 1e-4}
    with contextlib.closing(stage.events(claimed.id)) as writer:
        writer.write("progress", label="classify", duality_gap=float("inf"), **figures)
    assert samples(stage).get("dkgp_job_measure", {}) == {}
    with contextlib.closing(stage.events(claimed.id)) as writer:
        writer.write("progress", label="classify", duality_gap=0.25, **figures)
    found = samples(stage)["dkgp_job_measure"]
    assert list(found.values()) == [0.25]
    assert "relative gap" in next(iter(found))


def test_requests_by_route_never_by_path(stage: Stage) -> None:
    for i in range(5):
        stage.client.get(f"/v1/jobs/{i:012x}")
        stage.client.get(f"/no/such/{i}")
        stage.client.request(f"ODD{i}", "/v1/jobs")
    stage.anonymous().get("/v1/jobs")
    found = samples(stage)["dkgp_http_requests_total"]
    assert found["GET", "/v1/jobs/{job_id}", "404"] == 5.0
    assert found["GET", "other", "404"] == 5.0
    assert found["GET", "other", "401"] == 1.0
    assert {labels[0] for labels in found} == {"GET", "other"}
    seconds = samples(stage)["dkgp_http_request_duration_seconds_count"]
    assert seconds["GET", "/v1/jobs/{job_id}"] == 5.0


def test_what_jobs_exceeded_and_what_their_folders_hold_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.service.queue.database.FRESH_SECONDS", -1.0)
    with staged(tmp_path, job_memory_bytes=2**30, max_folder_bytes=5 * 2**20) as stage:
        assert stage.client.get("/healthz").json() == {"status": "ok"}
        first = samples(stage)
        assert first["dkgp_jobs_exceeded_total"] == {("deadline",): 0.0, ("memory",): 0.0}
        assert first["dkgp_job_memory_bytes_limit"][()] == 2**30
        refused = stage.client.post(
            "/v1/jobs", json={"command": "train", "options": stage.options(), "memory_bytes": 2**31}
        )
        assert refused.status_code == 422
        assert "memory_bytes: 1073741824 at most on this service; got 2147483648" in refused.text
        job_id = stage.submit(memory_bytes=2**29)["id"]
        (stage.queue.folder_of(job_id) / "log.txt").write_bytes(b"x" * 5 * 2**20)
        claim(stage.queue)
        stage.queue.ledger.mark_stop(job_id, 1, "memory", "0.6 GiB of 0.5")
        stage.queue.ledger.interrupted(job_id, 1, {"message": "interrupted"})
        found = samples(stage)
        assert found["dkgp_jobs_exceeded_total"] == {("deadline",): 0.0, ("memory",): 1.0}
        assert found["dkgp_jobs_folder_bytes"][()] > found["dkgp_jobs_folder_bytes_limit"][()] == 5 * 2**20
        assert stage.client.get("/healthz").json() == {"status": "folder full"}
        assert (
            stage.client.post("/v1/jobs", json={"command": "train", "options": stage.options("b")}).status_code == 429
        )
        stage.queue.prune_to(5 * 2**20)
        assert samples(stage)["dkgp_jobs_forgotten_total"] == {("age",): 0.0, ("size",): 1.0}
        assert stage.client.get("/healthz").json() == {"status": "ok"}
