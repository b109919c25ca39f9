"""Connections that hold a place and ask for nothing lose it: to time, and to newcomers where places are short."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dkgp.service import serve
from dkgp.service.certificate import own_certificate
from dkgp.service.serve import listen
from dkgp.service.web import connections
from tests.service.stage import BEARER, DEADLINE_SECONDS, Stage, served

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


def health(url: str) -> int:
    began = time.monotonic()
    status = httpx.get(f"{url}/healthz", timeout=DEADLINE_SECONDS, trust_env=False).status_code
    assert time.monotonic() - began < 10.0
    return status


def test_half_a_head_is_not_waited_for(shared: Stage) -> None:
    with served(shared, head_seconds=0.5) as url, connected(url) as slow:
        # Trickling does not put it off.
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < DEADLINE_SECONDS:
                slow.sendall(b"a")
                time.sleep(0.05)
        assert 0.4 < time.monotonic() - began < 10.0


def test_what_trickles_in_after_an_answer_is_not_waited_for(shared: Stage) -> None:
    request = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
    with served(shared, head_seconds=0.5) as url, connected(url, request) as slow:
        assert slow.recv(64).startswith(b"HTTP/1.1 401 ")
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < DEADLINE_SECONDS:
                slow.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() - began < 10.0


@pytest.mark.long
def test_a_client_that_pauses_between_requests_is_served(shared: Stage) -> None:
    with (
        served(shared, head_seconds=0.3) as url,
        httpx.Client(base_url=url, headers=BEARER, trust_env=False) as client,
    ):
        assert client.get("/v1/jobs").status_code == 200
        for _ in range(2):
            time.sleep(0.4)
            assert client.get("/v1/jobs").status_code == 200


def test_a_request_at_work_has_all_the_time_it_takes(stage: Stage) -> None:
    job = stage.submit("followed.zarr")["id"]
    follow = f"GET /v1/jobs/{job}/events?follow=true HTTP/1.1\r\nhost: localhost\r\n"
    follow += f"authorization: {BEARER['Authorization']}\r\n\r\n"
    with served(stage, head_seconds=0.2) as url, connected(url, follow.encode()) as streamed:
        assert streamed.recv(64).startswith(b"HTTP/1.1 200 ")
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


def test_health_is_answered_where_every_place_is_at_work(stage: Stage) -> None:
    job = stage.submit("followed.zarr")["id"]
    follow = f"GET /v1/jobs/{job}/events?follow=true HTTP/1.1\r\nhost: localhost\r\n"
    follow += f"authorization: {BEARER['Authorization']}\r\n\r\n"
    with served(stage, most=2, reserved=2) as url, contextlib.ExitStack() as stack:
        for _ in range(2):
            streamed = stack.enter_context(connected(url, follow.encode()))
            assert streamed.recv(64).startswith(b"HTTP/1.1 200 ")
        assert health(url) == 200
        refused = httpx.get(f"{url}/v1/jobs", headers=BEARER, trust_env=False, timeout=DEADLINE_SECONDS)
        assert refused.status_code == 503
        assert "as many connections as it takes" in refused.json()["error"]["message"]
        stage.service.close()


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
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", seconds)
    monkeypatch.setattr(connections, "MOST_HANDSHAKES", 3)
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
    with over_tls(shared, tmp_path, monkeypatch, 0.5) as (url, context), connected(url, b"") as silent:
        began = time.monotonic()
        assert is_closed(silent)
        assert 0.4 < time.monotonic() - began < 9.0
        with httpx.Client(base_url=url, verify=context, trust_env=False) as client, contextlib.ExitStack() as stack:
            # Those that are through are no longer counted: more stay open than there are places for handshakes.
            for _ in range(5):
                other = stack.enter_context(httpx.Client(base_url=url, verify=context, trust_env=False))
                assert other.get("/healthz").status_code == 200
            # A connection that has come through its handshake stays beyond the handshake's time.
            assert client.get("/healthz").status_code == 200
            time.sleep(0.8)
            assert client.get("/healthz").status_code == 200


@pytest.mark.long
def test_more_handshakes_than_there_are_places_for_are_closed_as_they_come(
    shared: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with over_tls(shared, tmp_path, monkeypatch, 1.0) as (url, context), contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(url, b""))
        time.sleep(0.2)
        began = time.monotonic()
        for _ in range(20):
            assert is_closed(stack.enter_context(connected(url, b"")))
        assert time.monotonic() - began < 0.7
        time.sleep(1.2)
        with httpx.Client(base_url=url, verify=context, trust_env=False) as client:
            assert client.get("/healthz").status_code == 200
