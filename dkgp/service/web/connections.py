"""Connections that hold a place and ask for nothing: they get a deadline, and give way where places are short.

uvicorn waits for ever for the head of a first request, and for whatever trickles in after an answer; some thousand such
connections use up the process's file handles, health checks' included. Where it speaks TLS, asyncio waits a minute for
the handshake, of as many as come, before anybody counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dkgp.service.web.answers import error_answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

# From the connection, or the first byte after an answer, to the end of a request's head.
HEAD_SECONDS = 10.0
# Half of the file handles that a process commonly has. Beyond it the longest idle connection gives way, and where all
# are at work, health alone is answered, over some more.
MOST_CONNECTIONS = 500
RESERVED_CONNECTIONS = 32
# From the connection to the end of a TLS handshake, and how many may be in one; others are closed as they come.
HANDSHAKE_SECONDS = 10.0
MOST_HANDSHAKES = 200
HEALTH_PATH = "/healthz"


class HealthAlone:
    """Answers health checks, and every other request with 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"] == HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        message = "the service has as many connections as it takes; try again in a moment"
        await error_answer(503, "ServiceUnavailable", message, {"connection": "close"})(scope, receive, send)


@contextlib.contextmanager
def limited_handshakes(speaks_tls: bool, seconds: float, most: int) -> Iterator[None]:
    """Limit the TLS handshakes of the servers that the running loop begins to listen for in the block.

    uvicorn hands neither setting on to `loop.create_server`, so the loop's own method is wrapped meanwhile.
    """
    loop = asyncio.get_running_loop()
    create = loop.create_server

    async def create_limited(factory: Callable[[], Any], *arguments: Any, **settings: Any) -> asyncio.Server:
        under_way: weakref.WeakSet[Any] = weakref.WeakSet()

        def counted() -> Any:
            # Made when a connection is accepted, and told of it (`connection_made`) after the handshake.
            now = loop.time()
            waiting = sum(each.accepted > now - seconds and each.made is False for each in under_way)
            if waiting >= most:
                # asyncio closes the connection.
                raise ConnectionAbortedError("as many TLS handshakes are under way as the service takes")
            protocol = factory()
            protocol.accepted, protocol.made = now, False
            under_way.add(protocol)
            return protocol

        return await create(counted, *arguments, ssl_handshake_timeout=seconds, **settings)

    if not speaks_tls:
        yield
        return
    loop.create_server = create_limited  # type: ignore[assignment]
    try:
        yield
    finally:
        loop.create_server = create  # type: ignore[method-assign]


def protocol_type(
    head_seconds: float = HEAD_SECONDS, most: int = MOST_CONNECTIONS, reserved: int = RESERVED_CONNECTIONS
) -> type[H11Protocol]:
    """Return uvicorn's protocol with these limits, for its setting `http`."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedProtocol(H11Protocol):
        """A connection; idle while no request is at work on it."""

        # When the connection was accepted, and whether it has come through its handshake, where it has one.
        accepted: float = 0.0
        made: bool = False
        idle_since: float = 0.0
        _deadline: asyncio.TimerHandle | None = None

        @property
        def is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.made = True
            super().connection_made(transport)
            self._begin_idling()
            if len(self.connections) <= most:
                return
            others = [other for other in self.connections if isinstance(other, LimitedProtocol) and other is not self]
            idle = [other for other in others if other.is_idle]
            if idle:
                min(idle, key=lambda other: other.idle_since).give_way()
            elif len(self.connections) <= most + reserved:
                self.app = HealthAlone(self.app)
            else:
                self.give_way()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.is_idle:
                self._stop_deadline()
            elif self._deadline is None:
                self._begin_idling()

        def on_response_complete(self) -> None:
            self.idle_since = self.loop.time()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_deadline()
            super().connection_lost(exc)

        def give_way(self) -> None:
            """Close at once, without waiting for what the other side has not read."""
            self._stop_deadline()
            self.connections.discard(self)
            self.transport.abort()

        def _begin_idling(self) -> None:
            self.idle_since = self.loop.time()
            self._deadline = self.loop.call_later(head_seconds, self.give_way)

        def _stop_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return LimitedProtocol
