"""Limits of requests and of connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.service import serve
from dkgp.service.access import add_token
from dkgp.service.certificate import own_certificate
from dkgp.service.serve import listen
from dkgp.service.web import guard, limits, streaming
from dkgp.service.web.answers import MalformedError
from dkgp.service.web.limits import DEEPEST_JSON, BodyLimit, parse_json
from tests.service.stage import BEARER, DEADLINE_SECONDS, Stage, served

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
    with (
        served(shared) as url,
        httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=DEADLINE_SECONDS) as client,
    ):
        # Announced, in chunks without a length, and more than is taken in to be polite.
        assert client.post("/v1/jobs", content=b" " * 3 * LIMIT).status_code == 413
        assert client.post("/v1/jobs", content=chunks(64)).status_code == 413
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port), timeout=DEADLINE_SECONDS) as connection:
            request = f"POST /v1/jobs HTTP/1.1\r\nhost: {address.host}\r\nauthorization: {BEARER['Authorization']}\r\n"
            connection.sendall(f"{request}content-length: {10**12}\r\n\r\n".encode())
            assert connection.recv(200).startswith(b"HTTP/1.1 413 ")
        assert client.get("/v1/jobs").json()["jobs"] == []


def test_strangers_bodies_are_not_even_read(shared: Stage) -> None:
    with served(shared) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port), timeout=DEADLINE_SECONDS) as connection:
            connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
            assert connection.recv(200).startswith(b"HTTP/1.1 401 ")


def run_limited(*messages: dict[str, Any], seconds: float = 30.0, headers: Any = ()) -> tuple[int | None, bytes | None]:
    """Return the answer of a limit of 10 bytes, and the body that it passes on."""
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


PAGES = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50
PLAIN = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF_A_HEAD = b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx-slow: "


def connected(url: str, sent: bytes = HALF_A_HEAD) -> socket.socket:
    address = httpx.URL(url)
    connection = socket.create_connection((address.host, address.port), timeout=DEADLINE_SECONDS)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def answer_of(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(2**16):
            answer += piece
    return answer


def answered(url: str, request: bytes, wrap: Callable[[socket.socket], socket.socket] | None = None) -> socket.socket:
    """A connection whose first request was answered with 200.

    On a busy machine the time for a head or a handshake can pass before this thread sends it: such connections are
    tried again.
    """
    while True:
        connection = connected(url, b"")
        with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
            connection = connection if wrap is None else wrap(connection)
            connection.sendall(request)
            if start := connection.recv(64):
                assert start.startswith(b"HTTP/1.1 200 ")
                return connection
        connection.close()


def ask_again(connection: socket.socket) -> None:
    """Require an answer to a further request, after the rest of the one before."""
    connection.sendall(PLAIN)
    received = b""
    while b"HTTP/1.1 200 " not in received:
        received += (piece := connection.recv(2**16))
        assert piece, "the connection was closed"


def trickle(connection: socket.socket) -> None:
    """Send one byte after the other until the other side closes."""
    end = time.monotonic() + DEADLINE_SECONDS
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            connection.sendall(b"a")
            time.sleep(0.05)
        raise AssertionError("the connection was not closed")


def health(url: str) -> int:
    return httpx.get(f"{url}/healthz", timeout=DEADLINE_SECONDS, trust_env=False).status_code


def test_half_a_head_is_not_waited_for(shared: Stage) -> None:
    with served(shared, head_seconds=0.5) as url:
        began = time.monotonic()
        with connected(url) as slow:
            # Trickling does not put it off.
            trickle(slow)
        assert time.monotonic() - began > 0.4


def test_what_trickles_in_after_an_answer_is_not_waited_for(shared: Stage) -> None:
    request = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
    with served(shared, head_seconds=0.5) as url, connected(url, request) as slow:
        assert slow.recv(64).startswith(b"HTTP/1.1 401 ")
        trickle(slow)


@pytest.mark.long
def test_a_client_that_pauses_between_requests_is_served(shared: Stage) -> None:
    with served(shared, head_seconds=0.3) as url, answered(url, PLAIN) as connection:
        for _ in range(2):
            time.sleep(0.4)
            ask_again(connection)


def test_a_request_at_work_has_all_the_time_it_takes(stage: Stage) -> None:
    job = stage.submit("followed.zarr")["id"]
    follow = f"GET /v1/jobs/{job}/events?follow=true HTTP/1.1\r\nhost: localhost\r\n"
    follow += f"authorization: {BEARER['Authorization']}\r\n\r\n"
    with served(stage, head_seconds=0.2) as url, answered(url, follow.encode()) as streamed:
        streamed.settimeout(0.6)
        with contextlib.suppress(TimeoutError):
            while streamed.recv(2**16):
                pass
            raise AssertionError("closed while it was followed")
        stage.service.close()


def test_the_longest_idle_gives_way(shared: Stage) -> None:
    with served(shared, most=3) as url, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(3)]
        with httpx.Client(base_url=url, headers=BEARER, trust_env=False, timeout=DEADLINE_SECONDS) as client:
            assert client.get("/v1/jobs").status_code == 200
            assert is_closed(slow[0])
            # The others are still there: they get an answer once their head is whole.
            for connection in slow[1:]:
                connection.sendall(b"no more\r\n\r\n")
                assert connection.recv(64).startswith(b"HTTP/1.1 401 ")


def bearer_of(stage: Stage, name: str) -> dict[str, str]:
    token, _ = add_token(stage.queue.folder, name, "submit")
    return {"Authorization": f"Bearer {token}"}


def following(stage: Stage, name: str, headers: dict[str, str]) -> bytes:
    """A request for the events of a new job of the headers' token."""
    body = {"command": "train", "options": stage.options(f"{name}.zarr")}
    job = stage.anonymous(**headers).post("/v1/jobs", json=body).json()["id"]
    request = f"GET /v1/jobs/{job}/events?follow=true HTTP/1.1\r\nhost: localhost\r\n"
    return f"{request}authorization: {headers['Authorization']}\r\n\r\n".encode()


