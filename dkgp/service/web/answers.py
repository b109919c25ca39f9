"""Answers that are errors, and headers of every answer: plain ASGI, below and around the web framework."""

from __future__ import annotations

import logging
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dkgp.errors import DkgpError, InputError, MissingExtraError, StorageError, UsageError
from dkgp.service.queue.records import ForbiddenError, JobStateError, QueueFullError, UnknownJobError
from dkgp.service.roots import OutsideRootsError
from dkgp.service.specification import MOST_MISTAKES

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("dkgp.service")


class MalformedError(InputError):
    """A request body that is not the JSON it should be."""


# The page's script, style and requests come from the service itself; nothing else is loaded, and nobody may frame it.
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
# The most particular first.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (MalformedError, 400),
    (OutsideRootsError, 403),
    (ForbiddenError, 403),
    (UnknownJobError, 404),
    (JobStateError, 409),
    (QueueFullError, 429),
    (StorageError, 503),
    (sqlite3.OperationalError, 503),
    (MissingExtraError, 422),
    (UsageError, 422),
    (InputError, 422),
    (DkgpError, 422),
)
_HTTP_NAMES = {404: "NotFound", 405: "MethodNotAllowed", 415: "NotJson", 503: "ServiceUnavailable"}
RETRY_AFTER_SECONDS = {429: 30, 503: 5}


def status_of(error: Exception) -> int:
    """Return the status code of an error; 500 for an unforeseen one."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_headers(status: int) -> dict[str, str]:
    """Headers that the status code itself asks for."""
    if status == 401:
        return {"www-authenticate": 'Bearer realm="dkgp"'}
    if status in RETRY_AFTER_SECONDS:
        return {"retry-after": str(RETRY_AFTER_SECONDS[status])}
    return {}


def error_answer(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that says an error, from below the framework too: an ASGI application by itself."""
    from starlette.responses import JSONResponse

    body = {"error": {"type": kind, "message": message}}
    return JSONResponse(body, status_code=status, headers={**error_headers(status), **(headers or {})})


def answer_errors(app: FastAPI) -> None:
    """Have an application answer every error in the one shape."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    async def deliberate(request: Request, error: Exception) -> Response:
        return error_answer(status_of(error), type(error).__name__, str(error))

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = error.detail
        if error.status_code == 404:
            message = f"there is nothing at {request.url.path[:200]}; /docs lists all paths"
        elif error.status_code == 405:
            message = f"{request.url.path[:200]} does not take {request.method[:20]}; /docs lists its methods"
        return error_answer(error.status_code, _HTTP_NAMES.get(error.status_code, "HttpError"), message, error.headers)

    async def of_parameters(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        complaints = [f"'{entry['loc'][-1]}': {entry['msg']}" for entry in error.errors()[:MOST_MISTAKES]]
        return error_answer(422, "UsageError", "; ".join(complaints))

    async def unforeseen(request: Request, error: Exception) -> Response:
        return error_answer(500, type(error).__name__, _unforeseen(request.method, request.url.path, error))

    app.add_exception_handler(DkgpError, deliberate)
    app.add_exception_handler(sqlite3.OperationalError, deliberate)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_parameters)
    app.add_exception_handler(Exception, unforeseen)


class Layer(ABC):
    """A layer around an ASGI application, which answers its HTTP requests; others pass through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to `answer`."""
        await (self.answer if scope["type"] == "http" else self._app)(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""


def before_answer(send: Send, look: Callable[[Message], None]) -> Send:
    """Return a `send` that first calls `look` with the message that starts the answer."""

    async def looked_at(message: Message) -> None:
        if message["type"] == "http.response.start":
            look(message)
        await send(message)

    return looked_at


class Outermost(Layer):
    """Adds the security headers to every answer; answers an unforeseen error with an id that stands in the log."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = complete = False

        async def send_secured(message: Message) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, send_secured)
        except Exception as error:
            if complete:
                # The framework raises errors again that it has answered.
                return
            message = _unforeseen(scope["method"], scope["path"], error)
            if started:
                raise
            await error_answer(500, type(error).__name__, message)(scope, receive, send_secured)


def _unforeseen(method: str, path: str, error: Exception) -> str:
    number = secrets.token_hex(4)
    # Method and path alone: headers hold the token.
    log.error("error %s in %s %r", number, method[:20], path[:200], exc_info=error)
    return f"an unexpected error; the service's log has the details under the number {number}"
