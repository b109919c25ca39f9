"""The jobs service as its clients see it: one method a call, with retries that never do a thing twice.

The connection decides where requests go, adds the token, repeats failed requests, and words their errors.
"""

from __future__ import annotations

import json
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dkgp.errors
from dkgp.commands.reporting.outputs import Document
from dkgp.errors import DkgpError, InputError, MissingExtraError, ServiceError, UsageError, WaitTimeoutError
from dkgp.service.queue.records import TERMINAL, JobStateError, QueueFullError, UnknownJobError
from dkgp.service.settings import check_token, is_loopback_address

if TYPE_CHECKING:
    import httpx


ID_LENGTH = 12
PAGE = 100
# A service that follows says something every ten seconds.
FOLLOW_SILENCE_SECONDS = 45.0
WAIT_POLL_SECONDS = (0.1, 2.0)


class ServiceClient:
    """Calls a jobs service.

    A call that gets no answer, loses its connection or meets a busy service is repeated, with growing pauses, for
    `retry_seconds`. Repeating is harmless: a submission carries a key by which the service recognises it. `tell` is
    called with messages for the user, such as that there is no answer yet. Nothing is sent once `is_there` says
    that the service of the token no longer listens; `transport` answers instead of the network; the certificate
    `authority` is trusted, too. A malformed address is
    a `UsageError`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_seconds: float = 15.0,
        tell: Callable[[str], None] = lambda message: None,
        is_there: Callable[[], bool] | None = None,
        transport: httpx.BaseTransport | None = None,
        authority: Path | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._tell = tell
        self._retry_seconds = retry_seconds
        self._connection = open_connection(self.url, token, tell, transport, is_there, authority)

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    # ---------------------------------------------------------------------------------------------------------- calls

    def submit(
        self,
        command: str,
        options: Mapping[str, Any],
        *,
        name: str | None = None,
        deadline_seconds: float | None = None,
        memory_bytes: int | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Submit a job; return its record.

        `options` are those of the job's dataclass in JSON types, local paths absolute. The same `idempotency_key` again
        returns the same job; by default it is a fresh one. Raises the service's errors, or `ServiceError`.
        """
        body: Document = {"command": command, "options": dict(options)}
        more = {"name": name, "deadline_seconds": deadline_seconds, "memory_bytes": memory_bytes}
        body |= {field: value for field, value in more.items() if value is not None}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._call("POST", "/v1/jobs", json=body, headers=headers)

    def job(self, job_id: str) -> Document:
        """Return the record of a job; `UnknownJobError` where there is none."""
        return self._call("GET", f"/v1/jobs/{job_id}")

    def jobs(self, *, states: Sequence[str] = (), limit: int = 50, before: str | None = None) -> Document:
        """Return `{"jobs": [...], "counts": {...}}`, the newest jobs first."""
        parameters: list[tuple[str, str | int | float | bool | None]] = [("state", state) for state in states]
        parameters.append(("limit", limit))
        if before is not None:
            parameters.append(("before", before))
        return self._call("GET", "/v1/jobs", params=parameters)

    def service(self) -> Document:
        """Return the service's description of itself."""
        return self._call("GET", "/v1/service")

    def cancel(self, job_id: str) -> Document:
        """Ask for the end of a job; return its record. `JobStateError` where it has ended."""
        return self._change(
            job_id, "cancel", lambda record: record["cancel_requested"] or record["state"] == "cancelled"
        )

    def resume(self, job_id: str) -> Document:
        """Put a job that ended short back into the queue; return its record. `JobStateError` where it cannot be."""
        return self._change(job_id, "resume", lambda record: record["state"] not in TERMINAL)

    def find(self, prefix: str) -> str:
        """Return the id that begins with the prefix.

        `UsageError` where several do or it is no prefix of one, `UnknownJobError` where none does.
        """
        if not prefix or len(prefix) > ID_LENGTH or not set(prefix) <= set("0123456789abcdef"):
            raise UsageError(
                f"{prefix!r} is not a job id; expected {ID_LENGTH} hexadecimal digits, or the first few of them "
                f"(`dkgp jobs` lists the ids)"
            )
        if len(prefix) == ID_LENGTH:
            return prefix
        ids = [record["id"] for record in self._all_jobs() if record["id"].startswith(prefix)]
        if not ids:
            raise UnknownJobError(f"no job's id begins with '{prefix}'; `dkgp jobs` lists them")
        if len(ids) > 1:
            first_ids = ", ".join(ids[:5]) + (" ..." if len(ids) > 5 else "")
            raise UsageError(f"{len(ids)} jobs' ids begin with '{prefix}' ({first_ids}); give more digits")
        return str(ids[0])

    # ---------------------------------------------------------------------------------------------- events and waiting

    def events(self, job_id: str, after: int = -1) -> Iterator[Document]:
        """Yield the events of a job so far whose sequence number is above `after`."""
        return self._events(job_id, after, follow=False)

    def follow(self, job_id: str, after: int = -1) -> Iterator[Document]:
        """Yield a job's events as they come, until it rests; over torn connections and restarts of the service."""
        while True:
            for event in self._events(job_id, after, follow=True):
                after = event["sequence"]
                yield event
            # The stream also ends where the service stops; then the job goes on when it is back.
            if self.job(job_id)["state"] in TERMINAL:
                yield from self._events(job_id, after, follow=False)
                return
            time.sleep(WAIT_POLL_SECONDS[0])

    def wait(self, job_id: str, *, until: float | None = None) -> Document:
        """Return the record of a job once it rests; `WaitTimeoutError` at `until` (of `time.monotonic()`)."""
        pause, longest = WAIT_POLL_SECONDS
        remaining = float("inf")
        while True:
            patience = Patience(min(self._retry_seconds, max(0.0, remaining)), self._tell)
            record = self._attempt("GET", f"/v1/jobs/{job_id}", patience)
            if record["state"] in TERMINAL:
                return record
            if until is not None:
                remaining = until - time.monotonic()
                if remaining <= 0:
                    raise WaitTimeoutError(
                        f"job {job_id} is still {record['state']} at the end of the timeout and continues. Wait "
                        f"again, or cancel it with `dkgp cancel {job_id}`"
                    )
                pause = min(pause, remaining)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    # ------------------------------------------------------------------------------------------------------- internals

    def _call(self, method: str, path: str, **arguments: Any) -> Document:
        return self._attempt(method, path, self._patience(), **arguments)

    def _attempt(self, method: str, path: str, patience: Patience, **arguments: Any) -> Document:
        """Repeat the call until there is an answer, or patience ends."""
        import httpx

        while True:
            try:
                response = self._connection.request(method, path, **arguments)
            except httpx.HTTPError as error:
                patience.after_failure(transport_error(error, self.url))
                continue
            if response.status_code in TRANSIENT_STATUSES:
                patience.after_failure(_error_of(response, self.url), _retry_after(response))
                continue
            return _document_of(response, self.url)

    def _change(self, job_id: str, verb: str, is_done: Callable[[Document], bool]) -> Document:
        patience = self._patience()
        try:
            return self._attempt("POST", f"/v1/jobs/{job_id}/{verb}", patience)
        except JobStateError:
            # The answer to an earlier attempt may have been lost on its way, and this refusal its consequence.
            if patience.failures and is_done(record := self.job(job_id)):
                return record
            raise

    def _events(self, job_id: str, after: int, *, follow: bool) -> Iterator[Document]:
        import httpx

        parameters: dict[str, Any] = {"after": after, "follow": "true" if follow else "false"}
        patience = self._patience()
        while True:
            try:
                with self._connection.stream(
                    "GET",
                    f"/v1/jobs/{job_id}/events",
                    params=parameters,
                    timeout=httpx.Timeout(20.0, read=FOLLOW_SILENCE_SECONDS),
                ) as response:
                    if response.status_code in TRANSIENT_STATUSES:
                        response.read()
                        patience.after_failure(_error_of(response, self.url), _retry_after(response))
                        continue
                    if response.status_code != 200:
                        response.read()
                        raise _error_of(response, self.url)
                    for line in response.iter_lines():
                        patience.reset()
                        if not line.strip():
                            continue  # keeps the connection alive
                        try:
                            event = json.loads(line)
                            is_new = event["sequence"] > parameters["after"]
                        except (ValueError, TypeError, KeyError):
                            raise _not_a_service(response, self.url) from None
                        if is_new:
                            parameters["after"] = event["sequence"]
                            yield event
                    return
            except httpx.HTTPError as error:
                patience.after_failure(transport_error(error, self.url))

    def _all_jobs(self) -> Iterator[Document]:
        before = None
        while page := self.jobs(limit=PAGE, before=before)["jobs"]:
            yield from page
            before = page[-1]["id"]

    def _patience(self) -> Patience:
        return Patience(self._retry_seconds, self._tell)


