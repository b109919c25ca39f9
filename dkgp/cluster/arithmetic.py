"""Arithmetic of a process: its BLAS, NumPy's vector code, the C library. Where these differ, last bits may differ.

Kernel entries and their products are dkgp's own loops, the same on every processor, and a cluster may mix processors as
long as its workers do nothing else. Tasks that take products or factors from LAPACK, or functions from NumPy or the C
library, are marked `needs_one_arithmetic`. Timing decides which worker runs which of them, so all workers are compared
before the first one runs, and those that join later are let in only if they are like the others.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dkgp.cluster.threads import blas_libraries
from dkgp.errors import ClusterError
from dkgp.kernels.tiles.processor import compilation_target, fuses_multiply_add, no_fused_multiply_add

if TYPE_CHECKING:
    from distributed import Client

_ANSWER_SECONDS = 60.0
_MOST_NAMED = 8
_PARTS = {"blas": "BLAS", "vectors": "NumPy's vector code", "library": "C library"}
Task = TypeVar("Task", bound=Callable[..., Any])
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Arithmetic:
    """All that the bits of a process's results can depend on."""

    host: str
    # LLVM's name of it.
    processor: str
    # True if it has fused multiply-adds.
    fused: bool
    # Kind, version and architecture of each BLAS that is loaded: NumPy's and SciPy's are two.
    blas: tuple[str, ...]
    # Processor features that NumPy has code of its own for and uses.
    vectors: tuple[str, ...]
    # The C library and its version.
    library: str

    @property
    def parts(self) -> dict[str, str]:
        """The parts that must agree for bits to agree; the processor's name and the host need not."""
        return {"blas": _shown(self.blas), "vectors": _shown(self.vectors), "library": self.library}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for checkpoints."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def differences(self, recorded: object) -> str | None:
        """Differences from the arithmetic that a checkpoint records, in words; None if it is equal or unknown."""
        if not isinstance(recorded, Mapping):
            return None  # written before dkgp recorded it
        current = self.to_json()
        return (
            "; ".join(
                f"{title} {_shown(recorded[name])}, here {_shown(current[name])}"
                for name, title in {"processor": "processor", **_PARTS}.items()
                if name in recorded and recorded[name] != current[name]
            )
            or None
        )


@cache
def process_arithmetic() -> Arithmetic:
    """The arithmetic of this process."""
    processor = compilation_target()[1]
    # MKL does not say which code it runs, and Apple's library does not show at all: the processor decides.
    blas = sorted(
        f"{library.internal_api} {library.version} {getattr(library, 'architecture', None) or processor}"
        for library in blas_libraries()
    )
    configuration: Any = np.show_config(mode="dicts")
    return Arithmetic(
        host=socket.gethostname(),
        processor=processor,
        fused=fuses_multiply_add(),
        blas=tuple(blas) or (f"unknown {processor}",),
        vectors=tuple(configuration.get("SIMD Extensions", {}).get("found", ())),
        library=" ".join(platform.libc_ver()).strip() or f"{platform.system()} {platform.release()}",
    )


def needs_one_arithmetic(task: Task) -> Task:
    """Mark a block task whose bits depend on more than dkgp's own loops."""
    task.needs_one_arithmetic = True  # type: ignore[attr-defined]
    return task


def is_marked(task: Callable[..., Any]) -> bool:
    """True if `needs_one_arithmetic` marks a task."""
    return bool(getattr(task, "needs_one_arithmetic", False))


def fetch_arithmetic(client: Client) -> dict[str, Arithmetic]:
    """Ask all workers, by address; see `ask_workers`."""
    return ask_workers(client, process_arithmetic, "compute with")


def ask_workers(client: Client, question: Callable[[], Answer], what: str) -> dict[str, Answer]:
    """Have a function called by all workers, by address. One that leaves at this moment, or has no dkgp, is left out.

    `ClusterError` where a worker does not answer; `what` names the answer in messages.
    """
    try:
        workers: dict[str, Answer] = client.sync(
            client._run, question, on_error="ignore", callback_timeout=_ANSWER_SECONDS
        )
    except (TimeoutError, OSError) as error:
        raise ClusterError(
            f"some workers did not report within {_ANSWER_SECONDS:.0f} s the libraries that they {what} "
            f"({type(error).__name__}). Remove workers that are frozen or unreachable from the cluster"
        ) from error
    return workers


def require_fused_workers(workers: Mapping[str, Arithmetic]) -> None:
    """Refuse workers without fused multiply-adds; `ClusterError` names them and their hosts."""
    without = {address: arithmetic for address, arithmetic in sorted(workers.items()) if not arithmetic.fused}
    if without:
        first = next(iter(without.values()))
        raise ClusterError(f"workers {_named(without)}: {no_fused_multiply_add(first.processor)}")


def require_one_arithmetic(workers: Mapping[str, Arithmetic]) -> Arithmetic | None:
    """The arithmetic of all workers, None without workers; `ClusterError` lists the differences by host."""
    groups: dict[tuple[str, ...], dict[str, Arithmetic]] = {}
    for address, arithmetic in sorted(workers.items()):
        groups.setdefault(tuple(arithmetic.parts.values()), {})[address] = arithmetic
    if len(groups) < 2:
        return next(iter(workers.values()), None)
    kinds = sorted(groups.values(), key=len, reverse=True)
    differing = [name for name in _PARTS if len({next(iter(kind.values())).parts[name] for kind in kinds}) > 1]
    lines = []
    for kind in kinds:
        parts = next(iter(kind.values())).parts
        lines.append(f"  {_named(kind)}: " + "; ".join(f"{_PARTS[name]} {parts[name]}" for name in differing))
    raise ClusterError(
        "this work uses factors, products or functions of libraries. The workers have different libraries, so the "
        "bits of the result would depend on the worker of each task:\n" + "\n".join(lines) + f"\n{_ADVICE}"
    )


_ADVICE = (
    "Take workers of one kind; or give all of them the same OPENBLAS_CORETYPE (Haswell runs on every x86 processor "
    "that dkgp does) and NPY_DISABLE_CPU_FEATURES; or choose work that a mixed cluster does to the same bits: "
    "predictions without variances, or solvers that take no factor on the workers, such as gbcd"
)


def unfit(required: Arithmetic | None) -> str | None:
    """The reason why this process may not join, if any; `required` is the arithmetic of the run's workers."""
    arithmetic = process_arithmetic()
    parts = arithmetic.parts
    if not arithmetic.fused:
        return f"on this worker's host, {arithmetic.host}, {no_fused_multiply_add(arithmetic.processor)}"
    if required is None or parts == required.parts:
        return None
    differences = "; ".join(
        f"{_PARTS[name]}: {parts[name]} here, {value} there"
        for name, value in required.parts.items()
        if parts[name] != value
    )
    return (
        f"this worker, on {arithmetic.host}, computes with something else than the run's other workers "
        f"({differences}), and the run needs one arithmetic. {_ADVICE}"
    )


def _shown(value: object) -> str:
    return (" and ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)


def _named(workers: Mapping[str, Arithmetic]) -> str:
    named = [f"{address} (host {arithmetic.host})" for address, arithmetic in workers.items()]
    more = len(named) - _MOST_NAMED
    return ", ".join(named[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
