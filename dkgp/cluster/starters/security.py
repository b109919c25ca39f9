"""Certificates of Dask's connections, and checks of the settings of the classes that start clusters."""

from __future__ import annotations

import inspect
import ipaddress
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkgp.cluster.options import KINDS, ClusterOptions, nearest
from dkgp.errors import InputError, UsageError
from dkgp.registry import LaterModule

if TYPE_CHECKING:
    from distributed import Security

dask: Any = LaterModule("dask")


_PARTS = ("cert", "key")
_HOW = (
    "Give `tls_ca`, `tls_cert` and `tls_key`, or set ca-file, client.cert and client.key under distributed.comm.tls in "
    "dask's configuration"
)


def security_from(options: ClusterOptions) -> Security | None:
    """Return the certificates given, or those of dask's configuration; None where there are none.

    One certificate serves all roles, for a cluster that is started here; given on purpose, it also forbids every
    connection in plain text. `InputError` where a file is missing or no certificate, or the key belongs to another one.
    """
    from distributed import Security

    if options.encrypts:
        for option, path in (
            ("`tls_ca`", options.tls_ca),
            ("`tls_cert`", options.tls_cert),
            ("`tls_key`", options.tls_key),
        ):
            if path is not None and not Path(path).is_file():
                raise InputError(f"{option}: there is no file '{path}'")
        # Workers are started in other folders, and by command lines that must name a key.
        ca, cert, key = (
            str(Path(path).absolute())
            for path in (options.tls_ca, options.tls_cert, options.tls_key or options.tls_cert)
            if path
        )
        roles = ("client", "scheduler", "worker")
        security = Security(
            require_encryption=True,
            tls_ca_file=ca,
            **{f"tls_{role}_cert": cert for role in roles},
            **{f"tls_{role}_key": key for role in roles},
        )
    elif all(dask.config.get(f"distributed.comm.tls.{name}", None) for name in ("ca-file", "client.cert")):
        security = Security()
    else:
        return None
    client = security.get_tls_config_for_role("client")
    try:
        if b"ENCRYPTED" in Path(client["key"] or client["cert"]).read_bytes():
            raise OSError("the key is encrypted")  # OpenSSL would ask for its password on the terminal
        security.get_connection_args("client")
    except OSError as error:  # errors of ssl are OSErrors too
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise InputError(
            f"the certificates cannot be used ({reason}): authority '{client['ca_file']}', certificate "
            f"'{client['cert']}', key '{client['key'] or 'in the same file'}'. Expected PEM files, the key without a "
            "password and belonging to the certificate"
        ) from None
    return security


def security_for_start(options: ClusterOptions) -> Security | None:
    """Return the security of a cluster that is started here: as `security_from`, else certificates of this run alone.

    None where plain text was asked for, where nothing listens ("local"), and for kinds whose starters take no
    certificates: a gateway brings its own, and Kubernetes is started in plain text only where that was asked for.
    """
    from distributed import Security

    if options.plain_text:
        return None
    security = security_from(options)
    if security is not None or KINDS.find(options.kind).certificates != "given":
        return security
    # In memory; without it any user of this machine could run code in the coordinator and the workers.
    made: Security = Security.temporary()
    return made


def is_in_memory(security: Any) -> bool:
    """True if these are certificates of a run, which no file holds."""
    return "\n" in (security.tls_ca_file or "")


def pem_of(security: Any) -> str:
    """Return certificates of a run as the content of one file: key and certificate, which is its own authority."""
    return f"{security.tls_worker_key}\n{security.tls_worker_cert}\n"


