"""Access to the service: bearer tokens; without any, this machine's own programs and the service's own page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dkgp.service.access.tokens import ANYBODY, Caller, TokenBook
from dkgp.service.settings import is_loopback_address
from dkgp.service.web.answers import error_answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# They hold no data: the page asks for the token itself.
OPEN_PATHS = frozenset({"/", "/page.js", "/page.css", "/icon.svg", "/healthz", "/docs", "/openapi.json"})
# Where a request's scope says who sent it.
CALLER_KEY = "dkgp.caller"
# And what tells whether the token that it showed is still good: for answers that take hours.
STILL_KEY = "dkgp.still_known"
READING = frozenset({"GET", "HEAD"})
UNAUTHORISED = (
    "this service needs its token: send the header 'Authorization: Bearer TOKEN' "
    "(command line: --token-file FILE or DKGP_SERVICE_TOKEN)"
)


class Guard:
    """Lets only those requests through that may be answered.

    With tokens, everything but `OPEN_PATHS` needs one; a missing and a wrong one are answered alike, and one of the
    scope "read" changes nothing. Without, the service listens on loopback alone, and what has to be kept out are web
    pages in a browser on this machine: requests that another site sent, and names that another site has pointed at this
    machine (DNS rebinding). Whoever is let through is named in the request's scope, under `CALLER_KEY`.
    """

    def __init__(self, app: ASGIApp, tokens: TokenBook | None) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._tokens is None:
            if (refusal := _foreign(scope)) is not None:
                await error_answer(403, "ForeignRequest", refusal)(scope, receive, send)
                return
            scope[CALLER_KEY], scope[STILL_KEY] = Caller(ANYBODY, "admin"), lambda: True
        elif scope["path"] not in OPEN_PATHS:
            tokens, token = self._tokens, _shown_token(scope)
            caller = tokens.caller(token)
            if caller is None:
                await error_answer(401, "Unauthorised", UNAUTHORISED)(scope, receive, send)
                return
            scope[CALLER_KEY], scope[STILL_KEY] = caller, lambda: tokens.caller(token) == caller
            if caller.scope == "read" and scope["method"] not in READING:
                await error_answer(403, "Forbidden", forbidden(caller, "changes nothing"))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def forbidden(caller: Caller, refusal: str) -> str:
    """Say what a token may not do, and who can give another."""
    return (
        f"the token '{caller.name}' has the scope '{caller.scope}', which {refusal}; whoever runs the service gives "
        "another one with `dkgp token add`"
    )


def _shown_token(scope: Scope) -> bytes:
    """The bearer token of a request; empty, which is nobody's, where there is not just one."""
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
            f"without a token this service answers to localhost, 127.0.0.1 and [::1] alone; got '{host[:100]}'. "
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
