"""The service's own folder, which nobody else may write to, and the token that lies in it for this user's commands."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import InputError
from dkgp.service.settings import check_token

TOKEN_NAME = "token"
_LARGEST_BYTES = 4096


def require_private_folder(folder: Path) -> None:
    """Make the folder for its owner alone, or see that what is there is this user's and closed to others.

    Whoever else could write to it could have the service run jobs of theirs, with this user's rights: `InputError`.
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
            f"the folder '{folder}' belongs to another user (uid {status.st_uid}; this is uid {os.geteuid()}), who "
            "could have jobs run with your rights. Name a folder of your own with --folder; it is made where it is "
            "missing"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"others may write to the folder '{folder}' (mode {stat.S_IMODE(status.st_mode):04o}), and so have jobs "
            "run with your rights. See that it holds nothing of theirs, then close it with: "
            f"chmod 700 '{folder}'; or name a new folder"
        )


def private_token(folder: Path) -> str:
    """Return the token in the service's folder; the first service makes it, for its owner alone to read.

    `InputError` or `UsageError` where what is there is no token, or others can read it.
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
                raise InputError(f"the token '{path}' is no file of yours; {advice}")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise InputError(
                    f"the token '{path}' is open to others (mode {stat.S_IMODE(status.st_mode):04o}); {advice}"
                )
            content = file.read(_LARGEST_BYTES)
    except OSError as error:
        raise InputError(f"the token '{path}' cannot be read: {error.strerror or error}; {advice}") from error
    return check_token(content.decode("utf-8", "replace").strip(), f"the token in '{path}'")
