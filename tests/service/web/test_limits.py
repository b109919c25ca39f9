"""Bodies that are too large, too slow or no JSON are refused before anything is done with them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.service.web.answers import MalformedError
from dkgp.service.web.limits import DEEPEST_JSON, BodyLimit, parse_json
from tests.service.stage import BEARER, Stage, served

LIMIT = 2**20


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "beyond the range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a": 1, "a": 2}', "a name twice"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'["\\u0000"]', "NUL"),
        (b"[" * 200_000, "nested deeper|not JSON"),
        (b"[" * 200_000 + b"]" * 200_000, "nested deeper"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested deeper"),
        (b"[" * DEEPEST_JSON + b"1" + b"]" * DEEPEST_JSON, "nested deeper"),
    ],
)
def test_what_is_no_plain_json_is_malformed(shared: Stage, body: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        parse_json(body)
    response = shared.client.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "MalformedError"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON)
def test_plain_json_is_read_as_every_reader_reads_it(value: Any) -> None:
    text = json.dumps(value)
    if "\\u0000" in text:
        with pytest.raises(MalformedError):
            parse_json(text.encode())
    else:
        assert parse_json(text.encode()) == json.loads(text)


def test_the_deepest_json_that_is_taken() -> None:
    depth = DEEPEST_JSON - 1
    assert parse_json(b"[" * depth + b"]" * depth) == json.loads("[" * depth + "]" * depth)


def test_a_body_at_the_limit_is_read_and_one_above_is_not(shared: Stage) -> None:
    def post(size: int) -> httpx.Response:
        body = b'{"command": "train", "options": {}, "name": "' + b"x" * size
        body = body[: size - 2] + b'"}'
        assert len(body) == size
        return shared.client.post("/v1/jobs", content=body, headers={"content-type": "application/json"})

    assert post(LIMIT).status_code == 422
    refused = post(LIMIT + 1)
    assert refused.status_code == 413
    assert "1,048,576 bytes" in refused.json()["error"]["message"]
    assert shared.queue.counts()["queued"] == 0


def test_large_bodies_are_refused_over_a_connection(shared: Stage) -> None:
    def chunks(number: int) -> Iterator[bytes]:
        for _ in range(number):
            yield b" " * 65536

    headers = {**BEARER, "content-type": "application/json"}
    with served(shared) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        # Announced, in chunks without a length, and more than is taken in to be polite.
        assert client.post("/v1/jobs", content=b" " * 3 * LIMIT).status_code == 413
        assert client.post("/v1/jobs", content=chunks(64)).status_code == 413
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port), timeout=30) as connection:
            request = f"POST /v1/jobs HTTP/1.1\r\nhost: {address.host}\r\nauthorization: {BEARER['Authorization']}\r\n"
            connection.sendall(f"{request}content-length: {10**12}\r\n\r\n".encode())
            assert connection.recv(200).startswith(b"HTTP/1.1 413 ")
        assert client.get("/v1/jobs").json()["jobs"] == []


def test_strangers_bodies_are_not_even_read(shared: Stage) -> None:
    with served(shared) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port), timeout=30) as connection:
            connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
            assert connection.recv(200).startswith(b"HTTP/1.1 401 ")


def run_limited(*messages: dict[str, Any], seconds: float = 30.0, headers: Any = ()) -> tuple[int | None, bytes | None]:
    """What a limit of 10 bytes answers by itself, and what it lets through."""
    seen: list[bytes] = []
    answered: list[int] = []
    waiting = iter(messages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        assert (await receive())["type"] == "http.disconnect"

    async def receive() -> Any:
        message = next(waiting, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.append(message["status"])

    asyncio.run(BodyLimit(app, 10, seconds)({"type": "http", "path": "/v1/jobs", "headers": headers}, receive, send))
    return (answered[0] if answered else None), (seen[0] if seen else None)


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_pieces_are_counted_together() -> None:
    gone = {"type": "http.disconnect"}
    assert run_limited(piece(b"12345"), piece(b""), piece(b"67890", False), gone) == (None, b"1234567890")
    assert run_limited(piece(b"12345"), piece(b"67890"), piece(b"1"), gone) == (413, None)
    # A length that lies low does not help; one that lies high is refused at once.
    assert run_limited(piece(b"12345678901", False), gone, headers=[(b"content-length", b"3")]) == (413, None)
    assert run_limited(headers=[(b"content-length", b"99999999999")]) == (413, None)
    assert run_limited(headers=[(b"content-length", b"11"), (b"expect", b"100-continue")]) == (413, None)


def test_a_body_that_does_not_come_is_given_up() -> None:
    assert run_limited(piece(b"1"), seconds=0.05) == (408, None)
    assert run_limited(piece(b"1"), {"type": "http.disconnect"}) == (None, None)
