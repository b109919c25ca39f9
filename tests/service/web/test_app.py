"""The calls of the HTTP service, each of its status codes, and that its own description fits what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dkgp
from dkgp.errors import StorageError
from dkgp.service.queue.records import STATES
from dkgp.service.specification import COMMANDS
from tests.service.problem import claim
from tests.service.stage import Stage, staged


def error(response: Any) -> tuple[int, str]:
    """The status and the message; every error has the one shape."""
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"type", "message"}
    return response.status_code, document["error"]["message"]


def test_a_job_is_taken_and_found_again(stage: Stage) -> None:
    options = stage.options(solver={"tolerance": 1e-3})
    response = stage.client.post(
        "/v1/jobs", json={"command": "train", "options": options, "name": "the first", "deadline_seconds": 60}
    )
    assert response.status_code == 201
    record = response.json()
    assert re.fullmatch("[0-9a-f]{12}", record["id"])
    assert response.headers["location"] == f"/v1/jobs/{record['id']}"
    assert (record["state"], record["name"], record["deadline_seconds"]) == ("queued", "the first", 60.0)
    assert record["options"] == options
    assert stage.supervisor.times == 1
    assert stage.client.get(f"/v1/jobs/{record['id']}").json() == record
    listed = stage.client.get("/v1/jobs").json()
    assert [entry["id"] for entry in listed["jobs"]] == [record["id"]]
    assert listed["counts"] == {**dict.fromkeys(STATES, 0), "queued": 1}
    assert "options" not in listed["jobs"][0]


def test_a_key_that_was_seen_returns_its_job(stage: Stage) -> None:
    body = {"command": "train", "options": stage.options()}
    first = stage.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    again = stage.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = {"command": "train", "options": stage.options("other.zarr")}
    status, message = error(stage.client.post("/v1/jobs", json=other, headers={"Idempotency-Key": "k"}))
    assert status == 409
    assert "key" in message
    assert error(stage.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k" * 201}))[0] == 422


def test_pages_of_jobs(stage: Stage) -> None:
    ids = [stage.submit(f"{i}.zarr")["id"] for i in range(5)]
    first = [entry["id"] for entry in stage.client.get("/v1/jobs?limit=2").json()["jobs"]]
    second = [entry["id"] for entry in stage.client.get(f"/v1/jobs?limit=10&before={first[-1]}").json()["jobs"]]
    assert first + second == ids[::-1]
    stage.client.post(f"/v1/jobs/{ids[0]}/cancel")
    chosen = stage.client.get("/v1/jobs?state=cancelled&state=done").json()
    assert [entry["id"] for entry in chosen["jobs"]] == [ids[0]]
    assert stage.client.get("/v1/jobs?state=queued").json()["counts"]["cancelled"] == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=0", 422),
        ("limit=1001", 422),
        ("limit=x", 422),
        ("state=odd", 422),
        ("before=0123456789ab", 404),
        ("before=..", 404),
    ],
)
def test_bad_queries(shared: Stage, query: str, status: int) -> None:
    found, message = error(shared.client.get(f"/v1/jobs?{query}"))
    assert found == status
    assert message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "JSON object"),
        ("train", "JSON object"),
        ({}, "command: this option is required, and missing"),
        ({"command": "rm", "options": {}}, "got 'rm'"),
        (
            {"command": ["train"], "options": {}},
            "'krige blocks' or 'krige simulate'; got ['train']",
        ),
        ({"command": "train"}, "options: this option is required, and missing"),
        ({"command": "train", "options": []}, "options: expected an object; got []"),
        ({"command": "train", "options": {}}, "dataset"),
        ({"command": "train", "options": {}, "queue": 1}, "queue: a submission has no such option"),
        ({"command": "train", "options": {}, "name": ""}, "name: expected text of length >= 1; got ''"),
        ({"command": "train", "options": {}, "name": "x" * 201}, "name: expected text of length <= 200"),
        ({"command": "train", "options": {}, "name": "two\nlines"}, "name: expected text without control characters"),
        ({"command": "train", "options": {}, "name": 5}, "name: expected a valid string; got 5"),
        (
            {"command": "train", "options": {}, "deadline_seconds": 0},
            "expected a number > 0.0; got 0",
        ),
        ({"command": "train", "options": {}, "deadline_seconds": True}, "got True"),
        ({"command": "train", "options": {}, "deadline_seconds": "60"}, "got '60'"),
    ],
)
def test_submissions_that_do_not_validate(shared: Stage, body: Any, words: str) -> None:
    status, message = error(shared.client.post("/v1/jobs", json=body))
    assert status == 422
    assert words in message


def test_a_deadline_above_the_services_own(tmp_path: Path) -> None:
    with staged(tmp_path, job_deadline_seconds=3600.0) as stage:
        body = {"command": "train", "options": stage.options(), "deadline_seconds": 3601}
        status, message = error(stage.client.post("/v1/jobs", json=body))
        assert status == 422
        assert "3600 at most on this service; got 3601" in message
        assert stage.client.post("/v1/jobs", json={**body, "deadline_seconds": 3600}).status_code == 201


@pytest.mark.parametrize(
    "more",
    [
        {"out": "relative.zarr"},
        {"unknown": 1},
        {"cluster": {"kind": "none"}},
        {"overwrite": "yes"},
        {"solver": {"tolerance": "1e-3"}},
        {"solver": {"tolerance": -1.0}},
        {"solver": {"seed": 1.5}},
        {"out": 7},
    ],
)
def test_options_that_do_not_validate(shared: Stage, more: dict[str, Any]) -> None:
    body = {"command": "train", "options": {**shared.options(), **more}}
    status, message = error(shared.client.post("/v1/jobs", json=body))
    assert status == 422
    assert next(iter(more)) in message
    assert sum(shared.queue.counts().values()) == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["dataset", "hyper", "out", "solver", "cluster", "model", "prediction", "variance", "subset", "resume", "plot", "x"]
)


@given(
    command=st.sampled_from([*COMMANDS, "serve"]),
    options=st.dictionaries(NAMES, VALUES | st.sampled_from(["/etc/x", "s3://b/x", "relative"]), max_size=5),
    more=st.dictionaries(st.sampled_from(["name", "deadline_seconds", "y"]), VALUES, max_size=2),
)
def test_whatever_is_submitted_is_refused_in_words(
    shared: Stage, command: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    """No JSON makes the service stumble: outside its roots, nothing at all is taken."""
    response = shared.client.post("/v1/jobs", json={"command": command, "options": options, **more})
    status, message = error(response)
    assert status in (400, 403, 422)
    assert message


def test_paths_outside_the_roots(stage: Stage, tmp_path: Path) -> None:
    (stage.root / "link").symlink_to(tmp_path)
    outside = [
        "/etc/passwd",
        str(tmp_path / "model.zarr"),
        str(stage.root) + "-evil/model.zarr",
        f"{stage.root}/../model.zarr",
        f"{stage.root}/link/model.zarr",
        f"{stage.root}/link/../data/model.zarr",
        f"file://{tmp_path}/model.zarr",
        "s3://bucket/model.zarr",
        "http://169.254.169.254/latest/meta-data",
        str(stage.queue.folder / "queue.sqlite"),
    ]
    for field in ("dataset", "hyper", "out", "checkpoint", "warm_start"):
        for path in outside:
            body = {"command": "train", "options": stage.options(**{field: path})}
            response = stage.client.post("/v1/jobs", json=body)
            assert response.status_code == 403, (field, path, response.text)
            assert f"'{field}'" in error(response)[1]
    chained = {"command": "train", "options": stage.options(out=f"simplecache::file://{stage.root}/model.zarr")}
    assert stage.client.post("/v1/jobs", json=chained).status_code in (403, 422)
    for command, field in (("predict", "model"), ("tune", "out"), ("evaluate", "prediction")):
        fields = {
            "predict": ("model", "dataset", "out"),
            "tune": ("dataset", "out"),
            "evaluate": ("prediction", "dataset"),
        }
        options = {name: str(stage.root / name) for name in fields[command]} | {field: "/etc/passwd"}
        assert stage.client.post("/v1/jobs", json={"command": command, "options": options}).status_code == 403
    for path in outside:
        for ingestion in ({"sources": [path]}, {"sources": [str(stage.root / "t.csv")], "like": path}):
            options = {"ingestion": {"targets": ["y"], **ingestion}, "out": str(stage.root / "fit")}
            response = stage.client.post("/v1/jobs", json={"command": "fit", "options": options})
            assert response.status_code == 403, (path, response.text)
            assert "'sources'" in error(response)[1]
    assert sum(stage.queue.counts().values()) == 0


def test_the_queue_itself_is_outside_its_roots(tmp_path: Path) -> None:
    with staged(tmp_path, roots=(str(tmp_path),)) as stage:
        assert stage.client.post("/v1/jobs", json={"command": "train", "options": stage.options()}).status_code == 201
        body = {"command": "train", "options": stage.options(out=str(stage.queue.folder / "jobs" / "model.zarr"))}
        assert error(stage.client.post("/v1/jobs", json=body))[0] == 403


def test_two_jobs_for_one_output(stage: Stage) -> None:
    stage.submit("one.zarr")
    status, message = error(
        stage.client.post("/v1/jobs", json={"command": "train", "options": stage.options("one.zarr")})
    )
    assert status == 409
    assert "one.zarr" in message


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    with staged(tmp_path, max_queued=2) as stage:
        stage.submit("1.zarr")
        stage.submit("2.zarr")
        response = stage.client.post("/v1/jobs", json={"command": "train", "options": stage.options("3.zarr")})
        assert error(response)[0] == 429
        assert int(response.headers["retry-after"]) > 0


def test_cancel_and_resume(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    woken = stage.supervisor.times
    assert error(stage.client.post(f"/v1/jobs/{job_id}/resume"))[0] == 409
    cancelled = stage.client.post(f"/v1/jobs/{job_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert error(stage.client.post(f"/v1/jobs/{job_id}/cancel"))[0] == 409
    resumed = stage.client.post(f"/v1/jobs/{job_id}/resume").json()
    assert (resumed["state"], resumed["resume"]) == ("queued", True)
    assert stage.supervisor.times == woken + 2


def test_a_job_outside_todays_roots_is_not_resumed(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        job_id = stage.submit()["id"]
        stage.client.post(f"/v1/jobs/{job_id}/cancel")
    (tmp_path / "elsewhere").mkdir()
    with staged(tmp_path, roots=(str(tmp_path / "elsewhere"),)) as stage:
        assert error(stage.client.post(f"/v1/jobs/{job_id}/resume"))[0] == 403
        assert stage.client.get(f"/v1/jobs/{job_id}").json()["state"] == "cancelled"


def reported(stage: Stage, report: Any) -> Any:
    """Finish a job whose document names a report; return the service's answer for this report."""
    stage.submit(f"{len(stage.client.get('/v1/jobs').json()['jobs'])}.zarr")
    job = claim(stage.queue)
    assert job is not None
    assert stage.queue.ledger.finish(job.id, 1, "done", 0, document={"command": "fit", "report": report})
    return stage.client.get(f"/v1/jobs/{job.id}/report")


