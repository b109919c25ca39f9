"""Access to the service over HTTP: bearer tokens, and the lines that requests write into the audit log.

Without tokens only this machine's own programs and the service's own page are let in. The audit log has changes,
refusals, and reads, the same read once an hour.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dkgp.service.access import ANYBODY, AuditLog, Caller, TokenBook
from dkgp.service.settings import is_loopback_address
from dkgp.service.web.answers import Layer, before_answer, error_answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# They hold no data: the page asks for the token itself.
HEALTH_PATH = "/healthz"
OPEN_PATHS = frozenset(
    {"/", "/page.js", "/page.css", "/icon.svg", HEALTH_PATH, "/docs", "/openapi.json", "/flags.json"}
)
# Where a request's scope says who sent it.
CALLER_KEY = "dkgp.caller"
# A function that tells if its token is still valid: for answers that take hours.
STILL_KEY = "dkgp.still_known"
# Where it says that its token entitles it to its connection until it is answered.
ADMITTED_KEY = "dkgp.admitted"
# And where it says that its connection is one of those kept for health and administrators.
RESERVED_KEY = "dkgp.reserved"
# Requests without a token that are answered at once; others wait, so that those with a token are answered between them.
STRANGERS_AT_ONCE = 8
HEALTH_CHECKS_AT_ONCE = 4
# The same of each token but an administrator's, streams apart.
TURNS_OF_TOKEN = 8
# Of such a token, streams and requests that wait included: a fifth of the connections that there are.
MOST_REQUESTS_OF_TOKEN = 100
READING = frozenset({"GET", "HEAD"})
BUSY = "the service has reached its largest number of connections; try again in a moment"
UNAUTHORISED = (
    "this service needs its token: send the header 'Authorization: Bearer TOKEN' "
    "(command line: --token-file FILE or DKGP_SERVICE_TOKEN)"
)


class Guard(Layer):
    """Lets only those requests through that may be answered.

    With tokens, everything but `OPEN_PATHS` needs one; a missing and a wrong one are answered alike, and one of the
    scope "read" changes nothing. Without, the service listens on loopback alone, and has to keep out web
    pages in a browser on this machine: requests that another site sent, and names that another site has pointed at this
    machine (DNS rebinding). The sender of a request that is let through, but for those of `OPEN_PATHS`, is named in the
    request's scope, under `CALLER_KEY`. No token has more than `MOST_REQUESTS_OF_TOKEN` answered at once, but an
    administrator's.
    """

    def __init__(self, app: ASGIApp, tokens: TokenBook | None) -> None:
        super().__init__(app)
        self._tokens = tokens
        self._at_work: Counter[str] = Counter()
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(TURNS_OF_TOKEN))
        self._strangers = asyncio.Semaphore(STRANGERS_AT_ONCE)
        self._health_checks = asyncio.Semaphore(HEALTH_CHECKS_AT_ONCE)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_open = scope["path"] in OPEN_PATHS
        caller: Caller | None = None
        if self._tokens is None:
            if (refusal := _foreign(scope)) is not None:
                await error_answer(403, "ForeignRequest", refusal)(scope, receive, send)
                return
            caller, scope[STILL_KEY] = Caller(ANYBODY, "admin"), lambda: True
        elif not is_open:
            tokens, token = self._tokens, _shown_token(scope)
            caller = tokens.caller(token)
            if caller is None:
                refused = error_answer(401, "Unauthorised", UNAUTHORISED)
                await _in_turn(self._strangers, refused)(scope, receive, send)
                return
            scope[STILL_KEY] = lambda: tokens.caller(token) == caller
        is_admin = caller is not None and caller.is_admin
        if RESERVED_KEY in scope and not is_admin and scope["path"] != HEALTH_PATH:
            await error_answer(503, "ServiceUnavailable", BUSY)(scope, receive, send)
            return
        if caller is None or is_open:
            turns = self._health_checks if scope["path"] == HEALTH_PATH else self._strangers
            await _in_turn(turns, self._app)(scope, receive, send)
            return
        scope[CALLER_KEY] = caller
        if is_admin:
            scope[ADMITTED_KEY] = True
            await self._app(scope, receive, send)
        elif caller.scope == "read" and scope["method"] not in READING:
            refused = error_answer(403, "Forbidden", forbidden(caller, "may change nothing"))
            await _in_turn(self._turns[caller.name], refused)(scope, receive, send)
        else:
            await self._answer(caller, scope, receive, send)

    async def _answer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of an ordinary token, unless it has too many under way."""
        turns = self._turns[caller.name]
        if self._at_work[caller.name] >= MOST_REQUESTS_OF_TOKEN:
            message = f"the token '{caller.name}' has {self._at_work[caller.name]} requests in progress, the limit for "
            message += "one token; wait until some of them end"
            await _in_turn(turns, error_answer(429, "TooManyRequests", message))(scope, receive, send)
            return
        scope[ADMITTED_KEY] = True
        self._at_work[caller.name] += 1
        try:
            if scope["path"].endswith("/events"):
                # A stream may last for days: it waits for its turn alone.
                async with turns:
                    await asyncio.sleep(0)
                await self._app(scope, receive, send)
            else:
                await _in_turn(turns, self._app)(scope, receive, send)
        finally:
            self._at_work[caller.name] -= 1


