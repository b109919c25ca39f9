"""Nobody gets in without the token; without one, no web page of another site does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dkgp.service.web.guard import OPEN_PATHS
from tests.service.stage import BEARER, TOKEN, Stage, staged

CLOSED = [
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/0123456789ab"),
    ("GET", "/v1/jobs/0123456789ab/events"),
    ("GET", "/v1/jobs/0123456789ab/curve"),
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