def test_the_report_of_a_job_is_saved_and_not_shown(stage: Stage) -> None:
    page = stage.root / "fit" / "report.html"
    page.parent.mkdir()
    page.write_text("<h1>price</h1>")
    response = reported(stage, str(page))
    assert (response.status_code, response.text) == (200, "<h1>price</h1>")
    assert re.fullmatch(r'attachment; filename="report-[0-9a-f]{12}.html"', response.headers["content-disposition"])
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["x-content-type-options"] == "nosniff"


def test_no_other_file_is_returned_as_a_report(stage: Stage, tmp_path: Path) -> None:
    secret, root = tmp_path / "secret.html", stage.root
    secret.write_text("secret")
    (root / "data.csv").write_text("secret")
    (root / "folder.html").mkdir()
    os.mkfifo(root / "pipe.html")
    (root / "link.html").symlink_to(secret)
    (root / "linked").symlink_to(tmp_path)
    (tmp_path / "queue" / "own.html").write_text("secret")
    outside = (secret, root / "link.html", root / "linked" / "secret.html", tmp_path / "queue" / "own.html")
    for path in (*outside, f"{root}/../secret.html", f"{root}/%2e%2e/secret.html", "secret.html", "file:///etc/a.html"):
        response = reported(stage, str(path))
        assert response.status_code in (403, 404), path
        assert "secret" not in response.json()["error"]["message"].replace("secret.html", "")
    for path in (
        root / "data.csv",
        root / "folder.html",
        root / "pipe.html",
        root / "missing.html",
        None,
        5,
        ["x.html"],
    ):
        assert error(reported(stage, path if path is None or isinstance(path, int | list) else str(path)))[0] == 404


