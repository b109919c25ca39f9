"""`dkgp plan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import DeclaredCommand, click_option, click_type, declared_options
from dkgp.cli.options import (
    cluster_from,
    cluster_options,
    examples,
    overwrite_option,
    seed_option,
    solver_and_its_options,
    variance_given,
    variance_options,
)
from dkgp.cli.running import runs
from dkgp.registry import Option, byte_count, whole_numbers

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
    from dkgp.models.sparse.train import SparseSettings
    from dkgp.plan.likelihoods import LikelihoodSettings

__all__ = ["plan"]

F = TypeVar("F", bound=Callable[..., Any])

# Of --classify: methods, where the others are searches of a fixed-size one.
LIKELIHOODS = ("logistic", "gp")


def measured_cluster_options(function: F) -> F:
    """The cluster options, whose `--workers` and `--threads-per-worker` are said in the plan's own way."""
    decorated = cluster_options(function)
    parameters: list[click.Parameter] = vars(decorated)["__click_params__"]
    parameters[:] = [each for each in parameters if each.name not in ("workers", "threads_per_worker", "adaptive")]
    return decorated


def _sparse_option() -> list[click.Option]:
    from dkgp.models.sparse.methods import METHODS

    told = "Foresee a sparse model by this method too, as `dkgp sparse` trains it: entries, time and memory."
    return [click_option(Option("sparse", told, choices=tuple(METHODS)))]


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp plan train.zarr --hyper hyper.json",
        "dkgp plan train.zarr --hyper hyper.json --workers 1,2,4,8 --threads-per-worker 8 --figures machine.json",
        "dkgp plan train.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot plan.png",
        "dkgp plan train.zarr --hyper hyper.json --variance --test-samples 5000 --variance-gap 0.01",
        "dkgp plan train.zarr --hyper hyper.json --sparse vfe --basis-size 2000",
        "dkgp plan labelled.zarr --hyper hyper.json --classify profile --pool 3000",
        "dkgp plan labelled.zarr --hyper hyper.json --classify logistic",
        "dkgp plan train.zarr --hyper hyper.json --workers 1,4,16 --cache-tiles 8GiB",
        "dkgp plan train.zarr --hyper hyper.json --validate",
    ),
)
@click.argument("dataset")
@click.option(
    "--hyper", metavar="FILE", help="Hyperparameters, as `dkgp tune` writes them.  [default: tuned on --subset samples]"
)
@click.option("--subset", type=int, default=1000, show_default=True, help="Samples to tune on without --hyper.")
@click.option(
    "--workers",
    type=click_type(whole_numbers),
    default="1,2,4,8,16,32,64,128,256",
    show_default=True,
    metavar="N,N,...",
    help="Numbers of workers to plan for.",
)
@click.option("--threads-per-worker", type=int, default=1, show_default=True, help="Threads of each of them.")
@click.option(
    "--one-machine", is_flag=True, help="The workers share this machine with the coordinator, not one like it each."
)
@declared_options(solver_and_its_options)
@click.option(
    "--precision", type=click.Choice(["mixed", "double"]), default="mixed", show_default=True, help="As for train."
)
@click.option("--tol", "tolerance", type=float, default=1e-4, show_default=True, help="As for train.")
@click.option(
    "--passes",
    type=float,
    help="Products with the matrix, or column passes, where they are known.  [default: foreseen from a probe]",
)
@click.option("--figures", metavar="FILE", help="Keep this machine's figures here, and use them where they are there.")
@click.option("--bench", metavar="FILE", help="A record of `dkgp bench tiles` or `dkgp bench scaling` to use instead.")
@click.option(
    "--round-trip", "round_trip_seconds", type=float, metavar="SECONDS", help="Of an empty task.  [default: measured]"
)
@click.option(
    "--bandwidth",
    "bytes_per_second",
    type=click_type(byte_count),
    metavar="SIZE",
    help="Bytes a second between scheduler and workers, such as 100MiB.  [default: measured]",
)
@click.option(
    "--memory-limit",
    "memory_limit_bytes",
    type=click_type(byte_count),
    metavar="SIZE",
    help="As for train.  [default: what is available]",
)
@variance_options(
    "variance_", "Foresee the variances of a prediction too: factors, batches, products, time and memory."
)
@click.option(
    "--test-samples", type=int, default=1000, show_default=True, help="Samples that variances will be predicted at."
)
@declared_options(_sparse_option)
@click.option(
    "--basis-size",
    type=int,
    metavar="M",
    help="Of --sparse, or of --classify logistic or gp: basis samples.  [default: 1000; all samples]",
)
@click.option("--basis", metavar="NAME", help="How these are chosen, as for that command.  [default: the method's own]")
@click.option(
    "--classify",
    type=click.Choice(["profile", "annealing", "none", "logistic", "gp"]),
    help="Foresee a classifier of the labels too, as `dkgp classify` trains it: a fixed-size one by a search (profile, "
    "annealing, none), or logistic or gp, on all samples or with --basis-size.",
)
@click.option("--pool", type=int, metavar="M", help="Of a fixed-size one: prototypes to choose among.  [default: 2000]")
@click.option("--validate", is_flag=True, help="Also train with 1 and 2 workers on this machine, and compare.")
@click.option("--plot", metavar="FILE", help="Draw seconds and worker-hours into a .png, .pdf or .svg.")
@measured_cluster_options
@seed_option
@overwrite_option
@runs()
def plan(reporter: Reporter, **options: Any) -> Document:
    """Say what training on the store DATASET will take, for 1 to 256 workers.

    Settles the solver as `train` would, foresees its products or passes from a probe of the samples, measures this
    machine and the round trip to the scheduler given (or between processes here), and lays the work out. Refuses what
    `train` would refuse. Nothing is written but what is asked for. It plans for workers with a machine like this one
    each; the time is that of the solve, without waiting for a cluster to start.
    """
    from dkgp.commands.solver_options import SolverOptions
    from dkgp.plan.plan import PlanJob, run_plan

    planned = {name: options[name] for name in ("workers", "threads_per_worker")}
    # The cluster whose messages are measured has as many workers as it has.
    cluster = cluster_from({**options, "workers": None, "threads_per_worker": None, "adaptive": None})
    solver = SolverOptions(**{name: options[name] for name in SolverOptions.option_types() if name in options})
    names = PlanJob.__dataclass_fields__.keys() & options.keys() - {
        *planned,
        "cluster",
        "solver",
        "sparse",
        "classify",
        "variance",
    }
    rest = {name: options[name] for name in names} | {"variance": variance_given(options, "variance_")}
    rest |= {"sparse": _sparse_given(options), "classify": _classifier_given(options)}
    return run_plan(PlanJob(**planned, **rest, solver=solver, cluster=cluster), reporter)


