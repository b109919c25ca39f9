"""Records by which a user's commands find that user's services, and their tokens, by themselves.

A service that made its own token leaves a record in the user's state folder (`$XDG_STATE_HOME/dkgp/services`, else
`~/.local/state/dkgp/services`): where it listens, and which file holds the token. It keeps the record locked for as
long as it listens. A token is sent nowhere but to the address of a record that is locked: where the service has ended,
another user's process may listen there by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dkgp.service.private_folder import read_private_token
from dkgp.service.queue.locks import FileLock

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class AnnouncedService:
    """A service of this user that listens on this machine.

    `url` has a numeric address, so that no name leads elsewhere; `authority` is a certificate to trust, of a service
    that made its own.
    """

    url: str
    token_file: Path
    record: Path
    authority: Path | None = None

    def token(self) -> str:
        """Read the token; errors as of `read_private_token`."""
        return read_private_token(self.token_file)

    def is_there(self) -> bool:
        """True if the service still listens."""
        return _is_locked(self.record)


class Announcement:
    """A record of a service that listens; kept until it is withdrawn, or its process has ended."""

    def __init__(self, lock: FileLock) -> None:
        self._lock: FileLock | None = lock

    def withdraw(self) -> None:
        """Say that nobody listens there any more; before that is so."""
        if self._lock is not None:
            self._lock.path.unlink(missing_ok=True)
            self._lock.release()
            self._lock = None


def announce(listener: socket.socket, token_file: Path, authority: Path | None = None) -> Announcement:
    """Let this user's commands find a service; with an `authority` it speaks TLS.

    `StorageError` or `OSError` where the user's state folder cannot be written to or is not this user's own.
    """
    address, port = listener.getsockname()[:2]
    folder = _state_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_ours(folder):
        raise OSError(f"'{folder}' is somebody else's, or others may write to it")
    for path in _records():
        if not _is_locked(path):
            path.unlink(missing_ok=True)
    name = hashlib.sha256(f"{address} {port}".encode()).hexdigest()[:12]
    path = folder / f"{_machine()}-{name}.json"
    lock = FileLock.acquire(path)
    until = time.monotonic() + 1.0
    while lock is None and time.monotonic() < until:
        time.sleep(0.05)  # a command may be looking whether it is locked
        lock = FileLock.acquire(path)
    if lock is None:
        raise OSError(f"another service says that it listens at {address}:{port}")
    where = {} if authority is None else {"authority": str(authority)}
    content = json.dumps({"address": address, "port": port, "token_file": str(token_file), **where})
    os.ftruncate(lock.handle, 0)
    os.pwrite(lock.handle, content.encode(), 0)
    return Announcement(lock)


def find_service(url: str | None) -> AnnouncedService | None:
    """Return this user's service at an address, or the only one that there is where no address is given.

    An address is `http://host:port` or, with TLS, `https://host:port`; the host is an address of this machine, or
    `localhost`.
    """
    services = [service for path in _records() if (service := _service(path, url)) is not None]
    if url is None:
        return services[0] if len(services) == 1 else None
    return services[0] if services else None


def _service(path: Path, url: str | None) -> AnnouncedService | None:
    """The service of a record, at an address if one is given; None where it is not that one or does not run."""
    try:
        if not _is_ours(path) or not _is_locked(path):
            return None
        content = json.loads(path.read_bytes())
        address, port = ipaddress.ip_address(content["address"].partition("%")[0]), int(content["port"])
        authority = None if content.get("authority") is None else Path(content["authority"])
        scheme = "http" if authority is None else "https"
        host = _meeting(address, port, scheme, url)
        if host is None:
            return None
        name = f"[{host}]" if host.version == 6 else str(host)
        return AnnouncedService(f"{scheme}://{name}:{port}", Path(content["token_file"]), path, authority)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _meeting(address: _Address, port: int, scheme: str, url: str | None) -> _Address | None:
    """The address at which a service that listens at one is reached by a URL; None where the URL is another's."""
    loopback = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    nearest = loopback if address.is_unspecified else address
    if url is None:
        return nearest
    parts = urlsplit(url)
    # Where the service itself speaks no TLS, an https address is somebody's proxy.
    if parts.scheme != scheme or (parts.port or {"http": 80, "https": 443}[scheme]) != port or parts.path.strip("/"):
        return None
    if parts.hostname == "localhost":
        return nearest if nearest.is_loopback else None
    host = ipaddress.ip_address(parts.hostname or "")
    if host == address or (address.is_unspecified and host.version == address.version and host.is_loopback):
        return host
    return None


def _records() -> Iterator[Path]:
    with contextlib.suppress(OSError, RuntimeError):  # without a home there are none
        if _is_ours(_state_folder()):
            yield from sorted(_state_folder().glob(f"{_machine()}-*.json"))


def _state_folder() -> Path:
    state_home = os.environ.get("XDG_STATE_HOME", "")
    # By the XDG specification a relative path is to be ignored.
    return (Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state") / "dkgp" / "services"


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two commands at once do not take each other for the service.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _machine() -> str:
    """Name of this machine, as its network sees it, among others with the same home: 127.0.0.1 is another there."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/net").st_ino))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
