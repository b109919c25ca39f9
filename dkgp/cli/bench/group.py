"""`dkgp bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.bench.options import (
    block_option,
    out_option,
    problem_from,
    problem_options,
    repeats_option,
    tolerance_option,
    variables_option,
)
from dkgp.cli.bench.solvers import papers, solvers
from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import (
    byte_count,
    cluster_from,
    cluster_options,
    examples,
    output_options,
    overwrite_option,
)
from dkgp.cli.plan import whole_numbers
from dkgp.cli.running import execute

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["bench"]


@click.group(
    epilog=examples(
        "dkgp bench tiles --out tiles.json",
        "dkgp bench solve --data friedman1 --samples 100000 --out solve.json",
        "dkgp bench variance --data kin40k.npz --samples 10000 --variance-gap 0.02",
        "dkgp bench overhead --samples 30000",
        "dkgp bench scaling --samples 100000 --workers 1,2",
        "dkgp bench papers --data benchmark-data --table 2 --figure kcg",
        "dkgp bench solvers --data benchmark-data --problem kin40k --sizes 2000,10000",
    )
)
def bench() -> None:
    """Measure dkgp against plain NumPy and LAPACK, in ratios taken in one run."""


@bench.command(
    cls=DeclaredCommand, epilog=examples("dkgp bench tiles", "dkgp bench tiles --features 8 --out tiles.json")
)
@click.option("--features", "features", type=int, multiple=True, help="Numbers of features.  [default: 2 8 10 21 90]")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Rounds of turns; medians are reported."
)
@out_option
@output_options
def tiles(as_json: bool, quiet: bool, debug: bool, features: tuple[int, ...], **options: Any) -> None:
    """Cost of one kernel entry on one core, against NumPy's bare float32 exp, a GEMM-based tile and a broadcast."""

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.tiles import FEATURES, BenchTilesJob, run_bench_tiles

        return run_bench_tiles(BenchTilesJob(features=features or FEATURES, **options), reporter)

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)


@bench.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp bench solve --data kin40k.npz --samples 30000 --out solve.json",
        "dkgp bench solve --data friedman1 --samples 100000 --no-cholesky",
    ),
)
@problem_options()
@block_option
@variables_option
@tolerance_option
@repeats_option
@click.option("--cholesky/--no-cholesky", "with_cholesky", default=True, help="Whether LAPACK takes part.")
@click.option("--plain-pass/--no-plain-pass", "with_plain_pass", default=True, help="Whether the NumPy pass does.")
@cluster_options
@out_option
@output_options
def solve(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """GBCD against LAPACK's Cholesky and one plain NumPy float64 pass over the kernel matrix.

    Every contender runs in a process of its own and takes its turn in every repeat. Cholesky is left out, and that is
    said, where its matrix does not fit the memory available.
    """

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.solve import BenchSolveJob, run_bench_solve
        from dkgp.commands.solver_options import SolverOptions

        problem, cluster = problem_from(options), cluster_from(options)
        names = ("block_size", "tolerance", "variables_per_step")
        solver = SolverOptions(**{name: options.pop(name) for name in names}, seed=problem.seed)
        return run_bench_solve(BenchSolveJob(problem=problem, solver=solver, cluster=cluster, **options), reporter)

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)


@bench.command(cls=DeclaredCommand, epilog=examples("dkgp bench overhead --samples 30000 --out overhead.json"))
@problem_options()
@block_option
@tolerance_option
@repeats_option
@click.option("--workers", type=int, help="Workers of the two clusters.")
@out_option
@output_options
def overhead(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """The same solve without Dask, on a Dask cluster in one process, and on worker processes."""

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.overhead import BenchOverheadJob, run_bench_overhead
        from dkgp.commands.solver_options import SolverOptions

        problem = problem_from(options)
        solver = SolverOptions(
            block_size=options.pop("block_size"), tolerance=options.pop("tolerance"), seed=problem.seed
        )
        return run_bench_overhead(BenchOverheadJob(problem=problem, solver=solver, **options), reporter)

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)


@bench.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp bench scaling --samples 100000 --workers 1,2 --out scaling.json",
        "dkgp bench scaling --data kin40k.npz --samples 30000 --workers 1,2,4",
    ),
)
@problem_options()
@block_option
@tolerance_option
@repeats_option
@click.option(
    "--workers", type=whole_numbers, default="1,2", show_default=True, metavar="N,N,...", help="Worker processes."
)
@out_option
@output_options
def scaling(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """The update and the whole solve on 1, 2, ... single-threaded worker processes of this machine.

    Beside the update's speed-up stands what the machine itself allows: as many independent processes on the same
    kernel entries, against one. The cost model's figures for the same runs are said too.
    """

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.scaling.study import BenchScalingJob, run_bench_scaling
        from dkgp.commands.solver_options import SolverOptions

        problem = problem_from(options)
        solver = SolverOptions(
            block_size=options.pop("block_size"), tolerance=options.pop("tolerance"), seed=problem.seed
        )
        return run_bench_scaling(BenchScalingJob(problem=problem, solver=solver, **options), reporter)

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)


