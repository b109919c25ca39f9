"""The user's choice of where the work runs, and the kinds of cluster to choose from.

`ClusterOptions` are checked as far as that is possible without touching any cluster. A kind of cluster is declared in
the file that starts it: `KINDS.add(ClusterKind(...))` at the end of a module of `dkgp.cluster.starters`, or of a module
that an installed package names in the entry point group `dkgp.clusters`. The command line, the checks and the handling
of a running cluster follow from the declaration.

Every user of a machine sees its command lines (`ps`). So `KEY=@FILE` takes a setting's value from a file that others
cannot read, and `KEY=@env:NAME` from an environment variable; messages hide such values.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from dkgp.errors import InputError, UsageError
from dkgp.registry import Extra, Group, LaterModule, Option, Registry, byte_budget, byte_count

dask: Any = LaterModule("dask")

# Names of files or folders of this machine, among the fields and among the classes' own settings.
_FILES = ("scheduler_file", "tls_ca", "tls_cert", "tls_key", "config_file", "performance_report")
_PATH_SETTINGS = ("custom_cluster_spec", "local_directory", "log_directory", "shared_temp_directory")


class UnreachableSchedulerError(InputError):
    """No scheduler answered at the address given."""


WHERE = Group("Where the work runs", place=4)


def _kinds() -> dict[str, Any]:
    kinds = cluster_kinds()
    by_help: dict[str, list[str]] = {}
    for kind in kinds:
        by_help.setdefault(kind.help, []).append(kind.name)
    described = "; ".join(f"{', '.join(names)}: {text}" for text, names in by_help.items())
    precedence = (
        "The first of these decides: `scheduler`, `scheduler_file`, `cluster`, dkgp.cluster in Dask's configuration."
    )
    return {"choices": tuple(kind.name for kind in kinds), "help": f"{described}. {precedence}"}


def _setting(value: str) -> tuple[str, Any]:
    """Read KEY=VALUE, the value JSON where it is, else text; or KEY=@FILE, KEY=@env:NAME, which hold it."""
    name, separator, text = value.partition("=")
    if not separator or not name.strip():
        raise ValueError("expected KEY=VALUE, such as queue=short; got no '='.")
    if (secret := read_secret(text)) is not None:
        return name.strip(), secret
    try:
        return name.strip(), json.loads(text)
    except ValueError:
        return name.strip(), text


def _amount(value: str) -> tuple[str, float]:
    """Read NAME=AMOUNT."""
    name, _, text = value.partition("=")
    try:
        return name.strip(), float(text)
    except ValueError:
        raise ValueError("expected NAME=AMOUNT, such as dkgp=1.") from None


SCHEDULER = Option(
    help="Address of a running Dask scheduler, tcp://host:port or tls://host:port.", metavar="ADDRESS", group=WHERE
)
SCHEDULER_FILE = Option(
    help="File with the address of a running Dask scheduler, which the scheduler wrote.",
    metavar="FILE",
    group=WHERE,
)
KIND = Option("cluster", late=_kinds, spellings=("--cluster",), group=WHERE)
WORKERS = Option(
    help="Number of workers to start. With a running scheduler: number of workers to wait for.",
    metavar="N",
    group=WHERE,
)
ADAPTIVE = Option(
    help="Start between MIN and MAX workers, depending on the work, instead of `workers`.",
    metavar="MIN MAX",
    group=WHERE,
)
THREADS = Option(help="Number of threads of each started worker.", metavar="N", group=WHERE)
MEMORY = Option(
    help="Memory of each started worker, such as 8GiB.",
    type=byte_count,
    spellings=("--worker-memory",),
    metavar="SIZE",
    group=WHERE,
)
TILES = Option(
    help="Memory of each worker process for kernel entries that it keeps between products. auto: at most 1 GiB if a "
    "forecast says that this saves 5 % of the time, at most a third of the worker's memory if it saves 25 %, "
    "else none. For a greedy basis: a third of the worker's memory.",
    type=byte_budget,
    metavar="SIZE|auto|none",
    group=WHERE,
)
WAIT = Option(
    help="Longest wait for the workers to start.  [default: 120; 600 for a queueing system]",
    spellings=("--worker-wait",),
    metavar="SECONDS",
    group=WHERE,
)
DEADLINE = Option(
    help="Longest time in which no task finishes. The cluster then counts as lost, and the run ends; it can be "
    "resumed.  [default: 900]",
    spellings=("--round-deadline",),
    metavar="SECONDS",
    group=WHERE,
)
AUTHORITY = Option(
    help="Certificate of the authority that signed the cluster's certificates (PEM).", metavar="FILE", group=WHERE
)
CERTIFICATE = Option(help="Certificate of this process and of the started workers (PEM).", metavar="FILE", group=WHERE)
KEY = Option(help="Key of `tls_cert` (PEM).  [default: in the same file]", metavar="FILE", group=WHERE)
PLAIN_TEXT = Option(
    help="Start the cluster without TLS. Everyone who can reach its ports can then run code there. By default, dkgp "
    "creates certificates for the run.",
    group=WHERE,
)
SETTINGS = Option(
    help="Argument of the Dask class that starts the cluster, such as queue=short. VALUE may be JSON. To keep a "
    "secret off the command line, write @FILE or @env:VARIABLE. May be repeated.",
    type=_setting,
    spellings=("--cluster-option",),
    metavar="KEY=VALUE",
    multiple=True,
    group=WHERE,
)
RESOURCES = Option(
    help="Dask resource that each task needs, such as dkgp=1. Only workers with this resource then get tasks, and "
    "its amount limits the tasks per worker. May be repeated.",
    type=_amount,
    metavar="NAME=AMOUNT",
    multiple=True,
    group=WHERE,
)
CONFIG_FILE = Option(
    help="YAML file with these options under the key dkgp.cluster. It may contain further configuration of Dask.",
    spellings=("--cluster-config",),
    metavar="FILE",
    group=WHERE,
)


PERFORMANCE_REPORT = Option(
    help="Write Dask's performance report of the run to this HTML file. The scheduler needs bokeh.",
    metavar="FILE",
    group=WHERE,
)


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
        The name of a `ClusterKind`, such as "none", which runs without Dask on this process's threads, "processes", one
        worker process for each core, or "slurm"; "auto" takes a configured scheduler, else "none" for small problems
        and "local", an in-process cluster, for the rest.
    workers : int, optional
        Workers of a cluster that is started here, or to wait for at a given scheduler.
    adaptive : (int, int), optional
        Least and most workers of a cluster that is started here and follows the work, instead of `workers`.
    threads_per_worker, worker_memory_bytes : int, optional
        Of a worker that is started here.
    worker_wait_seconds : float, optional
        How long to wait for workers; chosen by kind where None.
    round_deadline_seconds : float
        How long one round may go on without another task done.
    tls_ca, tls_cert, tls_key : str, optional
        PEM files: the authority, this side's certificate, and its key where the certificate's file does not hold it.
        A cluster that is started here without them gets certificates of its own, made for the run.
    plain_text : bool
        Start a cluster whose connections are neither encrypted nor authenticated instead.
    settings : dict
        Keyword arguments of the class that starts the cluster, by the names of that class.
    performance_report : str, optional
        A file for Dask's performance report of the work, an HTML page.
    resources : dict
        Dask's abstract resources that each task takes of its worker, amounts by name; of a running scheduler.
    secret_settings : tuple of str
        The names of those settings whose values no message may show; those that look like it are added.
    config_file : str, optional
        A YAML file merged over dask's configuration while the cluster is used.
    connect_timeout_seconds : float
        How long a scheduler may take to answer.
    cache_bytes : int
        Feature cache of each worker process; at most half of `worker_memory_bytes`.
    cache_tiles : int or "auto"
        Bytes of the kernel matrix that each worker process may keep between products; "auto": as far as it pays, 1 GiB
        at most, or, where it saves a quarter of the run, a third of the process's memory, or of the available memory
        of this machine; 0: nothing.
    """

    scheduler: Annotated[str | None, SCHEDULER] = None
    scheduler_file: Annotated[str | None, SCHEDULER_FILE] = None
    kind: Annotated[str, KIND] = "auto"
    workers: Annotated[int | None, WORKERS] = None
    adaptive: Annotated[tuple[int, int] | None, ADAPTIVE] = None
    threads_per_worker: Annotated[int | None, THREADS] = None
    worker_memory_bytes: Annotated[int | None, MEMORY] = None
    cache_tiles: Annotated[int | str, TILES] = "auto"
    worker_wait_seconds: Annotated[float | None, WAIT] = None
    round_deadline_seconds: Annotated[float, DEADLINE] = 900.0
    tls_ca: Annotated[str | None, AUTHORITY] = None
    tls_cert: Annotated[str | None, CERTIFICATE] = None
    tls_key: Annotated[str | None, KEY] = None
    plain_text: Annotated[bool, PLAIN_TEXT] = False
    # Arguments of a cluster's class, which may hold a password.
    settings: Annotated[dict[str, Any], SETTINGS] = field(default_factory=dict, repr=False)
    resources: Annotated[dict[str, float], RESOURCES] = field(default_factory=dict)
    config_file: Annotated[str | None, CONFIG_FILE] = None
    performance_report: Annotated[str | None, PERFORMANCE_REPORT] = None
    secret_settings: tuple[str, ...] = ()
    connect_timeout_seconds: float = 20.0
    cache_bytes: int = 2 * 1024**3

    def __post_init__(self) -> None:
        kind = KINDS.find(self.kind)
        hidden = {*self.secret_settings, *secret_names(self.settings)}
        object.__setattr__(self, "secret_settings", tuple(sorted(hidden)))
        for name, value in (
            ("number of workers", self.workers),
            ("number of threads per worker", self.threads_per_worker),
            ("worker's memory in bytes", self.worker_memory_bytes),
        ):
            if value is not None and value < 1:
                raise UsageError(f"the {name} must be at least 1; got {value}")
        if self.worker_wait_seconds is not None and not self.worker_wait_seconds > 0:
            raise UsageError(f"the seconds to wait for workers must be positive; got {self.worker_wait_seconds}")
        if not self.round_deadline_seconds > 0:
            raise UsageError(f"the seconds for a round of tasks must be positive; got {self.round_deadline_seconds}")
        if self.worker_memory_bytes is not None:
            object.__setattr__(self, "cache_bytes", min(self.cache_bytes, self.worker_memory_bytes // 2))
        if self.cache_tiles != "auto" and (not isinstance(self.cache_tiles, int) or self.cache_tiles < 0):
            raise UsageError(f"`cache_tiles` takes a number of bytes, or auto; got {self.cache_tiles!r}")
        if self.performance_report is not None and kind.start is None and not self._finds_scheduler:
            raise UsageError(
                f"`performance_report` describes work on Dask, and `cluster` {self.kind} runs without it; take another "
                "`cluster`, such as local"
            )
        self._check_resources()
        self._check_adaptive()
        self._check_certificates()
        if self.settings and (self._finds_scheduler or not kind.takes_settings):
            where = "a running scheduler" if self._finds_scheduler else f"the cluster kind {self.kind!r}"
            raise UsageError(
                f"{where} takes no settings; got {', '.join(sorted(self.settings))}. They go with a `cluster` that is "
                "started, such as slurm"
            )

    def _check_resources(self) -> None:
        for name, amount in self.resources.items():
            if (
                isinstance(amount, bool)
                or not isinstance(amount, int | float)
                or not 0.0 < amount < math.inf
                or not name
            ):
                raise UsageError(
                    f"`resources` takes names with amounts above 0, such as dkgp=1; got {name or 'no name'}={amount!r}"
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
                "`adaptive` is for a cluster that dkgp starts. dkgp does not add workers to a running scheduler. "
                "Leave it "
                "out: you may add and remove workers during the run"
            )
        if KINDS.find(self.kind).adaptive is None:
            able = kinds_that(lambda kind: kind.adaptive is not None)
            raise UsageError(f"a cluster of kind {self.kind!r} cannot be adaptive; these can: {able}")

    def _check_certificates(self) -> None:
        if self.tls_key and not self.tls_cert:
            raise UsageError("`tls_key` is the key of a certificate; give `tls_cert` as well")
        if bool(self.tls_ca) != bool(self.tls_cert):
            present, missing = ("`tls_ca`", "`tls_cert`") if self.tls_ca else ("`tls_cert`", "`tls_ca`")
            raise UsageError(
                f"got {present} without {missing}: both sides of a connection show a certificate, and each checks that "
                "the authority has signed the other's. Give both"
            )
        if not self.plain_text:
            return
        if self.encrypts:
            raise UsageError("got both certificates and `plain_text`, which rules them out; give one of them")
        if self._finds_scheduler:
            raise UsageError(
                "`plain_text` goes with a cluster that is started here; at a running scheduler it is the address that "
                "says it (tcp:// or tls://). Leave it out"
            )
        if KINDS.find(self.kind).certificates == "own":
            raise UsageError(f"a {self.kind} brings certificates of its own; leave `plain_text` out")

    def anchored(self) -> ClusterOptions:
        """Return options that mean the same to a process in another folder: relative paths count from this one's."""
        files = {name: os.path.abspath(path) for name in _FILES if (path := getattr(self, name)) is not None}
        folders = {name: self.settings[name] for name in _PATH_SETTINGS if isinstance(self.settings.get(name), str)}
        # Those with a variable or a `~` are for another host to read.
        absolute = {name: os.path.abspath(path) for name, path in folders.items() if path[:1] not in ("~", "$")}
        log_setting = KINDS.find(self.kind).log_setting
        if log_setting is not None and not dask.config.get(log_setting, None):
            # A queueing system's nodes may not see the other folder, and fail jobs whose output they cannot write.
            absolute.setdefault("log_directory", os.getcwd())
        return replace(self, **files, settings={**self.settings, **absolute})

    def redacted(self, text: str) -> str:
        """Return text, such as another library's message, without the secrets among the settings."""
        return redacted(text, self.settings, self.secret_settings)

    @property
    def _finds_scheduler(self) -> bool:
        return bool(self.scheduler or self.scheduler_file)

    @property
    def most_workers(self) -> int:
        """Most workers of an adaptive cluster; 0 for other clusters."""
        return self.adaptive[1] if self.adaptive else 0

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
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


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


# Arguments of `dkgp.cluster.elastic.RoundAdaptive`, which itself keeps workers through the pauses between rounds.
ADAPTIVE_LOCALLY: Mapping[str, Any] = {"interval": "1s", "wait_count": 1}


@dataclass(frozen=True)
class ClusterKind:
    """A way to get workers; `name` and `help` are for the command line."""

    name: str
    help: str
    # Called with the `ClusterOptions`, the certificates to use (`distributed.Security` or None) and an `ExitStack` that
    # is to close the cluster; returns one of dask's cluster objects. None where no cluster is needed at all.
    start: Callable[..., Any] | None
    extra: Extra | None = None
    # "given": the user's, or some made for the run, are handed to it; "own": it brings its own; "none": it has none.
    certificates: Literal["given", "own", "none"] = "none"
    # Its workers are this process; or processes that this one starts.
    in_process: bool = False
    on_this_machine: bool = False
    # Workers wait for their turn: they get more time, and their number must be given.
    queues: bool = False
    # Further arguments for the cluster's `adapt` where this process decides on its size; none where its service does;
    # None where its size cannot follow the work.
    adaptive: Mapping[str, Any] | None = None
    takes_settings: bool = True
    # Key in dask's configuration of the folder for its workers' output; the setting "log_directory" overrides it, and
    # the current folder is the default.
    log_setting: str | None = None
    # Advice where workers do not come, and a hint that is added to an error of starting it.
    no_workers: str = "see the messages above"
    failure_hint: str = ""


KINDS: Registry[ClusterKind] = Registry("cluster kind", "dkgp.cluster.starters", "dkgp.clusters")


def cluster_kinds() -> list[ClusterKind]:
    """Return all kinds by name, those first that need nothing installed."""
    return sorted(KINDS.all().values(), key=lambda kind: (kind.extra is not None, kind.name))


def kinds_that(accepts: Callable[[ClusterKind], object]) -> str:
    """Return the names of the kinds that are accepted, for a message."""
    return ", ".join(kind.name for kind in cluster_kinds() if accepts(kind))


LARGEST_BYTES = 64 * 1024
# Shorter ones are words that stand in messages anyway.
SHORTEST_HIDDEN = 4
HIDDEN = "***"
_ENVIRONMENT = "@env:"
_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|auth", re.IGNORECASE)


class SecretText(str):
    """Text that was read from where secrets lie."""

    __slots__ = ()


def read_secret(text: str) -> SecretText | None:
    """Return the value that `@FILE` or `@env:NAME` stands for, without the line's end; None for any other text.

    `ValueError`: there is none, or others on this machine can read the file.
    """
    if not text.startswith("@"):
        return None
    if text.startswith(_ENVIRONMENT):
        name = text.removeprefix(_ENVIRONMENT)
        if not os.environ.get(name):
            raise ValueError(f"the environment has no variable {name!r}; set it, or give @FILE.")
        return SecretText(os.environ[name])
    path = Path(text[1:]).expanduser()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ValueError(
            f"'{path}' cannot be read: {error.strerror or error}. A value that begins with @ names a file; as JSON "
            'text, "\\"@...\\"", it does not.'
        ) from None
    if not stat.S_ISREG(mode) or mode & stat.S_IROTH:
        raise ValueError(
            f"'{path}' can be read by every user of this machine, or is no file (mode {stat.S_IMODE(mode):04o}); close "
            f"it with: chmod 600 '{path}'."
        )
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"'{path}' is larger than {LARGEST_BYTES:,} bytes; expected one value.")
    return SecretText(content.decode("utf-8", "replace").rstrip("\r\n"))


def secret_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that hold a secret: by where it was read from, or by their names."""
    return tuple(
        sorted(name for name, value in settings.items() if isinstance(value, SecretText) or _SECRET_NAME.search(name))
    )


def redacted(text: str, settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return text, such as another library's message, with the values of secret settings hidden."""
    values = {value for name in names for value in _texts(settings.get(name))}
    values |= {value for inner in settings.values() if isinstance(inner, Mapping) for value in _named_texts(inner)}
    # The longest first: one may hold another.
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST_HIDDEN:
            text = text.replace(value, HIDDEN)
    return text


def _named_texts(settings: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if _SECRET_NAME.search(str(name)):
            yield from _texts(value)
        elif isinstance(value, Mapping):
            yield from _named_texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
