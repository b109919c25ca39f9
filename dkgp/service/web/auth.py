"""Access to the service: a bearer token; without one, this machine's own programs and the service's own page."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dkgp.service.settings import is_loopback_address
from dkgp.service.web.answers import error_answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# They hold no data: the page asks for the token itself.
OPEN_PATHS = frozenset({"/", "/page.js", "/page.css", "/icon.svg", "/healthz", "/docs", "/openapi.json"})
UNAUTHORISED = (
    "this service needs its token: send the header 'Authorization: Bearer TOKEN' "
    "(command line: --token-file FILE or DKGP_SERVICE_TOKEN)"
)


class Guard:
    """Lets only those requests through that may be answered.

    With a token, everything but `OPEN_PATHS` needs it; a missing and a wrong one are answered alike. Without one, the
    service listens on loopback alone, and what has to be kept out are web pages in a browser on this machine: requests
    that another site sent, and names that another site has pointed at this machine (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        # Digests are of one length, so that the comparison tells nothing of the token's own.
        self._digest = None if token is None else _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._digest is not None:
            if scope["path"] not in OPEN_PATHS and not self._shows_token(scope):
                await error_answer(401, "Unauthorised", UNAUTHORISED)(scope, receive, send)
                return
        elif (refusal := _foreign(scope)) is not None:
            await error_answer(403, "ForeignRequest", refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _shows_token(self, scope: Scope) -> bool:
        credentials = _values(scope, b"authorization")
        scheme, _, token = credentials[0].partition(b" ") if len(credentials) == 1 else (b"", b"", b"")
        # Compared in any case, so that no answer comes sooner than another.
        is_token = hmac.compare_digest(_digest(token.strip()), self._digest or b"")
        return is_token and scheme.lower() == b"bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


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
