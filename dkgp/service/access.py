"""Access to a service: tokens with names and scopes, and the audit log of the requests that they made.

`FOLDER/tokens.json` holds the SHA-256 of each token and no token. Tokens are 32 random bytes, which nobody guesses, so
a slow hash would only slow the service down (GitHub and the Python Package Index keep theirs in the same way). The
service looks at the file's state at every request: a token that was revoked is refused by the next one.

`FOLDER/audit.jsonl` has one JSON object a line, and only its owner reads it. Beyond `LARGEST_BYTES` it becomes
`audit.1.jsonl`, that one `audit.2.jsonl`, and so on, and the oldest is removed. No line holds a token: of a request it
has the call and the job's id, never its address, headers or body.

==========  ==========================================================================================================
"time"      ISO 8601, UTC
"who"       the token's name; null if the request showed no known token
"scope"     of that token
"from"      the other side's address (behind a proxy, the proxy's)
"what"      "POST /v1/jobs/{job_id}/cancel"; "other" for a request that is no call of the service; or a
            command's words, such as "token revoke"
"job"       the job's id, if there is one
"status"    of the answer
"left_out"  number of requests before this line that were not written, because one token or strangers sent too many
==========  ==========================================================================================================
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from dkgp.data.remote.storage import TEMPORARY_PREFIX, translate_write_errors
from dkgp.errors import InputError, StorageError, UsageError
from dkgp.service.queue.events import now_text
from dkgp.service.queue.locks import FileLock

log = logging.getLogger("dkgp.service")

Scope = Literal["read", "submit", "admin"]

SCOPES: tuple[Scope, ...] = get_args(Scope)
TOKENS_NAME, TOKENS_LOCK = "tokens.json", ".tokens-lock"
# Of the token that the service makes for its own user, or is given; jobs from before there were owners are its.
ADMIN_NAME = "admin"
# Name of the token that is given to the collector of metrics.
METRICS_NAME = "metrics"
# Name of all users of this machine, if there is no token.
ANYBODY = "anybody"
PREFIX = "dkgp_"
MOST_TOKENS = 1000
LONGEST_DAYS = 36_500.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST_TOKENS_BYTES = 2**20
_LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Caller:
    """The sender of a request: the name of the token that it showed, and that token's scope."""

    name: str
    scope: Scope

    @property
    def is_admin(self) -> bool:
        """True if every job is this caller's to see and to change."""
        return self.scope == "admin"

    def owns(self, owner: str | None) -> bool:
        """True if a job of this owner (None: from before there were owners) is this caller's."""
        return self.is_admin or (self.scope == "submit" and owner == self.name)


