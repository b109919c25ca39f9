"""The client's connection: where it may go, what it carries, how long it is tried again, and its failures in words."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dkgp.errors import DkgpError, MissingExtraError, ServiceError, UsageError
from dkgp.service.settings import check_token, is_loopback_address

if TYPE_CHECKING:
    import httpx

# Full, in between, stopping, slow: each passes by itself.
TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})

TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class _FinalServiceError(ServiceError):
    """One that trying again cannot cure."""

    transient = False


def open_connection(
    url: str,
    token: str | None,
    tell: Callable[[str], None],
    transport: httpx.BaseTransport | None = None,
    is_there: Callable[[], bool] | None = None,
    authority: Path | None = None,
) -> httpx.Client:
    """Return a connection to the service at an address.

    It follows no redirect, which could carry the token elsewhere, and asks no proxy for what is on this machine. Where
    `is_there` says that the service is gone, requests fail before anything is sent. The certificate `authority` is
    trusted beside those of this machine. `UsageError` where the address or the token is none, `MissingExtraError`
    without httpx.
    """
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("httpx", "service", "Talking to a jobs service") from None
    host = _checked_host(url)
    headers = {"Accept": "application/json"}
    local = is_this_machine(host)
    if token is not None:
        headers["Authorization"] = f"Bearer {check_token(token, 'the token')}"
        if url.startswith("http:") and not local:
            tell(f"the token goes to {url} in plain text, for all on the way to read; use https where you can")

    def require(request: httpx.Request) -> None:
        if is_there is not None and not is_there():
            raise httpx.ConnectError("the service has ended", request=request)

    return httpx.Client(
        base_url=url,
        event_hooks={"request": [require]},
        headers=headers,
        timeout=TIMEOUT_SECONDS,
        follow_redirects=False,
        trust_env=not local,
        # Made here so that SSL_CERT_FILE holds for loopback too.
        verify=_trusting(authority) if url.startswith("https:") else True,
        transport=transport,
    )


def _trusting(authority: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authority is not None:
        context.load_verify_locations(authority)
    return context


def is_this_machine(host: str) -> bool:
    """True if a name or address is certainly this machine's own, without asking a name server."""
    return host == "localhost" or host.endswith(".localhost") or is_loopback_address(host)


def transport_error(error: httpx.HTTPError, url: str) -> ServiceError:
    """Return the failure of a connection in words."""
    reason = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return _FinalServiceError(
            f"the certificate of {url} cannot be trusted ({reason}); name the authority's certificate in SSL_CERT_FILE"
        )
    if "WRONG_VERSION_NUMBER" in reason or "UnsupportedProtocol" in type(error).__name__:
        return _FinalServiceError(f"{url} does not speak TLS ({reason}); use http:// or check the port")
    return ServiceError(
        f"no answer from the jobs service at {url} ({reason}). Start one with `dkgp serve`, or name another "
        "address with --service or DKGP_SERVICE_URL"
    )


def _checked_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"the service's address {url!r} cannot be read: {error}; expected http://host:port") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError("the service's address holds a user name or password; give a token with --token-file instead")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a service; expected http://host:port or https://host:port")
    return host


class Patience:
    """Pauses after failures that may pass by themselves, for so many seconds; `tell` is called with the first one.

    tenacity would not do: its deadline belongs to one call and counts from the first attempt, while this one counts
    from the first failure since anything went well, in the middle of a stream too.
    """

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self.failures = 0
        self._seconds, self._tell = seconds, tell
        self._since = 0.0

    def reset(self) -> None:
        """Begin anew: something went well."""
        self.failures = 0

    def after_failure(self, error: DkgpError, wanted_pause: float | None = None) -> None:
        """Pause, as long at least as the other side asked for; raise the error where the deadline has passed.

        An error whose attribute `transient` is false is raised at once.
        """
        now = time.monotonic()
        if not self.failures:
            self._since = now
        remaining = self._since + self._seconds - now
        if remaining <= 0 or not getattr(error, "transient", True):
            raise error
        if not self.failures:
            self._tell(f"{error}; trying again for {self._seconds:.0f} s")
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures, 16), LONGEST_PAUSE_SECONDS)
        # Spread, so that many clients of one service that comes back do not all come back at once.
        pause *= random.uniform(0.5, 1.0)
        self.failures += 1
        time.sleep(min(max(pause, wanted_pause or 0.0), remaining))
