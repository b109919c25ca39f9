"""Limits of requests and connections: size, time and meaning of a body; deadlines of clients that ask or read nothing.

Starlette limits only the parts of forms, and uvicorn nothing of a body. uvicorn waits without limit for the head of a
first request, for data that trickles in after an answer, and for a client that does not read; its `limit_concurrency`
would refuse health checks and administrators as well. With TLS, asyncio waits a minute for each handshake, and does not
count them.

A connection is a stranger's until a request on it shows a token, and again once that request is answered. Requests
beyond those that a token may have under way are strangers' as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from dkgp.service.web.answers import Layer, MalformedError, before_answer, error_answer
from dkgp.service.web.guard import ADMITTED_KEY, OPEN_PATHS, RESERVED_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol


DEEPEST_JSON = 32
BODY_SECONDS = 30.0
# A client that is still sending does not read: take in a moderate surplus, so that the refusal reaches it.
DRAINED_BYTES = 16 * 2**20
DRAIN_SECONDS = 5.0


class BodyLimit(Layer):
    """Reads the body before the application sees the request, and refuses one that is too large or too slow."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float = BODY_SECONDS) -> None:
        super().__init__(app)
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._too_large = f"the request is larger than {max_bytes:,} bytes, the limit of this service"

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"] in OPEN_PATHS:
            # Pages take no body, and a stranger's body is not kept.
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            if b"expect" not in headers and int(announced) <= DRAINED_BYTES:
                await _drain(receive)
            await self._refuse(413, "BodyTooLarge", self._too_large, scope, receive, send)
            return
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > self._max_bytes:
                        await _drain(receive)
                        await self._refuse(413, "BodyTooLarge", self._too_large, scope, receive, send)
                        return
                    pieces.append(piece)
                    more = message.get("more_body", False)
        except TimeoutError:
            await self._refuse(
                408, "TimeoutError", f"the request did not arrive within {self._seconds:.0f} s", scope, receive, send
            )
            return
        await self._app(scope, _replay(b"".join(pieces), receive), send)

    async def _refuse(self, status: int, kind: str, message: str, scope: Scope, receive: Receive, send: Send) -> None:
        await error_answer(status, kind, message, {"connection": "close"})(scope, receive, send)


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text that all readers understand alike; `MalformedError` for others.

    By the standard library's parser: pydantic's takes the last of two values of one name without a word. Refused are
    NaN, infinities and numbers beyond float64; a name given twice; text that is not Unicode; and nesting deeper than
    `DEEPEST_JSON`.
    """
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_distinct,
        )
    except MalformedError:
        raise
    except RecursionError:
        raise MalformedError(f"the JSON is nested deeper than {DEEPEST_JSON} levels") from None
    except ValueError as error:
        raise MalformedError(f"the request is not JSON: {error}") from None
    _check_depth_and_text(value)
    return value


def _no_constant(name: str) -> NoReturn:
    raise MalformedError(f"the JSON holds {name}, which is not JSON; numbers must be finite")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(f"the JSON holds the number {text[:40]}, which is beyond the range of float64")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise MalformedError("the JSON gives a name twice in one object; give it once")
    return members


def _check_depth_and_text(value: Any) -> None:
    # Level by level: recursion is the danger here.
    level = [value]
    for _ in range(DEEPEST_JSON):
        following: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                following.extend(item.keys())
                following.extend(item.values())
            elif isinstance(item, list):
                following.extend(item)
            elif isinstance(item, str) and not _is_text(item):
                raise MalformedError("the JSON holds half a surrogate pair or a NUL, which is no text")
        level = following
        if not level:
            return
    raise MalformedError(f"the JSON is nested deeper than {DEEPEST_JSON} levels")


def _is_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return the body once, then the connection's own messages."""
    is_delivered = False

    async def replay() -> Message:
        nonlocal is_delivered
        if is_delivered:
            return await receive()
        is_delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _drain(receive: Receive) -> None:
    taken = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while taken <= DRAINED_BYTES:
                message = await receive()
                taken += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


