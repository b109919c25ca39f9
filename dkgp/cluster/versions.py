"""Comparison of the software of client, scheduler and workers, and what to do where it differs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dkgp
from dkgp.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

# Where one of these differs, tasks fail or, worse, compute something else.
_DECISIVE = ("dkgp", "python", "dask", "distributed")
# Where one of these differs, tasks work as a rule, but the bits of a result may differ.
_OTHERS = ("numpy", "scipy", "numba", "llvmlite", "zarr", "cloudpickle", "msgpack")
_ANSWER_SECONDS = 60.0
_MOST_NAMED = 3
_SAME = (
    "Start the scheduler and all workers from the same image or environment as this process, for instance with `pip "
    "install -c constraints.txt dkgp=={version}`"
)


@dataclass(frozen=True)
class Software:
    """Versions by package, None where one is not installed: this process's, the scheduler's, each worker's."""

    client: Mapping[str, str | None]
    scheduler: Mapping[str, str | None]
    workers: Mapping[str, Mapping[str, str | None]]


def fetch_versions(client: Client) -> Software:
    """Ask scheduler and workers at the same time. They answer from what is installed; nothing is imported there.

    `ClusterError` where somebody does not answer.
    """
    from distributed.versions import get_versions

    packages = [name for name in (*_DECISIVE, *_OTHERS) if name != "python"]

    async def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        scheduler: Any = client.scheduler
        of_scheduler, of_workers = await asyncio.gather(
            scheduler.versions(packages=packages),
            # A worker that leaves at this moment is not worth an error.
            scheduler.broadcast(msg={"op": "versions", "packages": packages}, on_error="ignore"),
        )
        return of_scheduler, of_workers

    try:
        scheduler, workers = client.sync(ask, callback_timeout=_ANSWER_SECONDS)
    except (TimeoutError, OSError) as error:
        raise ClusterError(
            f"scheduler and workers did not all answer within {_ANSWER_SECONDS:.0f} s ({type(error).__name__}). Look "
            "for a worker that is frozen or unreachable, and take it out of the cluster"
        ) from error
    return Software(
        _plain(get_versions(packages=packages)),
        _plain(scheduler),
        {address: _plain(installed) for address, installed in workers.items() if isinstance(installed, dict)},
    )


def _plain(installed: Mapping[str, Any]) -> dict[str, str | None]:
    packages = dict(installed["packages"])
    # From "3.11.7.final.0" what decides whether code can travel: the minor version.
    packages["python"] = ".".join(str(packages["python"]).split(".")[:2])
    return packages


def compare_versions(software: Software) -> list[str]:
    """Warnings where packages differ; `ClusterError` where dkgp, Python, dask or distributed do.

    Both have a table of who has what.
    """
    wrong = [name for name in _DECISIVE if _differs(software, name)]
    if wrong:
        table = "\n".join(_table(software, wrong))
        advice = _SAME.format(version=dkgp.__version__)
        raise ClusterError(f"scheduler or workers run other versions than this process:\n{table}\n{advice}")
    others = [name for name in _OTHERS if _differs(software, name)]
    if not others:
        return []
    table = "\n".join(_table(software, others))
    return [
        f"scheduler or workers run other versions of some packages than this process; results may differ in their last "
        f"bits:\n{table}"
    ]


def _differs(software: Software, name: str) -> bool:
    expected = software.client.get(name)
    return software.scheduler.get(name) != expected or any(
        installed.get(name) != expected for installed in software.workers.values()
    )


def _table(software: Software, names: list[str]) -> list[str]:
    rows = [("package", "this process", "scheduler", "workers")]
    for name in names:
        held: dict[str, list[str]] = {}
        for address, installed in sorted(software.workers.items()):
            held.setdefault(_shown(installed.get(name)), []).append(address)
        expected = _shown(software.client.get(name))
        parts = [
            f"{version} ({_named(addresses)})" for version, addresses in sorted(held.items()) if version != expected
        ]
        same = len(held.get(expected, []))
        if same:
            parts.append(f"{expected} ({same} of {len(software.workers)})")
        rows.append((name, expected, _shown(software.scheduler.get(name)), "; ".join(parts)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def _shown(version: str | None) -> str:
    return version or "missing"


def _named(addresses: list[str]) -> str:
    more = len(addresses) - _MOST_NAMED
    return ", ".join(addresses[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
