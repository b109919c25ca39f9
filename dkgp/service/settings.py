"""Settings of the service: where it listens, who may talk to it, which paths jobs may touch, its limits."""

from __future__ import annotations

import math
import os
import re
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dkgp.cluster import ClusterOptions
from dkgp.errors import InputError, UsageError
from dkgp.service.roots import Roots

DEFAULT_PORT = 8780
TOKEN_VARIABLE = "DKGP_SERVICE_TOKEN"
SHORTEST_TOKEN = 16
DEFAULT_DEADLINE_SECONDS = 7 * 86_400.0
DEFAULT_KEEP_SECONDS = 90 * 86_400.0
DEFAULT_FOLDER_BYTES = 10 * 2**30
LARGEST_TOKEN_FILE_BYTES = 4096
_LIMITS = (
    *("concurrent_jobs", "concurrent_jobs_per_token", "job_deadline_seconds", "job_memory_bytes", "keep_seconds"),
    *("max_folder_bytes", "max_queued", "max_queued_per_token", "max_body_bytes"),
)
# Characters that an Authorization header carries without quoting.
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class ServiceSettings:
    """Everything that `dkgp serve` is told; checked when made."""

    # Of the queue, the jobs' event files and their locks; on one host's own disk.
    folder: str
    host: str = "127.0.0.1"
    # 0 takes any that is free.
    port: int = DEFAULT_PORT
    # Without one the service takes its own, which lies in its folder.
    token: str | None = field(default=None, repr=False)
    # One that reads metrics and the states of jobs, and may change nothing.
    metrics_token: str | None = field(default=None, repr=False)
    # Lets in all users of this machine instead; on a loopback address only.
    no_token: bool = False
    # A certificate (PEM) and its key, which may lie in the same file; or, `https` alone, one that the service makes.
    https: bool = False
    https_cert: str | None = None
    https_key: str | None = None
    # Beyond this machine the service speaks TLS, unless this says that a proxy or network protects it.
    plain_http: bool = False
    # Local folders and URLs that jobs may read and write; by default the working directory.
    roots: tuple[str, ...] = ()
    concurrent_jobs: int = 1
    # Of one token; None: as many as run at all.
    concurrent_jobs_per_token: int | None = None
    # Limits of every job; a job may ask for less. Memory of None: a job's part of this machine's memory.
    job_deadline_seconds: float | None = DEFAULT_DEADLINE_SECONDS
    job_memory_bytes: int | None = None
    # Time for which ended jobs are remembered, and bytes of all jobs' own folders, beyond which the oldest are
    # forgotten. Outputs of jobs elsewhere are never removed.
    keep_seconds: float | None = DEFAULT_KEEP_SECONDS
    max_folder_bytes: int | None = DEFAULT_FOLDER_BYTES
    max_queued: int = 10_000
    max_queued_per_token: int = 1_000
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    max_body_bytes: int = 2**20

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"a port is a number from 0 (any free port) to 65535; got {self.port}")
        for name, value in (
            ("concurrent jobs", self.concurrent_jobs),
            ("concurrent jobs of a token", self.concurrent_jobs_per_token),
            ("queued jobs", self.max_queued),
            ("queued jobs of a token", self.max_queued_per_token),
            ("bytes of a job's memory", self.job_memory_bytes),
            ("bytes of the jobs' folders", self.max_folder_bytes),
            ("bytes of a request", self.max_body_bytes),
        ):
            if value is not None and value < 1:
                raise UsageError(f"the limit of {name} must be at least 1; got {value}")
        for name, seconds in (
            ("job deadline", self.job_deadline_seconds),
            ("time for which jobs are kept", self.keep_seconds),
        ):
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"the {name} must be above 0 seconds; got {seconds}")
        if self.metrics_token is not None:
            check_token(self.metrics_token, "the token for metrics")
            if self.no_token or self.metrics_token == self.token:
                raise UsageError(
                    "the token for metrics must differ from the service's token and cannot be used with "
                    "--no-token; give another one, or leave --metrics-token-file out"
                )
        if self.token is not None:
            check_token(self.token, "the token")
            if self.no_token:
                raise UsageError(
                    f"got both a token (--token-file or {TOKEN_VARIABLE}) and --no-token; leave one of them out"
                )
        elif not is_loopback(self.host) and self.no_token:
            raise UsageError(
                f"with --no-token, everyone who can reach '{self.host}' could use the service. Leave "
                "--no-token out, or listen on this machine alone: --host 127.0.0.1"
            )
        self._check_tls()
        object.__setattr__(self, "folder", os.path.realpath(os.path.expanduser(self.folder)))
        # Jobs' processes work in folders of their own.
        object.__setattr__(self, "cluster", self.cluster.anchored())
        object.__setattr__(self, "roots", Roots(self.roots or (os.getcwd(),)).urls)

    @property
    def speaks_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.https or self.https_cert is not None

    def _check_tls(self) -> None:
        if self.https_key is not None and self.https_cert is None:
            raise UsageError("got --https-key without --https-cert; name the certificate, too, or let --https make one")
        if self.https and self.https_cert is not None:
            raise UsageError(
                "got both --https (make a certificate) and --https-cert (use this certificate); give one of them"
            )
        if self.plain_http and self.speaks_tls:
            raise UsageError("got --plain-http and TLS; leave one of them out")
        if not (self.speaks_tls or self.plain_http or is_loopback(self.host)):
            raise UsageError(
                f"at '{self.host}' others could read token and data on the way. Add --https (a "
                "certificate that the service makes), --https-cert FILE --https-key FILE, or "
                "--plain-http where a proxy or a private network protects them"
            )

    def limits(self) -> dict[str, Any]:
        """Limits of the service, for its clients."""
        return {name: getattr(self, name) for name in _LIMITS}


