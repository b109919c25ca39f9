"""An HTTP proxy between dkgp and an S3 server that goes wrong on command.

with s3_proxy(server) as proxy:
    proxy.add(Fault("error", fraction=0.2))                       # 503 to a fifth of the requests
    proxy.add(Fault("swallow", method="PUT", path="/c/", count=1))  # one chunk is answered for and lost
    ...
    assert proxy.faults_done["error"] > 0
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from tests.s3 import S3Server

__all__ = ["Fault", "S3Proxy", "s3_proxy"]

_SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)


@dataclasses.dataclass
class Fault:
    """Fault of the storage, and the requests that meet it.

    Attributes
    ----------
    kind
        "error": answered with `status`, not passed on. "reset": the connection is cut, the request not passed on.
        "hang": no answer until the proxy ends. "swallow": answered with 200 and not passed on. "lose answer": passed
        on, and the connection cut instead of the answer. "truncate": passed on, and the answer cut in half.
    method, path
        Regular expressions for the method and for what stands in the request after the host.
    count
        How often at most; None for always.
    fraction
        The share of the matching requests, drawn by a generator of its own with a fixed seed.
    after
        How many matching requests pass unharmed before.
    """

    kind: Literal["error", "reset", "hang", "swallow", "lose answer", "truncate"]
    method: str = ".*"
    path: str = ""
    count: int | None = None
    fraction: float = 1.0
    after: int = 0
    status: int = 503
    content: bytes = _SLOW_DOWN
    random: np.random.Generator = dataclasses.field(default_factory=lambda: np.random.default_rng(5))

    def strikes(self, method: str, path: str) -> bool:
        """Whether this request is one; counts it."""
        if not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.count == 0 or (self.fraction < 1 and self.random.random() >= self.fraction):
            return False
        if self.count is not None:
            self.count -= 1
        return True


class S3Proxy:
    """A running proxy.

    Attributes
    ----------
    server
        As the server behind it, but with the proxy's endpoint: what dkgp is to use.
    requests
        "METHOD path" of all the requests that came in.
    faults_done
        Kind -> how often.
    """

    def __init__(self, server: S3Server) -> None:
        self.requests: list[str] = []
        self.faults_done: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._watched: list[tuple[str, threading.Event]] = []
        self._upstream = urlsplit(server.endpoint).netloc
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.server = dataclasses.replace(server, endpoint=f"http://127.0.0.1:{self._http.server_address[1]}")
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def add(self, fault: Fault) -> None:
        """From now on, this goes wrong too."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """From now on, nothing goes wrong, and the lists are empty."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()
            self.faults_done.clear()

    def seen(self, pattern: str) -> threading.Event:
        """An event that is set when a request ("METHOD path") comes in that holds the pattern."""
        event = threading.Event()
        with self._lock:
            self._watched.append((pattern, event))
        return event

    def close(self) -> None:
        """Stop, and let go of what hangs."""
        self._over.set()
        self._http.shutdown()
        self._http.server_close()

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Return the fault of this request, if any."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            for pattern, event in self._watched:
                if re.search(pattern, f"{method} {path}"):
                    event.set()
            found = next((fault for fault in self._faults if fault.strikes(method, path)), None)
            if found is not None:
                self.faults_done[found.kind] += 1
            return found

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> http.client.HTTPResponse:
        """Ask the server behind."""
        connection = http.client.HTTPConnection(self._upstream, timeout=240)
        connection.request(method, path, body=body, headers=headers)
        return connection.getresponse()

    def wait_for_end(self) -> None:
        """Block until the proxy is closed."""
        self._over.wait()


class _Handler(BaseHTTPRequestHandler):
    owner: S3Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the proxy keeps its own list."""

    def handle(self) -> None:
        """As always, but a client that goes away (or is killed) is no news."""
        with contextlib.suppress(OSError):
            super().handle()

    def answer(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.fault_of(self.command, self.path)
        kind = fault.kind if fault is not None else ""
        if kind == "hang":
            self.owner.wait_for_end()
            self.close_connection = True
        elif kind == "reset":
            self._reset()
        elif fault is not None and kind == "error":
            self._send(fault.status, {"Content-Type": "application/xml"}, fault.content)
        elif kind == "swallow":
            self._send(200, {"ETag": '"d41d8cd98f00b204e9800998ecf8427e"'}, b"")
        else:
            self._pass_on(body, kind)

    def _pass_on(self, body: bytes, kind: str) -> None:
        response = self.owner.forward(self.command, self.path, dict(self.headers.items()), body)
        content = response.read()
        if kind == "lose answer":
            self._reset()
            return
        kept = ("connection", "transfer-encoding", "content-length", "server", "date")
        headers = {name: text for name, text in response.getheaders() if name.lower() not in kept}
        length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self._send(response.status, headers, content, length, cut=kind == "truncate")

    def _send(
        self, status: int, headers: dict[str, str], content: bytes, length: str | None = None, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._reset()

    def _reset(self) -> None:
        # With a linger of zero the peer sees a reset, not an end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()


# The names that http.server looks for.
for _method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
    setattr(_Handler, f"do_{_method}", _Handler.answer)


@contextlib.contextmanager
def s3_proxy(server: S3Server) -> Iterator[S3Proxy]:
    """A proxy in front of a server."""
    proxy = S3Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