def get(url: str, headers: dict[str, str]) -> httpx.Response:
    return httpx.get(f"{url}/v1/jobs", headers=headers, trust_env=False, timeout=DEADLINE_SECONDS)


def test_health_and_administrators_are_answered_where_every_place_is_at_work(stage: Stage) -> None:
    alice, bob = bearer_of(stage, "alice"), bearer_of(stage, "bob")
    follow = following(stage, "alice", alice)
    with served(stage, most=2, reserved=2) as url, contextlib.ExitStack() as stack:
        for _ in range(2):
            streamed = stack.enter_context(connected(url, follow))
            assert streamed.recv(64).startswith(b"HTTP/1.1 200 ")
        # Nor can strangers use up the reserve: neither half heads, nor pages that they ask for and do not read.
        for _ in range(5):
            stack.enter_context(connected(url))
            stack.enter_context(connected(url, PAGES))
        assert health(url) == 200
        refused = get(url, bob)
        assert refused.status_code == 503
        assert "its largest number of connections" in refused.json()["error"]["message"]
        assert refused.headers["connection"] == "close"
        assert get(url, BEARER).status_code == 200
        # Those that showed a token are still there.
        streamed.sendall(b"\r\n")
        streamed.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while streamed.recv(2**16):
                pass
            raise AssertionError("the stream was closed")
        stage.service.close()


def test_pages_that_nobody_reads_hold_no_place(shared: Stage) -> None:
    """Each connection asks for a page of a megabyte again and again, reads nothing, and waits to write for ever."""
    with served(shared, most=4, reserved=1) as url, contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(connected(url, PAGES)) for _ in range(8)]
        for _ in range(3):
            with contextlib.suppress(OSError):
                for attacker in attackers:
                    attacker.sendall(PAGES)
            assert health(url) == 200
            assert get(url, BEARER).status_code == 200


def send_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(PAGES)
        time.sleep(0.05)


def test_a_client_that_does_not_read_is_not_waited_for(shared: Stage) -> None:
    with served(shared, write_seconds=0.3) as url:
        address = httpx.URL(url)
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((address.host, address.port))
            silent.sendall(PAGES)
            # The end is seen by whoever sends: reading would make room.
            silent.settimeout(DEADLINE_SECONDS)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                send_for_ever(silent)