@contextmanager
def in_files(security: Any, folder: str) -> Iterator[Security]:
    """Write certificates of a run into a file below a folder, for their owner alone, and remove it at the end."""
    from distributed import Security

    try:
        private = tempfile.TemporaryDirectory(prefix=".dkgp-certificates-", dir=folder)
    except OSError as error:
        raise InputError(
            f"the certificates of this run cannot be written below '{folder}' ({error.strerror}), where all workers "
            "should see them; name another folder with `settings` shared_temp_directory=DIR"
        ) from None
    with private as private_folder:
        path = Path(private_folder) / "certificate.pem"
        path.touch(mode=0o600)
        path.write_text(pem_of(security), encoding="ascii")
        roles = {f"tls_{role}_{part}": str(path) for role in ("client", "scheduler", "worker") for part in _PARTS}
        yield Security(require_encryption=True, tls_ca_file=str(path), **roles)


def secure_address(address: str, security: Security | None) -> str:
    """Return the address with its protocol: tls where certificates rule out anything else and none is written.

    `UsageError` where the protocol that is written and the certificates do not go together.
    """
    if "://" not in address:
        return f"tls://{address}" if security is not None and security.require_encryption else address
    protocol = address.split("://", 1)[0]
    if protocol in ("tls", "wss") and security is None:
        raise certificates_needed(address)
    if protocol in ("tcp", "ws") and security is not None and security.require_encryption:
        raise UsageError(
            f"certificates were given, but the scheduler's address {address} is one in plain text. Write "
            f"{address.replace(protocol, 'tls' if protocol == 'tcp' else 'wss', 1)} where the scheduler was started "
            "with certificates, or leave them out"
        )
    return address


def certificates_needed(address: str) -> UsageError:
    """Return the error for a scheduler that takes encrypted connections only."""
    return UsageError(f"the scheduler at {address} takes encrypted connections, and no certificates were given. {_HOW}")


def plain_text_warning(address: str) -> str | None:
    """Return a warning about a connection that others could listen to, or use; None for a safe one."""
    protocol, separator, rest = address.rpartition("://")
    if (separator and protocol not in ("tcp", "ws")) or _is_loopback(rest):
        return None
    return (
        f"the connection to the scheduler at {address} is neither encrypted nor authenticated: everyone who reaches "
        "that port can run code there and see the data. Start the scheduler and its workers with certificates, and "
        "give "
        "`tls_ca`, `tls_cert` and `tls_key`"
    )


def _is_loopback(host_and_port: str) -> bool:
    host = host_and_port.split("/", 1)[0].rpartition(":")[0] or host_and_port
    host = host.strip("[]")
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    with suppress(OSError, UnicodeError):
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
        return all(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in addresses)
    return False


# Module that a worker loads before it registers, so that no round waits for its imports.
PRELOAD = "dkgp.operators.preload"
# Arguments that dkgp sets, and the option for each.
_OPTIONS = {
    "n_workers": "`workers`",
    "threads_per_worker": "`threads_per_worker`",
    "memory_limit": "`worker_memory_bytes`",
    "security": "`tls_ca`, `tls_cert` and `tls_key`, or `plain_text`",
}
# Arguments without a use for a job that waits for its results.
_REFUSED = {"self", "asynchronous", "loop", "start", "ip"}


def parameters(*functions: Callable[..., Any]) -> set[str]:
    """Return the names that can be given to these functions."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in kinds
    } - _REFUSED


def check_settings(kind: str, settings: Mapping[str, Any], known: set[str]) -> None:
    """Refuse settings that the cluster's class does not have, or that an option of dkgp's own says.

    `UsageError` names the setting, never its value, which may be a secret.
    """
    for name in settings:
        if name in _OPTIONS:
            raise UsageError(f"the setting {name!r} is said by {_OPTIONS[name]}; give that instead")
        if name not in known:
            available = ", ".join(sorted(known - set(_OPTIONS)))
            raise UsageError(f"`cluster` {kind} has no setting {name!r}{nearest(name, known)}. Known: {available}")


def refuse_both(settings: Mapping[str, Any], name: str, option: str) -> None:
    """Refuse a setting that says the same as an option that was given."""
    if name in settings:
        raise UsageError(f"got both {option} and the setting {name!r}, which say the same; give one of them")
