"""Limits of a request: its size, counted while it comes in, the time it takes, and JSON that means one thing."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from dkgp.service.web.answers import MalformedError, error_answer
from dkgp.service.web.auth import OPEN_PATHS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

DEEPEST_JSON = 32
BODY_SECONDS = 30.0
# A client that is still sending does not read: take in a moderate surplus, so that the refusal reaches it.
DRAINED_BYTES = 16 * 2**20
DRAIN_SECONDS = 5.0


class BodyLimit:
    """Reads the body before the application sees the request, and refuses one that is too large or too slow.

    Starlette limits the parts of forms alone, and uvicorn nothing of a body, in chunks or whole.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._too_large = f"the request is larger than {max_bytes:,} bytes, the most this service takes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            # Pages take no body, and what a stranger sends is not kept.
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
    """Return what the JSON text says, where every reader would agree on it; `MalformedError` otherwise.

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
    raise MalformedError(f"the JSON holds {name}, which JSON has no word for; numbers must be finite")


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
    # Level by level, not by recursion, which is what is being guarded against.
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
    """Give the body once, then what the connection itself says: that the client has gone."""
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