@pytest.mark.parametrize(
    ("unread", "gives_way"),
    [
        ([900_000, 800_000, 700_000, 20_000, 0], False),
        ([900_000, 900_000 - limits.LEAST_READ_BYTES, 0], False),
        ([900_000, 800_000, 799_000], True),
        ([20_000, 20_000], True),
    ],
)
def test_a_client_that_reads_slowly_gets_all_of_it(unread: list[int], gives_way: bool) -> None:
    """The bytes that it has not read at each look."""
    protocol = object.__new__(limits.protocol_type())
    closed: list[bool] = []
    protocol.loop = SimpleNamespace(call_later=lambda seconds, look: None)
    protocol.flow = SimpleNamespace(write_paused=True)
    protocol.give_way = lambda: closed.append(True)
    for count in unread:
        assert not closed
        protocol.transport = SimpleNamespace(get_write_buffer_size=lambda count=count: count, is_closing=lambda: False)
        protocol.flow.write_paused = count > 0
        protocol._look_at_reading()
    assert bool(closed) is gives_way


def test_requests_in_a_row_are_bounded(shared: Stage) -> None:
    request = b"GET /icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with served(shared) as url:
        for number, answered in ((10, 10), (200, limits.MOST_PIPELINED + 1)):
            with connected(url, request * number) as eager:
                received = b""
                with contextlib.suppress(ConnectionResetError):
                    while received.count(b"HTTP/1.1 200") < number and (piece := eager.recv(2**16)):
                        received += piece
                assert received.count(b"HTTP/1.1 200") == answered
        # One after the other they are as many as anybody likes.
        with httpx.Client(base_url=url, trust_env=False, timeout=DEADLINE_SECONDS) as client:
            assert {client.get("/icon.svg").status_code for _ in range(2 * limits.MOST_PIPELINED)} == {200}


@pytest.mark.parametrize(("chunks", "kind"), [(2_000, b"MalformedError"), (3_000, b"Invalid HTTP request")])
def test_a_body_of_very_many_small_chunks_is_refused(shared: Stage, chunks: int, kind: bytes) -> None:
    # Half a megabyte of them, which any stranger may send, kept everybody waiting for seconds.
    head = f"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: {BEARER['Authorization']}\r\n"
    head += "content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    with served(shared) as url, connected(url, head.encode() + b"1\r\n[\r\n" * chunks + b"0\r\n\r\n") as sender:
        answer = answer_of(sender)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert kind in answer


def test_a_head_is_bounded_however_much_of_it_comes_at_once(shared: Stage) -> None:
    for lines, status in ((5_000, b"200"), (40_000, b"400")):
        request = b"GET /icon.svg HTTP/1.1\r\nhost: localhost\r\n" + b"a:b\r\n" * lines + b"\r\n"
        with served(shared) as url, connected(url, request) as sender:
            assert sender.recv(64).startswith(b"HTTP/1.1 " + status)


def test_nonsense_before_an_answer_leaves_no_traceback(
    shared: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n"
    # The connection is closed later than the application answers, as over TLS.
    close = asyncio.selector_events._SelectorTransport.close  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "asyncio.selector_events._SelectorTransport.close",
        lambda transport: transport._loop.call_later(0.3, close, transport),
    )
    with served(shared) as url, connected(url, request) as sender:
        assert answer_of(sender).startswith(b"HTTP/1.1 400 ")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_nonsense_after_an_answer_leaves_no_traceback(shared: Stage, caplog: pytest.LogCaptureFixture) -> None:
    request = b"POST /icon.svg HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with served(shared) as url, connected(url, request) as sender:
        assert sender.recv(16).startswith(b"HTTP/1.1 405 ")
        sender.sendall(b"no size\r\n")
        answer_of(sender)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_one_token_leaves_places_to_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_REQUESTS_OF_TOKEN", 4)
    monkeypatch.setattr(streaming, "MOST_FOLLOWERS_OF_TOKEN", 3)
    alice, bob = bearer_of(stage, "alice"), bearer_of(stage, "bob")
    follow = following(stage, "alice", alice)
    with served(stage, most=8, reserved=2) as url, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(connected(url, follow)) for _ in range(3)]
        assert all(stream.recv(64).startswith(b"HTTP/1.1 200 ") for stream in streams)
        with connected(url, follow) as further:
            assert further.recv(64).startswith(b"HTTP/1.1 503 ")
        assert get(url, alice).status_code == 200
        # A body that does not come is a request like any other.
        body = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n"
        slow = stack.enter_context(connected(url, body + f"authorization: {alice['Authorization']}\r\n\r\n".encode()))
        refused = get(url, alice)
        while refused.status_code == 200:
            refused = get(url, alice)
        assert refused.status_code == 429
        assert "the token 'alice' has 4 requests in progress" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert get(url, bob).status_code == get(url, BEARER).status_code == 200
        slow.close()
        while get(url, alice).status_code == 429:
            time.sleep(0.01)
        stage.service.close()