def _sparse_given(options: dict[str, Any]) -> SparseSettings | None:
    """Return the settings of the sparse model to foresee; None where none is wanted."""
    from dkgp.errors import UsageError
    from dkgp.models.sparse.train import SparseSettings

    if options["sparse"] is not None:
        return SparseSettings(options["sparse"], basis=options["basis"], seed=options["seed"])
    if options["classify"] in LIKELIHOODS:
        return None  # the basis is the classifier's
    for name in ("basis_size", "basis"):
        if options[name] is not None:
            raise UsageError(f"`{name}` belongs to a sparse model; name its method with `sparse`, or leave it out")
    return None


def _classifier_given(options: dict[str, Any]) -> FixedSizeSettings | LikelihoodSettings | None:
    """Return the settings of the classifier to foresee; None where none is wanted."""
    from dkgp.errors import UsageError
    from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
    from dkgp.plan.likelihoods import LikelihoodSettings

    given = {} if options["pool"] is None else {"pool": options["pool"]}
    if options["classify"] in LIKELIHOODS:
        if given:
            raise UsageError("`pool` belongs to a fixed-size classifier; leave it out, or name its search")
        if options["sparse"] is not None and options["basis_size"] is not None:
            raise UsageError("`basis_size` is of `sparse` or of `classify`; foresee one of them at a time")
        own = {name: options[name] for name in ("basis_size", "basis")} if options["sparse"] is None else {}
        return LikelihoodSettings(options["classify"], **own, seed=options["seed"])
    if options["classify"] is not None:
        return FixedSizeSettings(search=options["classify"], seed=options["seed"], **given)
    if given:
        raise UsageError("`pool` belongs to a classifier; name its search with `classify`, or leave it out")
    return None
