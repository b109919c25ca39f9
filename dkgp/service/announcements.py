"""The service's folder, and how the commands of the same user find a service and its token without being told.

The folder is closed to other users, who could otherwise have jobs run with this user's rights. A service that made its
own token leaves a record in the user's state folder (`$XDG_STATE_HOME/dkgp/services`, else
`~/.local/state/dkgp/services`): the address at which it listens, and the file that holds the token. It keeps the record
locked as long as it listens. Commands send the token only to the address of a locked record: once a service has ended,
another user's process may listen there.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import InputError, StorageError
from dkgp.service.queue.locks import FileLock
from dkgp.service.settings import check_token

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
        return not FileLock.is_free(self.record)


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
        raise OSError(f"'{folder}' belongs to another user, or others may write to it")
    for path in _records():
        if FileLock.is_free(path):
            path.unlink(missing_ok=True)
    name = hashlib.sha256(f"{address} {port}".encode()).hexdigest()[:12]
    path = folder / f"{_machine()}-{name}.json"
    lock = FileLock.acquire(path, seconds=1.0)  # a command may test the lock at this moment
    if lock is None:
        raise OSError(f"another service reports that it listens at {address}:{port}")
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
    """The service of a record; None if it does not run, or is not at the given address."""
    try:
        if not _is_ours(path) or FileLock.is_free(path):
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
    except (OSError, StorageError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _meeting(address: _Address, port: int, scheme: str, url: str | None) -> _Address | None:
    """The address under which the URL reaches a service listening at `address`; None if it is another service's URL."""
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


def _machine() -> str:
    """Name of this machine and its network, so that machines that share a home are told apart."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/net").st_ino))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


TOKEN_NAME = "token"
_LARGEST_BYTES = 4096


def require_private_folder(folder: Path) -> None:
    """Make the folder for its owner alone, or check that an existing one is this user's and closed to others.

    Other users who could write to it could run jobs with this user's rights: `InputError`.
    """
    with translate_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            # In one step: at no time can others write to it.
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise InputError(f"the queue needs a folder; '{folder}' is a file") from None
        status = folder.stat()
    if status.st_uid != os.geteuid():
        raise InputError(
            f"the folder '{folder}' belongs to another user (uid {status.st_uid}; this is uid "
            f"{os.geteuid()}), who could run jobs with your rights. Name a folder of your own with "
            "--folder; it is created if it does not exist"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"other users can write to the folder '{folder}' (mode {stat.S_IMODE(status.st_mode):04o}), "
            "and could run jobs with your rights. Check that all files in it are yours, then close it "
            f"with: chmod 700 '{folder}'; or name a new folder"
        )


def private_token(folder: Path) -> str:
    """Return the token in the service's folder; the first service makes it, for its owner alone to read.

    `InputError` or `UsageError` if the file holds no token, or others can read it.
    """
    path = folder / TOKEN_NAME
    with translate_write_errors(path):
        # Written whole, then named: of two services that start at once one makes it, and both read the same.
        temporary = folder / f".{TOKEN_NAME}-{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # Fails where the name is taken, as opening with O_EXCL does.
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
    return read_private_token(path)


def read_private_token(path: Path) -> str:
    """Return the token in a file of this user's that nobody else can read.

    `InputError` where it is somebody else's, open to others or unreadable; `UsageError` where it holds no token.
    """
    advice = "remove it and start `dkgp serve` again, which makes another"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise InputError(f"the token '{path}' belongs to another user, or is no file; {advice}")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise InputError(
                    f"the token '{path}' can be read by other users (mode {stat.S_IMODE(status.st_mode):04o}); {advice}"
                )
            content = file.read(_LARGEST_BYTES)
    except OSError as error:
        raise InputError(f"the token '{path}' cannot be read: {error.strerror or error}; {advice}") from error
    return check_token(content.decode("utf-8", "replace").strip(), f"the token in '{path}'")