def exit_code_of(record: Mapping[str, Any]) -> int:
    """Return the exit code that the command itself would have ended with; that of an interruption for cancelled."""
    if record["exit_code"] is not None:
        return int(record["exit_code"])
    code = dkgp.errors.ExitCode
    return int(
        {"done": code.DONE, "not_converged": code.NOT_CONVERGED, "cancelled": code.INTERRUPTED}.get(record["state"], 1)
    )


def _document_of(response: httpx.Response, url: str) -> Document:
    if response.status_code not in (200, 201):
        raise _error_of(response, url)
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _not_a_service(response, url)
    return document


def _error_of(response: httpx.Response, url: str) -> DkgpError:
    """The error of an answer, with the service's message."""
    try:
        error = response.json()["error"]
        kind, message = str(error["type"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return _not_a_service(response, url)
    status = response.status_code
    if status == 401:
        return UsageError(
            f"{message}. Name the file that holds the service's token with --token-file (`dkgp serve` "
            "stores it in its --folder, where only the user who started it can read it), or set "
            "DKGP_SERVICE_TOKEN"
        )
    by_status: dict[int, type[DkgpError]] = {
        403: InputError,
        404: UnknownJobError,
        409: JobStateError,
        413: InputError,
        422: InputError,
        429: QueueFullError,
    }
    expected = by_status.get(status, ServiceError)
    named = getattr(dkgp.errors, kind, None)
    # The same error has the same exit code here as where the command is run itself.
    if status in (403, 422) and isinstance(named, type) and issubclass(named, DkgpError):
        try:
            return named(message)
        except TypeError:
            pass  # its constructor wants more than a message
    return expected(message)


def _not_a_service(response: httpx.Response, url: str) -> ServiceError:
    if response.is_redirect:
        target = response.headers.get("location", "somewhere else")
        return ServiceError(
            f"{url} redirects to {target}, and dkgp does not send a token there. Give the final address with --service"
        )
    kind = response.headers.get("content-type", "no type")
    return ServiceError(
        f"{url} answered with status {response.status_code} and {kind}, not as a dkgp service does; check the address "
        "(--service, DKGP_SERVICE_URL) and any proxy in between"
    )


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None


# Full, in between, stopping, slow: each passes by itself.
TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})

TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class _FinalServiceError(ServiceError):
    """An error that a retry cannot cure."""

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

    It follows no redirect, which could carry the token elsewhere, and uses no proxy on this machine. Where
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
            tell(
                f"the token is sent to {url} in plain text, so others on the network can read it; use https if possible"
            )

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
