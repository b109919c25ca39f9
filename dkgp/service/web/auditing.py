"""Lines of the audit log about requests: changes and refusals, and reads, the same one once an hour."""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from dkgp.service.access.audit import AuditLog
from dkgp.service.access.tokens import Caller
from dkgp.service.web.auth import CALLER_KEY, OPEN_PATHS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Lines a minute of each token, and of all requests without one: nobody must be able to push the others out. With so
# many, the log reaches back two days for refusals and reads, and four hours for changes.
LINES_PER_MINUTE = 60
CHANGES_PER_MINUTE = 600
# What is asked for again and again (metrics, a job that is waited for) is written down once an hour.
REPEATED_READ_SECONDS = 3600.0
REMEMBERED_READS = 1000
_CALL = re.compile(r"/v1/jobs(?:/([0-9a-f]{12})(?:/(?:events|curve|cancel|resume))?)?|/v1/service|/metrics")


class AuditedRequests:
    """Writes down requests as they are answered: changes, refusals, and reads, the same one once an hour."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        self._app, self._audit = app, audit
        self._reads: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._minute, self._left_out = 0.0, 0
        # Of this minute, by token and whether they are of changes.
        self._lines: Counter[tuple[str | None, bool]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._record(scope, int(message["status"]), message.get("headers", ()))
            await send(message)

        await self._app(scope, receive, send_recorded)

    def _record(self, scope: Scope, status: int, headers: Any) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        caller: Caller | None = scope.get(CALLER_KEY)
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        route, job = _route(scope["path"])
        what, job = f"{method} {route}", job or _made(headers)
        client = scope.get("client")
        address = client[0] if client else None
        is_change = method == "POST" and status < 400
        is_read = method != "POST" and status < 400
        name = None if caller is None else caller.name
        if is_read and not self._is_new(str(name), str(address), what, str(job)):
            return
        if not self._may_write(name, is_change):
            return
        extra: dict[str, Any] = {}
        if self._left_out:
            extra["left_out"], self._left_out = self._left_out, 0
        who = {"who": name, "scope": caller and caller.scope}
        self._audit.write(what, **who, **{"from": address}, job=job, status=status, **extra)

    def _is_new(self, *read: str) -> bool:
        now = time.monotonic()
        known = self._reads.pop(read, None)
        is_new = known is None or now - known > REPEATED_READ_SECONDS
        self._reads[read] = now if is_new or known is None else known
        if len(self._reads) > REMEMBERED_READS:
            self._reads.popitem(last=False)
        return is_new

    def _may_write(self, token: str | None, is_change: bool) -> bool:
        """Count a line; return False for one too many in this minute, which the next line then counts."""
        now = time.monotonic()
        if now - self._minute >= 60.0:
            self._minute = now
            self._lines.clear()
        self._lines[token, is_change] += 1
        if self._lines[token, is_change] <= (CHANGES_PER_MINUTE if is_change else LINES_PER_MINUTE):
            return True
        self._left_out += 1
        return False


def _route(path: str) -> tuple[str, str | None]:
    """The call that a path names, where nobody was let in too, and the job's id; no more of it gets into the log."""
    match = _CALL.fullmatch(path)
    if match is None:
        return "other", None
    return (path, None) if match[1] is None else (path.replace(match[1], "{job_id}"), match[1])


def _made(headers: Any) -> str | None:
    """The id of the job that a request made."""
    places = [value.decode("latin-1") for name, value in headers if name == b"location"]
    return _route(places[0])[1] if places else None