@bench.command(
    cls=DeclaredCommand, epilog=examples("dkgp bench selection --samples 5000 --block-size 250 --plot selection.png")
)
@problem_options()
@block_option
@click.option(
    "--variables-per-step",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="V",
    help="Variables that the greedy selection takes between two solutions of the block; 1 as in the paper.",
)
@tolerance_option
@click.option("--memory", type=int, default=0, show_default=True, help="Conjugate steps; 0 as in the paper.")
@click.option("--max-passes", type=float, default=30.0, show_default=True, help="Where each method is cut off.")
@click.option("--plot", metavar="FILE", help="Draw gradient and objective by iteration into a .png, .pdf or .svg.")
@cluster_options
@overwrite_option
@out_option
@output_options
def selection(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Greedy against cyclic and gradient selection with the same block size, iteration by iteration."""

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.selection import BenchSelectionJob, run_bench_selection
        from dkgp.commands.solver_options import SolverOptions

        problem, cluster = problem_from(options), cluster_from(options)
        names = ("block_size", "variables_per_step", "tolerance", "memory", "max_passes")
        solver = SolverOptions(**{name: options.pop(name) for name in names}, seed=problem.seed)
        return run_bench_selection(
            BenchSelectionJob(problem=problem, solver=solver, cluster=cluster, **options), reporter
        )

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)


@bench.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp bench variance --samples 10000 --variance-gap 0.02 --variance-gap 0.005",
        "dkgp bench variance --data kin40k.npz --samples 30000 --test-samples 1000 --out variance.json",
        "dkgp bench variance --model model.zarr --data test.zarr",
        "dkgp bench variance --table 3 --data-folder benchmark-data --out table3.json",
    ),
)
@problem_options(test_samples=500)
@click.option("--model", metavar="STORE", help="Predict with this model, at samples of --data.")
@click.option(
    "--table",
    type=click.Choice(["3", "4"]),
    help="All data sets of that table of the GBCD paper, beside its own figures. --samples is then the most of each.",
)
@click.option("--data-folder", metavar="DIR", help="With --table: where their .npz files are.  [default: here]")
@click.option(
    "--variance-gap",
    "gaps",
    type=float,
    multiple=True,
    metavar="GAP",
    help="How narrow intervals are to be; several are compared.  [default: 0.02; with --table 3, 0.005]",
)
@click.option("--latent", is_flag=True, help="Variances of the function itself, without the noise.")
@click.option(
    "--max-passes", type=float, default=20.0, show_default=True, help="Products with the kernel matrix for a batch."
)
@click.option("--variance-rank", "rank", type=int, metavar="R", help="Of the factor.  [default: chosen]")
@click.option("--variance-batch", "batch_size", type=int, metavar="SAMPLES", help="Of a batch.  [default: chosen]")
@click.option(
    "--variance-memory", "memory_bytes", type=byte_count, metavar="SIZE", help="Of a worker.  [default: 1.4GiB or more]"
)
@repeats_option
@click.option(
    "--cholesky/--no-cholesky",
    "with_cholesky",
    default=None,
    help="Whether LAPACK takes part.  [default: where it fits, not with --table 4]",
)
@click.option(
    "--plain-pass/--no-plain-pass",
    "with_plain_pass",
    default=None,
    help="Whether the NumPy pass does.  [default: yes, not with --table 3]",
)
@click.option("--plot", metavar="FILE", help="Draw gaps and intervals into a .png, .pdf or .svg.")
@cluster_options
@overwrite_option
@out_option
@output_options
def variance(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Predictive variances against LAPACK's Cholesky and one plain NumPy float64 pass over the kernel matrix.

    Cholesky's variances are exact: each is checked to lie in its proven interval. Every contender runs in a process of
    its own and takes its turn in every repeat. No system is solved for the means, which variances do not depend on.
    """

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.variance.measure import VarianceTrial
        from dkgp.bench.variance.paper_tables import BenchPaperTableJob, run_bench_paper_table
        from dkgp.bench.variance.report import BenchVarianceJob, run_bench_variance
        from dkgp.errors import UsageError
        from dkgp.models.variance.variances import VarianceSettings

        problem, cluster = problem_from(options), cluster_from(options)
        table, folder, plot = options["table"], options["data_folder"], options["plot"]
        gaps = options["gaps"] or (0.005 if table == "3" else 0.02,)
        names = ("latent", "max_passes", "rank", "batch_size", "memory_bytes")
        common: dict[str, Any] = {name: options[name] for name in names}
        with_cholesky, with_plain_pass = options["with_cholesky"], options["with_plain_pass"]
        trial = VarianceTrial(
            problem=problem,
            model=options["model"],
            settings=tuple(VarianceSettings(gap=gap, seed=problem.seed, **common) for gap in gaps),
            cluster=cluster,
            repeats=options["repeats"],
            with_cholesky=table != "4" if with_cholesky is None else with_cholesky,
            with_plain_pass=table != "3" if with_plain_pass is None else with_plain_pass,
        )
        if table is None:
            if folder is not None:
                raise UsageError("--data-folder goes with --table; for a single data set give --data FILE")
            return run_bench_variance(
                BenchVarianceJob(trial, plot=plot, overwrite=options["overwrite"], out=options["out"]), reporter
            )
        if trial.model or problem.hyper or plot or len(gaps) > 1 or problem.data != "friedman1":
            raise UsageError("--table takes one --variance-gap, and no --data, --model, --hyper or --plot")
        return run_bench_paper_table(
            BenchPaperTableJob(3 if table == "3" else 4, data_folder=folder, trial=trial, out=options["out"]), reporter
        )

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)


bench.add_command(papers)
bench.add_command(solvers)