def _in_turn(turns: asyncio.Semaphore, app: ASGIApp) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async with turns:
            # An answer that waits for nothing would be followed by the next one before anything else is done.
            await asyncio.sleep(0)
            await app(scope, receive, send)

    return answer


def forbidden(caller: Caller, refusal: str) -> str:
    """Say which request a token does not allow, and who can give another."""
    return (
        f"the token '{caller.name}' has the scope '{caller.scope}', which {refusal}. The administrator of the service "
        "can make another one with `dkgp token add`"
    )


def _shown_token(scope: Scope) -> bytes:
    """The bearer token of a request; empty, which belongs to nobody, unless there is exactly one."""
    credentials = _values(scope, b"authorization")
    scheme, _, token = credentials[0].partition(b" ") if len(credentials) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _foreign(scope: Scope) -> str | None:
    """Say why a request may come from another site; None where it does not.

    The port is not compared: behind a forwarded port (`ssh -L`) it is another one, and a foreign site cannot choose the
    host name anyway.
    """
    hosts = _values(scope, b"host")
    host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
    if not _is_this_machine(host):
        return (
            f"without a token this service answers only at localhost, 127.0.0.1 and [::1]; got '{host[:100]}'. "
            "Start it without --no-token to reach it by another name"
        )
    if scope["path"] in OPEN_PATHS:
        # A link to the page may stand anywhere; the page holds no data, and nobody may frame it.
        return None
    for value in _values(scope, b"sec-fetch-site"):
        if value not in (b"same-origin", b"none"):
            return "a page of another site sent this request; open the service's own page"
    for value in _values(scope, b"origin"):
        if value.decode("latin-1").lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return "a page of another site sent this request; open the service's own page"
    return None


def _is_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if "@" in host or "/" in host:
        return False
    return name == "localhost" or is_loopback_address(name)


# Lines a minute of each token, and of all requests without one: nobody must be able to push the others out. With so
# many, the log reaches back two days for refusals and reads, and four hours for changes.
LINES_PER_MINUTE = 60
CHANGES_PER_MINUTE = 600
# Repeated reads (metrics, a job that is waited for) are logged once an hour.
REPEATED_READ_SECONDS = 3600.0
REMEMBERED_READS = 1000
_CALL = re.compile(r"/v1/jobs(?:/([0-9a-f]{12})(?:/(?:events|curve|cancel|resume))?)?|/v1/service|/metrics")


class AuditedRequests(Layer):
    """Writes down requests as they are answered: changes, refusals, and reads, the same one once an hour."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        super().__init__(app)
        self._audit = audit
        self._reads: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._minute, self._left_out = 0.0, 0
        # Of this minute, by token and whether they are of changes.
        self._lines: Counter[tuple[str | None, bool]] = Counter()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, before_answer(send, lambda message: self._record(scope, message)))

    def _record(self, scope: Scope, answer: Message) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        caller: Caller | None = scope.get(CALLER_KEY)
        status = int(answer["status"])
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        route, job = _route(scope["path"])
        what, job = f"{method} {route}", job or _made(answer.get("headers", ()))
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
        """Count a line; return False if it exceeds this minute's limit, which the next line reports."""
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
    """The route and the job's id of a path; nothing else of it is logged."""
    match = _CALL.fullmatch(path)
    if match is None:
        return "other", None
    return (path, None) if match[1] is None else (path.replace(match[1], "{job_id}"), match[1])


def _made(headers: Any) -> str | None:
    """The id of the job that a request created."""
    places = [value.decode("latin-1") for name, value in headers if name == b"location"]
    return _route(places[0])[1] if places else None
