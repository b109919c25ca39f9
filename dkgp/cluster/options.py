"""A user's choice of where the work runs, checked as far as it can be without touching any cluster."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import dask.config

from dkgp.errors import InputError, UsageError

__all__ = ["QUEUEING_KINDS", "ClusterKind", "ClusterOptions", "UnreachableSchedulerError", "nearest"]

ClusterKind = Literal["auto", "none", "local", "processes", "slurm", "pbs", "lsf", "kubernetes", "gateway", "ssh"]

_BATCH_KINDS = ("slurm", "pbs", "lsf")
# These hand their workers to a queue, in which they may have to wait for their turn.
QUEUEING_KINDS = (*_BATCH_KINDS, "kubernetes", "gateway")
# A cluster of these kinds is started here and its size can change.
_SCALING_KINDS = ("processes", *QUEUEING_KINDS)
# What names a file or folder of this machine, among the fields and among the classes' own settings.
_FILES = ("scheduler_file", "tls_ca", "tls_cert", "tls_key", "config_file")
_PATH_SETTINGS = ("custom_cluster_spec", "local_directory", "log_directory", "shared_temp_directory")
# These start at most one worker each time they are asked, in this process, or none at all.
_SETTINGLESS_KINDS = ("auto", "none")


class UnreachableSchedulerError(InputError):
    """No scheduler answered at the address given."""


@dataclass(frozen=True)
class ClusterOptions:
    """A choice of where rounds run. All values are plain JSON types.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, tcp://host:port or tls://host:port.
    scheduler_file : str, optional
        A file that a scheduler wrote its address to.
    kind : str
        "none" runs without Dask, on this process's threads; "local" starts an in-process cluster; "processes" one
        worker process for each core; "slurm", "pbs" and "lsf" submit workers to that queueing system, "kubernetes" to
        the Dask operator, "gateway" to a Dask Gateway; "ssh" starts them on hosts; "auto" takes a configured scheduler,
        else "none" for small problems and "local" for the rest.
    workers : int, optional
        Workers of a cluster that is started here, or to wait for at a given scheduler.
    adaptive : (int, int), optional
        Least and most workers of a cluster that is started here and follows the work, instead of `workers`.
    threads_per_worker, worker_memory_bytes : int, optional
        Of a worker that is started here.
    worker_wait_seconds : float, optional
        How long to wait for workers; chosen by kind where None.
    tls_ca, tls_cert, tls_key : str, optional
        PEM files: the authority, this side's certificate, and its key where the certificate's file does not hold it.
        A cluster that is started here without them gets certificates of its own, made for the run.
    plain_text : bool
        Start a cluster whose connections are neither encrypted nor authenticated instead.
    settings : dict
        Keyword arguments of the class that starts the cluster, by the names of that class.
    config_file : str, optional
        A YAML file merged over dask's configuration while the cluster is used.
    connect_timeout_seconds : float
        How long a scheduler may take to answer.
    round_deadline_seconds : float
        How long one round may take.
    cache_bytes : int
        Feature cache of each worker process; at most half of `worker_memory_bytes`.
    """

    scheduler: str | None = None
    scheduler_file: str | None = None
    kind: ClusterKind = "auto"
    workers: int | None = None
    threads_per_worker: int | None = None
    adaptive: tuple[int, int] | None = None
    worker_memory_bytes: int | None = None
    worker_wait_seconds: float | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    plain_text: bool = False
    # What goes to a cluster's class may hold a password.
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    config_file: str | None = None
    connect_timeout_seconds: float = 20.0
    round_deadline_seconds: float = 900.0
    cache_bytes: int = 2 * 1024**3

    def __post_init__(self) -> None:
        if self.kind not in get_args(ClusterKind):
            raise UsageError(f"unknown cluster kind {self.kind!r}; known: {', '.join(get_args(ClusterKind))}")
        for name, value in (
            ("number of workers", self.workers),
            ("number of threads per worker", self.threads_per_worker),
            ("worker's memory in bytes", self.worker_memory_bytes),
        ):
            if value is not None and value < 1:
                raise UsageError(f"the {name} must be at least 1; got {value}")
        if self.worker_wait_seconds is not None and not self.worker_wait_seconds > 0:
            raise UsageError(f"the seconds to wait for workers must be positive; got {self.worker_wait_seconds}")
        if self.worker_memory_bytes is not None:
            object.__setattr__(self, "cache_bytes", min(self.cache_bytes, self.worker_memory_bytes // 2))
        self._check_adaptive()
        self._check_certificates()
        if self.settings and (self.kind in _SETTINGLESS_KINDS or self._finds_scheduler):
            where = "a running scheduler" if self._finds_scheduler else f"the cluster kind {self.kind!r}"
            raise UsageError(
                f"{where} takes no settings; got {', '.join(sorted(self.settings))}. They go with a --cluster that is "
                "started, such as slurm"
            )

    def _check_adaptive(self) -> None:
        if self.adaptive is None:
            return
        least, most = self.adaptive
        object.__setattr__(self, "adaptive", (least, most))  # JSON has lists only
        if self.workers is not None:
            raise UsageError(
                f"got both a fixed number of workers ({self.workers}) and adaptive limits ({least} to {most}); give one"
            )
        if not 1 <= least <= most:
            raise UsageError(
                f"adaptive workers need 1 <= MIN <= MAX, for a solve that has begun always needs a worker; got MIN "
                f"{least}, MAX {most}"
            )
        if self._finds_scheduler:
            raise UsageError(
                "--adaptive goes with a cluster that is started here; the workers of a running scheduler are whoever "
                "started them to add or remove. Leave it out: workers may come and go while the work runs"
            )
        if self.kind not in _SCALING_KINDS:
            raise UsageError(
                f"a cluster of kind {self.kind!r} cannot be adaptive; these can: {', '.join(_SCALING_KINDS)}"
            )

    def _check_certificates(self) -> None:
        if self.tls_key and not self.tls_cert:
            raise UsageError("--tls-key is the key of a certificate; give --tls-cert as well")
        if bool(self.tls_ca) != bool(self.tls_cert):
            given, missing = ("--tls-ca", "--tls-cert") if self.tls_ca else ("--tls-cert", "--tls-ca")
            raise UsageError(
                f"got {given} without {missing}: both sides of a connection show a certificate, and each checks that "
                "the authority has signed the other's. Give both"
            )
        if not self.plain_text:
            return
        if self.encrypts:
            raise UsageError("got both certificates and --plain-text, which rules them out; give one of them")
        if self._finds_scheduler:
            raise UsageError(
                "--plain-text goes with a cluster that is started here; at a running scheduler it is the address that "
                "says it (tcp:// or tls://). Leave it out"
            )
        if self.kind == "gateway":
            raise UsageError("a gateway brings certificates of its own; leave --plain-text out")

    def anchored(self) -> ClusterOptions:
        """Return options that mean the same to a process in another folder: relative paths count from this one's."""
        files = {name: os.path.abspath(path) for name in _FILES if (path := getattr(self, name)) is not None}
        folders = {name: self.settings[name] for name in _PATH_SETTINGS if isinstance(self.settings.get(name), str)}
        # Those with a variable or a `~` are for another host to read.
        absolute = {name: os.path.abspath(path) for name, path in folders.items() if path[:1] not in ("~", "$")}
        if self.kind in _BATCH_KINDS and not dask.config.get(f"jobqueue.{self.kind}.log-directory", None):
            # A queueing system's nodes may not see the other folder, and fail jobs whose output they cannot write.
            absolute.setdefault("log_directory", os.getcwd())
        return replace(self, **files, settings={**self.settings, **absolute})

    @property
    def _finds_scheduler(self) -> bool:
        return bool(self.scheduler or self.scheduler_file)

    @property
    def encrypts(self) -> bool:
        """True if certificates were given."""
        return self.tls_cert is not None

    def address(self) -> str | None:
        """Return the address of the scheduler to use, where one was named or configured."""
        if self.scheduler:
            return self.scheduler
        if self.scheduler_file:
            return _address_from_file(self.scheduler_file)
        if self.kind == "auto":
            configured = dask.config.get("scheduler-address", None)
            return str(configured) if configured else None
        return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the known name that is most like a wrong one, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def _address_from_file(path: str) -> str:
    """Read a scheduler file now: dask's own client would wait for a missing one for ever."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return str(document["address"])
    except FileNotFoundError:
        raise UnreachableSchedulerError(
            f"the scheduler file {path} does not exist. Start one with `dask scheduler --scheduler-file {path}`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreachableSchedulerError(f"the scheduler file {path} cannot be read: {error}") from error
