"""Access over HTTP: tokens, their scopes, the audit log, and requests of other sites."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dkgp.errors import UsageError
from dkgp.service.access import add_token, revoke_token
from dkgp.service.settings import ServiceSettings
from dkgp.service.web import guard
from dkgp.service.web.guard import OPEN_PATHS
from tests.service.problem import claim
from tests.service.stage import BEARER, DEADLINE_SECONDS, TOKEN, Stage, served, staged

CLOSED = [
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/0123456789ab"),
    ("GET", "/v1/jobs/0123456789ab/events"),
    ("GET", "/v1/jobs/0123456789ab/curve"),
    ("GET", "/v1/jobs/0123456789ab/report"),
    ("POST", "/v1/jobs/0123456789ab/cancel"),
    ("POST", "/v1/jobs/0123456789ab/resume"),
    ("GET", "/v1/service"),
    ("GET", "/metrics"),
    ("GET", "/no/such/path"),
    ("DELETE", "/v1/jobs"),
    ("GET", "/healthz/"),
    ("GET", "//v1/jobs"),
    ("GET", "/page.js/../v1/jobs"),
]


@pytest.fixture(scope="module")
def tokenless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("tokenless"), token=None) as stage:
        yield stage


def test_every_call_needs_the_token_and_a_wrong_one_is_answered_as_none(shared: Stage) -> None:
    wrong = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN.upper()}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer \N{LATIN SMALL LETTER E WITH ACUTE}".encode()},
        {"X-Token": TOKEN, "Cookie": f"token={TOKEN}"},
    ]
    answers = set()
    for method, path in CLOSED:
        for headers in wrong:
            response = shared.anonymous().request(method, path, headers=headers)  # type: ignore[arg-type]
            assert response.status_code == 401, (method, path, headers)
            assert response.headers["www-authenticate"].startswith("Bearer")
            answers.add(response.content)
    assert len(answers) == 1
    assert shared.anonymous().get(f"/v1/jobs?token={TOKEN}").status_code == 401


def test_the_token_lets_in(shared: Stage) -> None:
    assert shared.anonymous().get("/v1/jobs", headers=BEARER).status_code == 200
    assert shared.anonymous().get("/v1/jobs", headers={"authorization": f"bearer  {TOKEN} "}).status_code == 200
    twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")]
    assert shared.anonymous().get("/v1/jobs", headers=twice).status_code == 401


def test_what_is_open_holds_no_data(stage: Stage) -> None:
    record = stage.submit(name="a-name-to-be-found")
    for path in OPEN_PATHS:
        response = stage.anonymous().get(path)
        assert response.status_code == 200, path
        for secret in (record["id"], "a-name-to-be-found", str(stage.root), TOKEN):
            assert secret not in response.text, path


def test_the_token_is_never_logged(stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    def fail(**arguments: Any) -> Any:
        raise RuntimeError("a fault made for this test")

    monkeypatch.setattr(stage.queue, "list", fail)
    with caplog.at_level(logging.DEBUG):
        assert stage.client.get("/v1/jobs").status_code == 500
        stage.anonymous().get("/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}x"})
    assert "a fault made for this test" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8780", "127.0.0.1:1", "[::1]:8780", "LOCALHOST:9", "127.1.2.3"]
)
def test_without_a_token_this_machine_gets_in(tokenless: Stage, host: str) -> None:
    own = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert tokenless.client.get("/v1/jobs", headers={"host": host}).status_code == 200
    response = tokenless.client.post("/v1/jobs", json={"command": "train", "options": {}}, headers=own)
    assert response.status_code == 422


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8780"},
        {"host": "localhost.evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost@evil.example"},
        {"host": "evil.example/localhost"},
        {"host": "10.0.0.1:8780"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1:87800"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_without_a_token_other_sites_stay_out(tokenless: Stage, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("GET", "/v1/service"), ("GET", "/metrics")):
        response = tokenless.client.request(method, path, headers=headers)
        assert response.status_code == 403, (method, path)
        assert response.json()["error"]["type"] == "ForeignRequest"
    # A link to the page may stand anywhere, but by its own name alone.
    assert tokenless.client.get("/", headers=headers).status_code == (403 if "host" in headers else 200)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_form_can_send_is_refused(tokenless: Stage, kind: str) -> None:
    body = b'{"command": "train", "options": {}}'
    response = tokenless.client.post("/v1/jobs", content=body, headers={"content-type": kind} if kind else {})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_no_other_site_is_told_that_it_may_read(tokenless: Stage) -> None:
    for response in (tokenless.client.get("/v1/jobs"), tokenless.client.options("/v1/jobs")):
        assert not [name for name in response.headers if name.startswith("access-control")]
        assert response.headers["cross-origin-resource-policy"] == "same-origin"


SECRET_NAME = "merger-with-acme"


@dataclass
class People:
    """A service, and one who shows each kind of token."""

    stage: Stage
    tokens: dict[str, str]

    def client(self, name: str) -> httpx.Client:
        return self.stage.anonymous(Authorization=f"Bearer {self.tokens[name]}")

    def submit(self, name: str, out: str, **more: Any) -> httpx.Response:
        return self.client(name).post(
            "/v1/jobs", json={"command": "train", "options": self.stage.options(out), "name": SECRET_NAME, **more}
        )

    def audit(self) -> list[dict[str, Any]]:
        text = (self.stage.queue.folder / "audit.jsonl").read_text()
        for token in self.tokens.values():
            assert token not in text
        assert SECRET_NAME not in text
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    with staged(tmp_path) as stage:
        made = {
            name: add_token(stage.queue.folder, name, scope)[0]
            for name, scope in (("alice", "submit"), ("bob", "submit"), ("prometheus", "read"), ("root2", "admin"))
        }
        yield People(stage, {"admin": TOKEN, **made})


def calls(job_id: str) -> dict[str, tuple[str, str]]:
    return {
        "list": ("GET", "/v1/jobs"),
        "record": ("GET", f"/v1/jobs/{job_id}"),
        "events": ("GET", f"/v1/jobs/{job_id}/events"),
        "curve": ("GET", f"/v1/jobs/{job_id}/curve"),
        "report": ("GET", f"/v1/jobs/{job_id}/report"),
        "resume": ("POST", f"/v1/jobs/{job_id}/resume"),
        "cancel": ("POST", f"/v1/jobs/{job_id}/cancel"),
        "service": ("GET", "/v1/service"),
        "metrics": ("GET", "/metrics"),
    }


CALLS = ("list", "record", "events", "curve", "report", "resume", "cancel", "service", "metrics")
# Of a job that waits and is alice's. 409: allowed, and there is nothing to resume; its report is missing for all.
EXPECTED = {
    "alice": (200, 200, 200, 200, 404, 409, 200, 200, 403),
    "bob": (200, 404, 404, 404, 404, 404, 404, 200, 403),
    "prometheus": (200, 200, 403, 403, 403, 403, 403, 200, 200),
    "root2": (200, 200, 200, 200, 404, 409, 200, 200, 200),
    "admin": (200, 200, 200, 200, 404, 409, 200, 200, 200),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_call_by_every_scope(people: People, name: str) -> None:
    job_id = people.submit("alice", "a.zarr").json()["id"]
    client = people.client(name)
    answers = {call: client.request(method, path) for call, (method, path) in calls(job_id).items()}
    expected = dict(zip(CALLS, EXPECTED[name], strict=True))
    assert {call: answer.status_code for call, answer in answers.items()} == expected
    was_cancelled = people.stage.queue.get(job_id).state == "cancelled"
    assert was_cancelled == (expected["cancel"] == 200)
    assert answers["service"].json()["caller"]["name"] == name
    if name == "bob":
        # Nobody can tell somebody else's job from none.
        other = client.get("/v1/jobs/0123456789ab")
        assert answers["record"].text.replace(job_id, "0123456789ab") == other.text
        assert answers["list"].json() == {"jobs": [], "counts": dict.fromkeys(answers["list"].json()["counts"], 0)}
        assert client.get(f"/v1/jobs?before={job_id}").status_code == 404
    if name == "prometheus":
        for answer in (answers["list"], answers["record"], answers["service"]):
            assert SECRET_NAME not in answer.text
            assert "alice" not in answer.text
            assert str(people.stage.root) not in answer.text
        assert answers["record"].json()["state"] == "queued"
        assert people.submit("prometheus", "p.zarr").status_code == 403
        assert people.stage.queue.counts()["queued"] == 1


def test_a_failed_job_is_shown_to_a_reader_without_its_reasons(people: People) -> None:
    from dkgp.commands.reporting.jobs import job_tables, jobs_tables

    job_id = people.submit("alice", "a.zarr").json()["id"]
    claim(people.stage.queue)
    error = {"type": "StoreError", "message": f"no {SECRET_NAME} there", "exit_code": 3, "checkpoint": SECRET_NAME}
    people.stage.queue.ledger.finish(job_id, 1, "failed", 3, error=error)
    record = people.client("prometheus").get(f"/v1/jobs/{job_id}").json()
    assert (record["state"], record["error"]["type"], record["exit_code"]) == ("failed", "StoreError", 3)
    assert SECRET_NAME not in str(record)
    # As `dkgp status` and `dkgp jobs` print them.
    assert job_tables(record)
    assert jobs_tables(people.client("prometheus").get("/v1/jobs").json())


def test_a_token_for_metrics_that_the_service_was_given_reads_and_no_more(tmp_path: Path) -> None:
    with staged(tmp_path, metrics_token="for-prometheus-alone") as stage:
        job_id = stage.submit()["id"]
        client = stage.anonymous(Authorization="Bearer for-prometheus-alone")
        assert client.get("/metrics").status_code == 200
        assert client.get(f"/v1/jobs/{job_id}").json()["options"] == {}
        assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 403
        assert client.get("/v1/service").json()["caller"] == {"name": "metrics", "scope": "read"}
    with pytest.raises(UsageError, match="must differ from the service's token"):
        ServiceSettings(str(tmp_path), token=TOKEN, metrics_token=TOKEN)


def test_a_job_has_its_submitters_name_and_keys_are_of_one_submitter(people: People) -> None:
    key = {"Idempotency-Key": "the-same"}
    bodies = [{"command": "train", "options": people.stage.options(out)} for out in ("a.zarr", "b.zarr")]
    first = people.client("alice").post("/v1/jobs", json=bodies[0], headers=key)
    second = people.client("bob").post("/v1/jobs", json=bodies[1], headers=key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert [answer.json()["owner"] for answer in (first, second)] == ["alice", "bob"]
    assert people.client("alice").post("/v1/jobs", json=bodies[0], headers=key).status_code == 200
    assert people.client("admin").get("/v1/jobs").json()["counts"]["queued"] == 2
    assert people.client("bob").get("/v1/jobs").json()["counts"]["queued"] == 1


def test_a_place_that_is_taken_tells_a_stranger_neither_whose_nor_which(people: People) -> None:
    job_id = people.submit("alice", "shared/a.zarr").json()["id"]
    refused = people.submit("bob", "shared/a.zarr/below")
    assert refused.status_code == 409
    assert "another user's job" in refused.text
    assert job_id not in refused.text
    assert "alice" not in refused.text
    assert job_id in people.submit("alice", "shared/a.zarr").text


def test_a_job_from_before_there_were_owners_is_the_admins(people: People) -> None:
    job, _ = people.stage.queue.submit("train", people.stage.options("old.zarr"))
    assert job.owner is None
    assert people.client("admin").get(f"/v1/jobs/{job.id}").json()["owner"] is None
    assert people.client("alice").get(f"/v1/jobs/{job.id}").status_code == 404
    assert people.client("prometheus").get(f"/v1/jobs/{job.id}").json()["state"] == "queued"
    assert people.client("admin").post(f"/v1/jobs/{job.id}/cancel").status_code == 200


def test_a_revoked_token_is_refused_at_once_and_its_stream_ends(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people.stage.service.hub, "_keep_alive_seconds", 0.1)
    job_id = people.submit("alice", "a.zarr").json()["id"]
    headers = {"Authorization": f"Bearer {people.tokens['alice']}"}
    with (
        served(people.stage) as url,
        httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=DEADLINE_SECONDS) as client,
        client.stream("GET", f"/v1/jobs/{job_id}/events?follow=true") as response,
    ):
        lines = response.iter_lines()
        assert "queued" in next(lines)
        revoke_token(people.stage.queue.folder, "alice")
        assert client.get("/v1/jobs").status_code == 401
        # Ends by itself, though the job waits.
        list(lines)
    assert people.stage.queue.get(job_id).state == "queued"


def test_the_audit_log_has_who_did_what_and_what_came_of_it(people: People) -> None:
    job_id = people.submit("alice", "a.zarr").json()["id"]
    people.client("bob").post(f"/v1/jobs/{job_id}/cancel")
    people.client("prometheus").post(f"/v1/jobs/{job_id}/cancel")
    people.stage.anonymous(Authorization="Bearer wrong-wrong-wrong").get(f"/v1/jobs/{people.tokens['alice']}")
    for _ in range(3):
        people.client("prometheus").get("/metrics")
    people.stage.anonymous().get("/healthz")
    people.client("alice").get(f"/v1/jobs/{job_id}")
    lines = people.audit()
    told = [(line["who"], line["scope"], line["what"], line["job"], line["status"]) for line in lines]
    assert told == [
        ("alice", "submit", "POST /v1/jobs", job_id, 201),
        ("bob", "submit", "POST /v1/jobs/{job_id}/cancel", job_id, 404),
        ("prometheus", "read", "POST /v1/jobs/{job_id}/cancel", job_id, 403),
        (None, None, "GET other", None, 401),
        ("prometheus", "read", "GET /metrics", None, 200),
        ("alice", "submit", "GET /v1/jobs/{job_id}", job_id, 200),
    ]
    assert {line["from"] for line in lines} == {"127.0.0.1"}


def test_a_stranger_cannot_push_the_others_out_of_the_log(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LINES_PER_MINUTE", 5)
    for _ in range(50):
        assert people.stage.anonymous().post("/v1/jobs").status_code == 401
    people.submit("alice", "a.zarr")
    lines = people.audit()
    assert [line["status"] for line in lines] == [401] * 5 + [201]
    assert lines[-1]["left_out"] == 45


def test_no_token_can_push_the_others_out_of_the_log(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LINES_PER_MINUTE", 5)
    monkeypatch.setattr(guard, "CHANGES_PER_MINUTE", 7)
    first = people.submit("alice", "a.zarr").json()["id"]
    for _ in range(20):
        assert people.client("prometheus").post(f"/v1/jobs/{first}/cancel").status_code == 403
    for number in range(20):
        assert people.client("bob").get(f"/v1/jobs/{number:012x}").status_code == 404
    # The same submission again may change nothing, and is answered like the first.
    for _ in range(20):
        body = {"command": "train", "options": people.stage.options("b.zarr")}
        people.client("bob").post("/v1/jobs", json=body, headers={"idempotency-key": "b"})
    people.submit("alice", "c.zarr")
    lines = people.audit()
    assert [line["who"] for line in lines] == ["alice"] + ["prometheus"] * 5 + ["bob"] * 12 + ["alice"]
    assert sum(line.get("left_out", 0) for line in lines) == 15 + 15 + 13
    later = time.monotonic() + 61.0
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: later))
    people.client("prometheus").post(f"/v1/jobs/{first}/cancel")
    assert people.audit()[-1]["who"] == "prometheus"