@dataclass
class Standing:
    network: str
    since: float


def test_who_gives_way() -> None:
    crowd = [Standing("10.0.0.1", since) for since in (5.0, 3.0, 4.0)]
    others = [Standing("10.0.0.2", 1.0), Standing("10.0.0.3", 2.0)]
    assert limits._first([*others, *crowd], 2) == [crowd[1], crowd[2]]
    assert limits._first([*others, *crowd], 9) == [crowd[1], crowd[2], crowd[0]]
    assert limits._first(others)[0] in others
    assert limits._network(("2001:db8::1:2", 1)) == limits._network(("2001:db8::ffff", 2))
    assert limits._network(("2001:db8::1", 1)) != limits._network(("2001:db8:0:1::1", 1))
    assert limits._network(("10.0.0.1", 1)) != limits._network(("10.0.0.2", 1))
    assert limits._network(("fe80::1%eth0", 1)) == "fe80::/64"
    assert limits._network(None) == ""


def test_a_thousand_half_heads_do_not_keep_health_from_being_answered(shared: Stage) -> None:
    with served(shared, most=200) as url, contextlib.ExitStack() as stack:
        for _ in range(400):
            with contextlib.suppress(OSError):
                stack.enter_context(connected(url))
        assert health(url) == 200


@contextlib.contextmanager
def over_tls(
    stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The service as `dkgp serve --https` has it, with three places for handshakes of at most so many seconds."""
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", seconds)
    monkeypatch.setattr(limits, "MOST_HANDSHAKES", 3)
    certificate = own_certificate(folder, "127.0.0.1")
    with listen("127.0.0.1", 0) as listener:
        server = serve._server(stage.app, lambda: None, lambda: None, serve.LatestEnd(), certificate)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield serve.url_of(listener, "127.0.0.1", "https"), ssl.create_default_context(cafile=str(certificate[0]))
        finally:
            server.should_exit = True
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()


@pytest.mark.long
def test_a_handshake_that_never_ends_is_not_waited_for(
    shared: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrap(connection: socket.socket) -> socket.socket:
        return context.wrap_socket(connection, server_hostname="127.0.0.1")

    with over_tls(shared, tmp_path, monkeypatch, 0.5) as (url, context), contextlib.ExitStack() as stack:
        assert is_closed(stack.enter_context(connected(url, b"")))
        # Those that are through are no longer counted: more stay open than there are places for handshakes.
        through = [stack.enter_context(answered(url, PLAIN, wrap)) for _ in range(5)]
        # A connection that has come through its handshake stays beyond the handshake's time.
        time.sleep(0.8)
        for connection in through:
            ask_again(connection)


@pytest.mark.long
def test_handshakes_of_strangers_keep_nobody_out(
    shared: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with over_tls(shared, tmp_path, monkeypatch, 30.0) as (url, context), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(url, b"")) for _ in range(3)]
        time.sleep(0.2)
        # The longest ones give way.
        silent += [stack.enter_context(connected(url, b"")) for _ in range(5)]
        assert all(is_closed(connection) for connection in silent[:5])
        with httpx.Client(base_url=url, verify=context, trust_env=False, timeout=DEADLINE_SECONDS) as client:
            assert client.get("/healthz").status_code == 200
        assert is_closed(silent[5])
        silent[7].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[7].recv(1)