def read_token(token_file: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token: from the file, else from the environment, else None.

    `InputError` where the file cannot be read, or others on this machine can read it too; `UsageError` where it holds
    no token.
    """
    if token_file is None:
        token = environment.get(TOKEN_VARIABLE, "").strip()
        return check_token(token, f"the token in {TOKEN_VARIABLE}") if token else None
    path = Path(token_file).expanduser()
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise InputError(f"the token file '{path}' is not a file; put the token alone into a text file")
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InputError(
                f"the token file '{path}' can be written by others (mode {stat.S_IMODE(mode):04o}), who could set a "
                f"token of theirs; close it with: chmod 600 '{path}', and use a new token"
            )
        if mode & stat.S_IROTH:
            raise InputError(
                f"the token file '{path}' can be read by every user of this machine (mode {stat.S_IMODE(mode):04o}); "
                f"close it with: chmod 600 '{path}' (a mounted secret: file mode 0440), and use a new token"
            )
        with path.open("rb") as file:
            content = file.read(LARGEST_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"the token file '{path}' cannot be read: {error.strerror or error}") from error
    if len(content) > LARGEST_TOKEN_FILE_BYTES:
        raise UsageError(f"the token file '{path}' is larger than {LARGEST_TOKEN_FILE_BYTES} bytes; expected one token")
    return check_token(content.decode("utf-8", "replace").strip(), f"the token in '{path}'")


def check_token(token: str, source: str) -> str:
    """Return the token, or raise `UsageError`; the message never shows it."""
    if len(token) < SHORTEST_TOKEN or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} must be at least {SHORTEST_TOKEN} printable ASCII characters without spaces; got {len(token)} "
            'characters. Make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def is_loopback(host: str) -> bool:
    """True if all that the name stands for is this machine alone; `InputError` where it stands for nothing."""
    return all(ip_address(address.partition("%")[0]).is_loopback for _, address in resolve(host, 0))


def is_loopback_address(text: str) -> bool:
    """True for the text of an address that is this machine alone; a name is none."""
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """Return the addresses that a name stands for, with their families."""
    try:
        addresses = socket.getaddrinfo(
            host.strip("[]") or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InputError(f"'{host}' is no address to listen on: {error}. Try 127.0.0.1, or 0.0.0.0 for all") from error
    return [(family, str(address[0])) for family, _, _, _, address in addresses]