def test_a_report_outside_todays_roots_is_not_returned(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = stage.root / "report.html"
        page.write_text("page")
        response = reported(stage, str(page))
        assert response.status_code == 200
        path = response.request.url.path
    (tmp_path / "elsewhere").mkdir()
    with staged(tmp_path, roots=(str(tmp_path / "elsewhere"),)) as stage:
        assert error(stage.client.get(path))[0] == 403


@pytest.mark.parametrize("job_id", ["0123456789ab", "0", "..", "%2e%2e", "0123456789AB", "0123456789ab%00", "a" * 5000])
def test_jobs_that_are_not_there(shared: Stage, job_id: str) -> None:
    calls = (
        *(("GET", path) for path in ("", "/events", "/curve", "/report")),
        ("POST", "/cancel"),
        ("POST", "/resume"),
    )
    for method, path in calls:
        assert shared.client.request(method, f"/v1/jobs/{job_id}{path}").status_code == 404, (method, path)


def test_paths_and_methods_that_are_not_there(shared: Stage) -> None:
    status, message = error(shared.client.get("/v2/jobs"))
    assert (status, "/docs" in message) == (404, True)
    response = shared.client.delete("/v1/jobs")
    assert error(response)[0] == 405
    assert "GET" in response.headers["allow"] or "POST" in response.headers["allow"]
    assert error(shared.client.get("/v1/jobs/"))[0] == 404


def test_a_service_that_stops_takes_nothing_more(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    stage.service.close()
    for path in ("/v1/jobs", f"/v1/jobs/{job_id}/cancel", f"/v1/jobs/{job_id}/resume"):
        response = stage.client.post(path, json={"command": "train", "options": stage.options("2.zarr")})
        assert error(response)[0] == 503
        assert int(response.headers["retry-after"]) > 0
    assert error(stage.client.get(f"/v1/jobs/{job_id}/events?follow=true"))[0] == 503
    assert stage.client.get(f"/v1/jobs/{job_id}").status_code == 200
    health = stage.anonymous().get("/healthz")
    assert (health.status_code, health.json()) == (503, {"status": "stopping"})


def test_health(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.anonymous().get("/healthz").json() == {"status": "ok"}

    def unreadable() -> Any:
        raise StorageError("the queue cannot be read")

    monkeypatch.setattr(stage.queue, "counts", unreadable)
    assert stage.anonymous().get("/healthz").status_code == 503


def test_health_tells_of_a_full_disk(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 2**20})())
    health = stage.anonymous().get("/healthz")
    assert (health.status_code, health.json()) == (200, {"status": "disk full"})


def test_a_full_disk_is_said_and_may_pass(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **named: Any) -> Any:
        raise StorageError("the disk is full; free some space")

    monkeypatch.setattr(stage.queue, "submit", full)
    response = stage.client.post("/v1/jobs", json={"command": "train", "options": stage.options()})
    assert error(response) == (503, "the disk is full; free some space")


def test_what_nobody_foresaw_shows_no_traceback(
    shared: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise ZeroDivisionError("words from inside")

    monkeypatch.setattr(shared.queue, "counts", fail)
    response = shared.client.get("/v1/service")
    status, message = error(response)
    assert status == 500
    assert "words from inside" not in response.text
    assert "Traceback" not in response.text
    number = re.findall(r"[0-9a-f]{8}", message)
    assert f"error {number[0]} in GET '/v1/service'" in caplog.text
    assert "words from inside" in caplog.text


def test_what_the_service_says_of_itself(shared: Stage) -> None:
    found = shared.client.get("/v1/service").json()
    assert found["version"] == dkgp.__version__
    assert found["roots"] == [str(shared.root)]
    assert found["limits"]["max_queued"] == 10_000
    assert found["cluster"] == "auto"
    assert found["counts"]["queued"] == 0


def test_every_answer_carries_the_security_headers(shared: Stage) -> None:
    for response in (
        shared.client.get("/"),
        shared.client.get("/v1/jobs"),
        shared.client.get("/nothing"),
        shared.anonymous().get("/v1/jobs"),
        shared.client.post("/v1/jobs", content=b" " * 2**21),
    ):
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cache-control"] == "no-store"


def test_answers_fit_the_description(stage: Stage, shared: Stage) -> None:
    """Answers match /openapi.json, which lists every status seen in these tests."""
    described = shared.anonymous().get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    first, second = stage.submit("1.zarr")["id"], stage.submit("2.zarr", name="x")["id"]
    with contextlib.closing(stage.events(first)) as events_of_first:
        events_of_first.write("progress", label="train", column_passes=1.0, gradient_inf_norm=0.5, tolerance=1e-3)
    stage.client.post(f"/v1/jobs/{second}/cancel")
    calls = [
        ("get", "/v1/jobs", "/v1/jobs", None),
        ("get", "/v1/jobs/{job_id}", f"/v1/jobs/{first}", None),
        ("get", "/v1/jobs/{job_id}", f"/v1/jobs/{second}", None),
        ("get", "/v1/jobs/{job_id}", "/v1/jobs/0123456789ab", None),
        ("get", "/v1/jobs/{job_id}/curve", f"/v1/jobs/{first}/curve", None),
        ("get", "/v1/jobs/{job_id}/report", f"/v1/jobs/{first}/report", None),
        ("post", "/v1/jobs", "/v1/jobs", {"command": "train", "options": stage.options("3.zarr")}),
        ("post", "/v1/jobs", "/v1/jobs", {"command": "train", "options": stage.options("3.zarr")}),
        ("post", "/v1/jobs", "/v1/jobs", {"command": "train", "options": {}}),
        ("post", "/v1/jobs", "/v1/jobs", {"command": "train", "options": stage.options(out="/x")}),
        ("post", "/v1/jobs/{job_id}/cancel", f"/v1/jobs/{second}/cancel", None),
        ("post", "/v1/jobs/{job_id}/resume", f"/v1/jobs/{second}/resume", None),
        ("get", "/v1/service", "/v1/service", None),
        ("get", "/healthz", "/healthz", None),
    ]
    seen = set()
    for method, template, path, body in calls:
        response = stage.client.request(method, path, json=body)
        promised = described["paths"][template][method]["responses"][str(response.status_code)]
        schema = promised["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), {**schema, "components": described["components"]})
        seen.add(response.status_code)
    assert seen == {200, 201, 403, 404, 409, 422}
    promised = set(described["paths"]["/v1/jobs"]["post"]["responses"])
    assert promised >= {"200", "201", "400", "401", "403", "408", "409", "413", "415", "422", "429", "503"}


def test_the_described_submission_is_what_is_taken(stage: Stage, shared: Stage) -> None:
    described = shared.anonymous().get("/openapi.json").json()
    schema = described["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "$ref" not in json.dumps(schema)
    good = {
        "command": "train",
        "options": stage.options(solver={"tolerance": 1e-3, "block_size": "auto"}),
        "name": None,
    }
    jsonschema.validate(good, schema)
    for bad in (
        {**good, "command": "rm"},
        {**good, "extra": 1},
        {**good, "options": {**good["options"], "unknown": 1}},  # type: ignore[dict-item]
        {**good, "options": {**good["options"], "solver": {"tolerance": "1e-3"}}},  # type: ignore[dict-item]
        {"command": "train"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
        assert stage.client.post("/v1/jobs", json=bad).status_code == 422
    assert stage.client.post("/v1/jobs", json=good).status_code == 201


def test_the_calls_are_described_for_people(shared: Stage) -> None:
    page = shared.anonymous().get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for words in ("POST /v1/jobs", "/v1/jobs/{job_id}/events", "train job: options", "solver.tolerance", "JobRecord"):
        assert words in page.text
    assert not re.findall(r"(?:src|href)=\"(?!/)", page.text)
    assert "<script" not in page.text


def test_mistakes_of_parameters_are_told_up_to_a_number(shared: Stage) -> None:
    response = shared.client.get("/v1/jobs?" + "state=x&" * 300)
    assert response.status_code == 422
    assert response.text.count("Input should be") == 20


def test_missing_inputs_are_refused_unless_a_job_under_way_writes_them(stage: Stage) -> None:
    body = {"command": "train", "options": stage.options()}
    (stage.root / "hyper.json").unlink()
    status, message = error(stage.client.post("/v1/jobs", json=body))
    assert status == 422
    assert f"'hyper': there is nothing at '{stage.root / 'hyper.json'}'" in message
    assert "no queued or running job writes it" in message
    tuning = {"dataset": str(stage.root / "train.zarr"), "out": str(stage.root / "hyper.json")}
    tuned = stage.client.post("/v1/jobs", json={"command": "tune", "options": tuning})
    assert tuned.status_code == 201
    assert stage.client.post("/v1/jobs", json=body).status_code == 201


def test_a_file_inside_an_output_under_way_is_no_missing_input(stage: Stage) -> None:
    stage.submit("made.zarr")
    fit = {"prediction": str(stage.root / "made.zarr/inside"), "dataset": str(stage.root / "train.zarr")}
    assert stage.client.post("/v1/jobs", json={"command": "evaluate", "options": fit}).status_code == 201


def test_a_pattern_of_sources_is_left_to_the_job(stage: Stage) -> None:
    options = {"sources": [str(stage.root / "part-*.csv")], "targets": ["y"], "out": str(stage.root / "o.zarr")}
    answer = stage.client.post("/v1/jobs", json={"command": "ingest", "options": options})
    assert answer.status_code in (201, 422)
    assert "there is nothing" not in answer.text