# From the connection, or the first byte after an answer, to the end of a request's head.
HEAD_SECONDS = 10.0
# A client that waits for an answer reads so many bytes in this time, or the rest of the answer.
WRITE_SECONDS = 30.0
LEAST_READ_BYTES = 2**15
# Requests in a row that a client sends before it has read the answer to the one before.
MOST_PIPELINED = 16
# Pieces of one body that are smaller than so many bytes: chunks of one byte would keep the event loop busy for seconds.
MOST_PIECES, BYTES_OF_PIECE = 2048, 512
# The head of a request. Bytes are parsed in smaller portions: the limit is looked at between them.
LARGEST_HEAD_BYTES = 2**16
PARSED_BYTES = 2**14
# Half of the file handles that a process commonly has. Beyond them the connections of strangers give way. Where every
# connection shows a token, health and administrators have some more.
MOST_CONNECTIONS = 500
RESERVED_CONNECTIONS = 32
# From the connection to the end of a TLS handshake. Beyond so many the longest one gives way.
HANDSHAKE_SECONDS = 10.0
MOST_HANDSHAKES = 200


class _Client(Protocol):
    network: str
    since: float


_ClientT = TypeVar("_ClientT", bound=_Client)


class InReserve(Layer):
    """Marks requests as those of a reserved connection, which ends with its answer."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope[RESERVED_KEY] = True

        def close(message: Message) -> None:
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]

        await self._app(scope, receive, before_answer(send, close))


@contextlib.contextmanager
def limited_handshakes(speaks_tls: bool, seconds: float, most: int) -> Iterator[None]:
    """Limit the TLS handshakes of the servers that the running loop begins to listen for in the block.

    uvicorn hands neither setting on to `loop.create_server`, so the loop's own method is wrapped meanwhile.
    """
    loop = asyncio.get_running_loop()
    create = loop.create_server

    async def create_limited(factory: Callable[[], Any], *arguments: Any, **settings: Any) -> asyncio.Server:
        under_way: OrderedDict[asyncio.Task[Any], None] = OrderedDict()

        def counted() -> Any:
            # asyncio makes the protocol in the task that accepts the connection and waits for its handshake.
            task = asyncio.current_task(loop)
            assert task is not None
            if len(under_way) >= most:
                oldest, _ = under_way.popitem(last=False)
                oldest.cancel()
            under_way[task] = None
            task.add_done_callback(lambda done: under_way.pop(done, None))
            return factory()

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
    head_seconds: float = HEAD_SECONDS,
    most: int = MOST_CONNECTIONS,
    reserved: int = RESERVED_CONNECTIONS,
    write_seconds: float = WRITE_SECONDS,
) -> type[H11Protocol]:
    """Return uvicorn's protocol with these limits, for its setting `http`."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedParser(h11.Connection):
        """Refuses a body of very many small pieces."""

        _spare = 0

        def next_event(self) -> Any:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._spare = MOST_PIECES * BYTES_OF_PIECE
            elif isinstance(event, h11.Data):
                self._spare += len(event.data) - BYTES_OF_PIECE
                if self._spare < 0:
                    raise h11.RemoteProtocolError("the body comes in too many small pieces")
            return event

    class LimitedProtocol(H11Protocol):
        """A connection; idle while no request is at work on it."""

        network: str = ""
        # When it was accepted, or last answered a request that showed a token.
        since: float = 0.0
        is_reserved: bool = False
        _deadline: asyncio.TimerHandle | None = None
        _watch: asyncio.TimerHandle | None = None
        # Bytes that the client had not read when they were last looked at, while the connection waits for it.
        _unread: int | None = None
        _pipelined: int = 0

        @property
        def is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        @property
        def is_strangers(self) -> bool:
            return self.is_idle or ADMITTED_KEY not in self.cycle.scope

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.conn = LimitedParser(h11.SERVER, LARGEST_HEAD_BYTES)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.network, self.since = _network(self.client), self.loop.time()
            self._begin_idling()
            self._watch = self.loop.call_later(write_seconds, self._look_at_reading)
            if len(self.connections) <= most:
                return
            others = [other for other in self.connections if isinstance(other, LimitedProtocol) and other is not self]
            in_reserve = [other for other in others if other.is_reserved]
            if len(others) - len(in_reserve) < most:
                return
            strangers = [other for other in others if other.is_strangers and not other.is_reserved]
            if strangers:
                # Several at once: under a flood of newcomers the search is made for one in so many.
                for stranger in _first(strangers, max(1, most // 20)):
                    stranger.give_way()
                return
            self.is_reserved, self.app = True, InReserve(self.app)
            if len(in_reserve) >= reserved:
                _first([other for other in in_reserve if other.is_strangers] or in_reserve)[0].give_way()

        def data_received(self, data: bytes) -> None:
            for start in range(0, len(data), PARSED_BYTES):
                if self.transport.is_closing():
                    return
                super().data_received(data[start : start + PARSED_BYTES])
            if not self.is_idle:
                self._stop_deadline()
            elif self._deadline is None:
                self._begin_idling()

        def on_response_complete(self) -> None:
            if ADMITTED_KEY in self.cycle.scope:
                self.since = self.loop.time()
            is_pipelined = self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])
            self._pipelined = self._pipelined + 1 if is_pipelined else 0
            if self._pipelined > MOST_PIPELINED and not self.transport.is_closing():
                self.conn.send(h11.ConnectionClosed())
                self.transport.close()
            super().on_response_complete()

        def handle_events(self) -> None:
            if self.flow.write_paused and self.is_idle:
                # The client has to read the last answer before its next request is begun.
                self.flow.pause_reading()
                return
            super().handle_events()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                # The answer has begun, or is over: uvicorn would fail, with a traceback in the log.
                self.transport.close()
            if self.cycle is not None:
                # So would an application that is still at work on the request: nothing more can be sent.
                self.cycle.disconnected = True
                self.cycle.message_event.set()

        def resume_writing(self) -> None:
            self._unread = None
            super().resume_writing()
            if self.cycle is not None and self.is_idle and not self.transport.is_closing():
                self.flow.resume_reading()
                self.handle_events()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timers()
            super().connection_lost(exc)

        def give_way(self) -> None:
            """Close at once, without waiting for data that the other side has not read."""
            self._stop_timers()
            self.connections.discard(self)
            self.transport.abort()

        def _look_at_reading(self) -> None:
            """Close the connection if it waits for a client that has read almost nothing since the last look."""
            unread = self.transport.get_write_buffer_size()
            if not (self.flow.write_paused or self.transport.is_closing()):
                self._unread = None
            elif self._unread is None or self._unread - unread >= min(LEAST_READ_BYTES, self._unread):
                self._unread = unread
            else:
                self.give_way()
                return
            self._watch = self.loop.call_later(write_seconds, self._look_at_reading)

        def _begin_idling(self) -> None:
            self._deadline = self.loop.call_later(head_seconds, self.give_way)

        def _stop_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _stop_timers(self) -> None:
            self._stop_deadline()
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    return LimitedProtocol


def _first(connections: Sequence[_ClientT], count: int = 1) -> list[_ClientT]:
    """Return the oldest connections of the network that has the most."""
    (network, _), *_ = Counter(connection.network for connection in connections).most_common(1)
    crowd = (connection for connection in connections if connection.network == network)
    return heapq.nsmallest(count, crowd, key=lambda connection: connection.since)


def _network(client: tuple[str, int] | None) -> str:
    """Return the client's IPv4 address or IPv6 /64 network, which one machine may own."""
    try:
        address = ip_address("" if client is None else client[0].partition("%")[0])
    except ValueError:
        return ""
    return str(address if address.version == 4 else ip_network((int(address), 64), strict=False))
