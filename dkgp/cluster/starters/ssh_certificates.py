"""The certificate of one run on the hosts of a cluster that is started over ssh, for as long as it runs.

It goes through ssh itself, into a file that its owner alone can read. By dask's own way certificates in memory would
put the key into the command line of each process, where every user of the host sees it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from dkgp.cluster.starters.security import pem_of
from dkgp.errors import ClusterError

__all__ = ["certificates_on_hosts"]

_FILE = "certificate.pem"
_SECONDS = 60.0


@contextmanager
def certificates_on_hosts(arguments: Mapping[str, Any], security: Any) -> Iterator[str]:
    """Lay the certificate and its key down on all hosts; remove them at the end.

    Parameters
    ----------
    arguments : mapping
        Of dask's SSHCluster.
    security : distributed.Security
        With one certificate in memory, which is its own authority.

    Yields
    ------
    str
        The file, at the same place everywhere: authority, certificate and key in one.

    Raises
    ------
    ClusterError
        A host did not take it.
    """
    # Nobody can have guessed the name, so whatever has it is this run's: two of the names may mean one host.
    folder = f"/tmp/dkgp-{secrets.token_hex(16)}"
    content = pem_of(security)
    places = _places(arguments)
    try:
        _on_each(places, f"umask 077 && mkdir -p {folder} && cat > {folder}/{_FILE}", content)
        yield f"{folder}/{_FILE}"
    finally:
        _on_each(places, f"rm -rf {folder}", None)


def _places(arguments: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The hosts, each once for each way to connect to it."""
    hosts, options = arguments["hosts"], arguments.get("connect_options") or {}
    ways = options if isinstance(options, list) else [options] * len(hosts)
    found: list[tuple[str, dict[str, Any]]] = []
    for place in zip(hosts, ways, strict=False):
        if place not in found:
            found.append(place)
    return found


def _on_each(places: list[tuple[str, dict[str, Any]]], command: str, content: str | None) -> None:
    import asyncssh

    async def run(host: str, options: dict[str, Any]) -> None:
        async with asyncssh.connect(host, **options) as connection:
            result = await connection.run(command, input=content or "")
        # Nothing to remove is no failure; nothing to go on with is.
        if content is not None and result.exit_status != 0:
            raise ClusterError(
                f"the host {host} did not take the certificate of this run (exit status {result.exit_status}); see "
                "whether its /tmp can be written to, or give `tls_ca`, `tls_cert` and `tls_key`"
            )

    async def run_all() -> list[BaseException | None]:
        tasks = (asyncio.wait_for(run(host, options), _SECONDS) for host, options in places)
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    # In a thread of its own: this one may be running an event loop, as a notebook's does.
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(asyncio.run, run_all()).result()
    if content is not None:
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