@dataclass(frozen=True)
class NamedToken:
    """A token as it is kept: all but the token itself. Times are ISO 8601, UTC."""

    name: str
    scope: Scope
    digest: str
    created: str
    expires: str | None = None

    @property
    def has_expired(self) -> bool:
        """True once its time is over."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= datetime.now(UTC)


class TokenBook:
    """The tokens of a service, its own included; told apart in constant time. Safe between threads.

    A file that is damaged, or that others may write to, lets nobody in but the admin.
    """

    def __init__(self, folder: Path, admin_token: str, metrics_token: str | None = None) -> None:
        self._path = folder / TOKENS_NAME
        self._admin = _digest(admin_token.encode())
        # Without a token: a text that equals no digest.
        self._metrics = "" if metrics_token is None else _digest(metrics_token.encode())
        self._turn = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._tokens: list[NamedToken] = []
        self._refresh()

    def caller(self, token: bytes) -> Caller | None:
        """Return whose token that is, or None."""
        self._refresh()
        digest = _digest(token)
        found = Caller(ADMIN_NAME, "admin") if hmac.compare_digest(digest, self._admin) else None
        if hmac.compare_digest(digest, self._metrics):
            found = found or Caller(METRICS_NAME, "read")
        # All are compared, so that no answer comes sooner than another.
        for known in self._tokens:
            if hmac.compare_digest(digest, known.digest) and not known.has_expired:
                found = found or Caller(known.name, known.scope)
        return found

    def _refresh(self) -> None:
        with self._turn:
            state = _state(self._path)
            if state == self._seen:
                return
            try:
                self._tokens = read_tokens(self._path.parent)
            except (InputError, StorageError) as error:
                self._tokens = []
                log.error("tokens by name are refused: %s", error)
            self._seen = state


def read_tokens(folder: Path) -> list[NamedToken]:
    """Return the tokens in a service's folder, without those themselves; none where there is no file.

    `InputError` where the file is damaged, somebody else's, or open to others.
    """
    path = folder / TOKENS_NAME
    advice = "check who wrote it, remove it, and make the tokens again with `dkgp token add`"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"the tokens '{path}' cannot be read: {error.strerror or error}; {advice}") from error
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise InputError(
                f"the tokens '{path}' belong to another user or can be accessed by others (uid {status.st_uid}, mode "
                f"{stat.S_IMODE(status.st_mode):04o}; expected uid {os.geteuid()}, mode 0600); {advice}"
            )
        content = file.read(_LARGEST_TOKENS_BYTES + 1)
    try:
        tokens = [_token(entry) for entry in json.loads(content)["tokens"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the tokens '{path}' are damaged ({type(error).__name__}); {advice}") from None
    return tokens


def add_token(folder: Path, name: str, scope: Scope, days: float | None = None) -> tuple[str, NamedToken]:
    """Make a token, and keep its digest; return the token, which nobody can see again.

    `UsageError` for a name that is taken or no name, or a time that is none; errors as of `read_tokens`.
    """
    if not _NAME.fullmatch(name) or name in (ADMIN_NAME, ANYBODY, METRICS_NAME):
        raise UsageError(
            f"a token's name is 1 to 64 letters, digits, '.', '_' and '-', and none of '{ADMIN_NAME}', "
            f"'{METRICS_NAME}' and '{ANYBODY}', which the service uses itself; got {name[:80]!r}"
        )
    if scope not in SCOPES:
        raise UsageError(f"a token's scope is one of {', '.join(SCOPES)}; got {scope!r}")
    if days is not None and not 0 < days <= LONGEST_DAYS:
        raise UsageError(f"a token is valid for more than 0 and at most {LONGEST_DAYS:,.0f} days; got {days}")
    token = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(UTC)
    expires = None if days is None else (now + timedelta(days=days)).isoformat(timespec="seconds")
    made = NamedToken(name, scope, _digest(token.encode()), now.isoformat(timespec="seconds"), expires)

    def added(tokens: list[NamedToken]) -> list[NamedToken]:
        if any(known.name == name for known in tokens):
            raise UsageError(
                f"there is a token '{name}'; revoke it first (`dkgp token revoke`), or choose another name"
            )
        if len(tokens) >= MOST_TOKENS:
            raise UsageError(f"there are {MOST_TOKENS:,} tokens, the most a service takes; revoke some first")
        return [*tokens, made]

    _change(folder, added)
    return token, made


def revoke_token(folder: Path, name: str) -> NamedToken:
    """Remove a token: it is refused from the next request on. `InputError` where there is none of this name."""
    removed: list[NamedToken] = []

    def without(tokens: list[NamedToken]) -> list[NamedToken]:
        removed.extend(known for known in tokens if known.name == name)
        if not removed:
            names = ", ".join(known.name for known in tokens) or "none"
            raise InputError(f"there is no token '{name[:80]}' in '{folder}'; there are: {names}")
        return [known for known in tokens if known.name != name]

    _change(folder, without)
    return removed[0]


def _change(folder: Path, change: Callable[[list[NamedToken]], list[NamedToken]]) -> None:
    """Replace the file of tokens in one step, under a lock."""
    lock = FileLock.acquire(folder / TOKENS_LOCK, seconds=_LOCK_SECONDS)
    if lock is None:
        raise StorageError(f"another command changes the tokens in '{folder}'; try again when it has ended")
    try:
        tokens = change(read_tokens(folder))
        path = folder / TOKENS_NAME
        with translate_write_errors(path):
            # mkstemp's file is its owner's alone, from the first moment.
            handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=folder)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump({"tokens": [asdict(token) for token in tokens]}, file, indent=1)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
    finally:
        lock.release()


def _token(entry: dict[str, Any]) -> NamedToken:
    token = NamedToken(**entry)
    if token.scope not in SCOPES or not _NAME.fullmatch(token.name) or not re.fullmatch(r"[0-9a-f]{64}", token.digest):
        raise ValueError("no token")
    _ = token.has_expired
    return token


def _digest(token: bytes) -> str:
    # Of one length, so that the comparison tells nothing of the token's own.
    return hashlib.sha256(token).hexdigest()


def _state(path: Path) -> tuple[int, ...]:
    """Figures of the file that change when it is replaced or its mode changes."""
    try:
        status = path.lstat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode, status.st_uid


AUDIT_NAME = "audit.jsonl"
LARGEST_BYTES = 8 * 2**20
KEPT_FILES = 4


class AuditLog:
    """Appends lines; safe between threads, and a command may append while a service does."""

    def __init__(self, folder: Path, *, largest_bytes: int = LARGEST_BYTES, kept_files: int = KEPT_FILES) -> None:
        self.path = folder / AUDIT_NAME
        self.lost = 0
        self._largest_bytes, self._kept_files = largest_bytes, kept_files
        self._turn = threading.Lock()

    def write(self, what: str, **content: Any) -> None:
        """Append one line. Where that fails (a full disk) it is counted in `lost`, and the service goes on."""
        line = json.dumps({"time": now_text(), "what": what, **content}).encode() + b"\n"
        with self._turn:
            try:
                self._rotate(len(line))
                handle = os.open(
                    self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
                try:
                    os.fchmod(handle, 0o600)
                    os.write(handle, line)
                finally:
                    os.close(handle)
            except OSError as error:
                self.lost += 1
                if self.lost == 1:
                    log.error("the audit log '%s' cannot be written: %s", self.path, error)

    def _rotate(self, n_bytes: int) -> None:
        try:
            if self.path.lstat().st_size + n_bytes <= self._largest_bytes:
                return
        except FileNotFoundError:
            return
        for number in range(self._kept_files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._older(number), self._older(number + 1))
        os.replace(self.path, self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"audit.{number}.jsonl")
