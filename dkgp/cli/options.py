"""Options that several commands share, as decorators, and the types of their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import click_option, click_type, declared_options
from dkgp.cli.flags import in_flags
from dkgp.registry import Option, byte_budget, byte_count

if TYPE_CHECKING:
    from dkgp.cluster import ClusterOptions
    from dkgp.models.variance.variances import VarianceSettings

__all__ = [
    "checkpoint_options",
    "cluster_from",
    "cluster_options",
    "examples",
    "limit_options",
    "memory_limit_option",
    "model_options",
    "overwrite_option",
    "record_options",
    "seed_option",
    "solver_and_its_options",
    "together",
    "variance_given",
    "variance_options",
]

F = TypeVar("F", bound=Callable[..., Any])

CLUSTER_NAMES = (
    "scheduler",
    "scheduler_file",
    "cluster",
    "workers",
    "adaptive",
    "threads_per_worker",
    "worker_memory_bytes",
    "cache_tiles",
    "worker_wait_seconds",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "plain_text",
    "settings",
    "config_file",
)

# The option of each setting of the variances.


def examples(*lines: str) -> str:
    """Return an epilog that shows commands as they are typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def together(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the decorators as one, the first of them the outermost."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def setting(value: str) -> tuple[str, Any]:
    """Type of `--cluster-option`: KEY=VALUE, the value JSON where it is, else text."""
    name, separator, text = value.partition("=")
    if not separator or not name.strip():
        raise click.BadParameter("expected KEY=VALUE, such as queue=short; there is no '='.")
    try:
        return name.strip(), json.loads(text)
    except ValueError:
        return name.strip(), text


def _cluster_option() -> list[click.Option]:
    from dkgp.cluster.kinds import cluster_kinds

    kinds = cluster_kinds()
    by_help: dict[str, list[str]] = {}
    for kind in kinds:
        by_help.setdefault(kind.help, []).append(kind.name)
    told = "; ".join(f"{', '.join(names)}: {text}" for text, names in by_help.items())
    precedence = "Precedence: --scheduler, --scheduler-file, --cluster, dkgp.cluster in dask's configuration."
    names = tuple(kind.name for kind in kinds)
    return [click_option(Option("cluster", f"{told}. {precedence}  [default: auto]", choices=names))]


def cluster_options(function: F) -> F:
    """Add the options that say where the work runs; `cluster_from` takes the values."""
    return together(
        click.option("--scheduler", metavar="ADDRESS", help="Running Dask scheduler, tcp://host:port or tls://..."),
        click.option("--scheduler-file", metavar="FILE", help="File that a Dask scheduler wrote its address to."),
        declared_options(_cluster_option),
        click.option("--workers", type=int, metavar="N", help="Workers to start, or to wait for at a scheduler."),
        click.option(
            "--adaptive", type=int, nargs=2, metavar="MIN MAX", help="As many workers as the work needs, instead."
        ),
        click.option("--threads-per-worker", type=int, metavar="N", help="Threads of each worker started here."),
        click.option(
            "--worker-memory",
            "worker_memory_bytes",
            type=click_type(byte_count),
            metavar="SIZE",
            help="Memory of each worker started here, such as 8GiB.",
        ),
        click.option(
            "--cache-tiles",
            type=click_type(byte_budget),
            metavar="SIZE|auto|none",
            help="What each worker's process may keep of the kernel matrix between products. auto: nothing unless the "
            "run should take a twentieth less time for it, and then at most 1 GiB; up to a third of its memory where a "
            "quarter less. A greedy basis' columns: the third.  [default: auto]",
        ),
        click.option(
            "--worker-wait",
            "worker_wait_seconds",
            type=float,
            metavar="SECONDS",
            help="How long workers may take to come.  [default: 120; 600 from a queue]",
        ),
        click.option("--tls-ca", metavar="FILE", help="Authority that signed the cluster's certificates (PEM)."),
        click.option("--tls-cert", metavar="FILE", help="Certificate of this process and of workers started here."),
        click.option("--tls-key", metavar="FILE", help="Its key.  [default: in the certificate's file]"),
        click.option(
            "--plain-text",
            is_flag=True,
            help="Start the cluster without certificates, which are made for the run otherwise: whoever reaches its "
            "ports can run code there.",
        ),
        click.option(
            "--cluster-option",
            "settings",
            type=setting,
            multiple=True,
            metavar="KEY=VALUE",
            help="For the class that starts the cluster, by its own names, such as queue=short; VALUE may be JSON. May "
            "be repeated.",
        ),
        click.option(
            "--cluster-config",
            "config_file",
            metavar="FILE",
            help="YAML file with these options under dkgp.cluster, and anything else that dask's configuration knows.",
        ),
    )(function)


def cluster_from(options: dict[str, Any]) -> ClusterOptions:
    """Take the cluster options out of a command's options; what was not given may be configured."""
    from dkgp.cluster import configured_options

    values = {name: options.pop(name) for name in CLUSTER_NAMES}
    values |= {"kind": values.pop("cluster"), "settings": dict(values["settings"])}
    return configured_options(values)


def model_options(function: F) -> F:
    """Data that a model is trained on, its hyperparameters, and its place."""
    return together(
        click.argument("dataset"),
        click.option("--out", required=True, metavar="STORE", help="Where the model goes."),
        click.option("--hyper", required=True, metavar="FILE", help="Hyperparameters, as `dkgp tune` writes them."),
    )(function)


def memory_limit_option(function: F) -> F:
    """`--memory-limit`."""
    return click.option(
        "--memory-limit",
        "memory_limit_bytes",
        type=click_type(byte_count),
        metavar="SIZE",
        help="Refuse to start where more is projected, such as 4GiB.  [default: what is available]",
    )(function)


def overwrite_option(function: F) -> F:
    """`--overwrite`."""
    return click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")(function)


def seed_option(function: F) -> F:
    """`--seed`."""
    return click.option("--seed", type=int, default=0, show_default=True, help="Of all random draws.")(function)


def solver_and_its_options() -> list[click.Option]:
    """Return `--solver`, and the options that solvers declare."""
    from dkgp.solvers.registry import AUTO, declaration_of, own_options, solver_names

    told = {AUTO: "the one that a probe of the problem says is quickest"}
    told |= {name: declaration_of(name).help for name in solver_names()}
    named = "; ".join(f"{name}: {text}" for name, text in told.items())
    own = [click_option(option) for option in own_options().values()]
    for option in own:
        option.help = in_flags(option.help or "", own)
    return [click_option(Option("solver", f"{named}.", default=AUTO, choices=tuple(told))), *own]


def limit_options(function: F) -> F:
    """Add the options that say when to stop."""
    return together(
        click.option(
            "--tol",
            "tolerance",
            type=float,
            default=1e-4,
            show_default=True,
            help="Converged when max |gradient| is at or below this, recomputed in float64.",
        ),
        click.option("--max-passes", type=float, help="Stop after so many passes over the kernel's columns."),
        click.option("--max-seconds", type=float, help="Stop after so many seconds."),
    )(function)


def checkpoint_options(function: F) -> F:
    """Checkpoints and resuming."""
    return together(
        click.option(
            "--checkpoint",
            metavar="DIR",
            help="Where to save the state every so often and on Ctrl-C.  [default: OUT.checkpoint]",
        ),
        click.option(
            "--checkpoint-every",
            "checkpoint_seconds",
            type=float,
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="How often.",
        ),
        click.option("--resume", is_flag=True, help="Go on from the checkpoint, to the bit-same result."),
    )(function)


def record_options(function: F) -> F:
    """Plot and log files."""
    return together(
        click.option("--plot", metavar="FILE", help="Draw the course of the run into a .png, .pdf or .svg."),
        click.option("--log-json", metavar="FILE", help="Write one JSON line for each round."),
    )(function)


def variance_options(
    prefix: str = "", wanted: str = "Predict variances too, each with a proven interval."
) -> Callable[[F], F]:
    """Return a decorator that adds the options of variances, their parameters by the settings' names with a prefix."""
    return together(
        click.option("--variance", is_flag=True, help=wanted),
        click.option(
            "--variance-gap",
            prefix + "gap",
            type=float,
            metavar="GAP",
            help="How narrow a variance's interval is to be, relative to its upper end.  [default: 0.02]",
        ),
        click.option(
            "--latent",
            prefix + "latent",
            is_flag=True,
            help="Variances of the function itself. Without it, those of a new observation, which include the noise.",
        ),
        click.option(
            "--max-passes",
            prefix + "max_passes",
            type=float,
            help="Products with the whole kernel matrix that a batch may take; variances that are wider then are kept, "
            "and reported. 0: the factor alone.  [default: 20]",
        ),
        click.option(
            "--variance-rank",
            prefix + "rank",
            type=int,
            metavar="R",
            help="Training samples that the partial Cholesky factor is built on.  [default: by the problem and memory]",
        ),
        click.option(
            "--variance-halo",
            prefix + "halo",
            type=int,
            metavar="S",
            help="Training samples that each leaf of the block-Vecchia factor is conditioned on; 0 for no such factor."
            "  [default: by the problem and memory]",
        ),
        click.option(
            "--variance-batch",
            prefix + "batch_size",
            type=int,
            metavar="SAMPLES",
            help="Test samples solved together.  [default: by memory]",
        ),
        click.option(
            "--variance-memory",
            prefix + "memory_bytes",
            type=click_type(byte_count),
            metavar="SIZE",
            help="Working memory of a worker process, such as 2GiB.  "
            "[default: 704MiB, more for more than 45,000 samples]",
        ),
    )


def variance_given(options: dict[str, Any], prefix: str = "") -> VarianceSettings | None:
    """Return the settings that the options of a command describe; None where no variances are wanted."""
    from dkgp.commands.predict import variance_settings
    from dkgp.models.variance.variances import VarianceSettings

    own = {each.name for each in fields(VarianceSettings)} - {"seed"}
    given = {name: options.get(prefix + name) for name in own}
    return variance_settings(options["variance"], options["seed"], given, prefix)
