"""`dkgp bench papers` and `dkgp bench solvers`: solvers compared on data sets that a user has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.bench.options import out_option, tolerance_option
from dkgp.cli.options import block_size, examples, output_options, overwrite_option, seed_option
from dkgp.cli.plan import whole_numbers
from dkgp.cli.running import execute, print_parts

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["papers", "solvers"]


@click.command(
    epilog=examples(
        "dkgp bench papers --samples 2000",
        "dkgp bench papers --data benchmark-data --table 2 --problem kin40k --problem california --out table2.json",
        "dkgp bench papers --data benchmark-data --figure kcg --problem abalone --plots figures",
        "dkgp bench papers --data benchmark-data --table 2 --problem sarcos_test4449:Y7",
    )
)
@click.option(
    "--data",
    metavar="DIR",
    help="Folder of .npz files with X, y and perhaps test_mask.  [default: Friedman1 alone, which is generated]",
)
@click.option(
    "--table",
    "tables",
    type=click.Choice(["1", "2", "3", "4"]),
    multiple=True,
    help="Of the GBCD paper; 3 and 4 as `dkgp bench variance --table` has them.  [default: 1 and 2]",
)
@click.option(
    "--figure",
    "figures",
    type=click.Choice(["1", "2", "3", "4", "kcg"]),
    multiple=True,
    help="Of the GBCD paper, or Figure 1 of the kernel CG paper.  [default: all, unless a table is named]",
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="NAME",
    help="friedman1 or a file of --data without .npz; NAME:TARGET for another target than y, such as a matrix.  "
    "[default: those of the papers that are here]",
)
@click.option("--samples", "--n", "n", type=int, help="Training samples at most.  [default: 10000; 3133 for kcg]")
@click.option("--test-samples", "--n-test", "n_test", type=int, default=5000, show_default=True, help="At most.")
@click.option("--subset", type=int, default=2000, show_default=True, help="Samples to tune on.")
@click.option(
    "--sizes",
    type=whole_numbers,
    default="1000,2000,4000,8000",
    show_default=True,
    metavar="N,N,...",
    help="Samples of Friedman1 in Figure 4.",
)
@click.option(
    "--block-size",
    type=block_size,
    metavar="M|auto",
    default="500",
    show_default=True,
    help="Variables in a round of the paper's block methods; at most a quarter of the samples.",
)
@tolerance_option
@click.option(
    "--max-passes", type=float, help="Where each method is cut off, and said to be.  [default: 1000; 20000 for kcg]"
)
@click.option("--max-seconds", type=float, help="The same in seconds of each run.")
@seed_option
@click.option("--plots", metavar="DIR", help="Draw each figure into this folder.")
@overwrite_option
@out_option
@output_options
def papers(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """The GBCD paper's comparison of solvers, and the kernel CG paper's, on data sets that you have.

    All solvers run in this process, one after the other, with the same hyperparameters, threads and limits. Data sets
    that are absent are named, and so is what stands in for them.
    """

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.papers.papers import BenchPapersJob, run_bench_papers
        from dkgp.commands.solver_options import SolverOptions

        names = ("block_size", "tolerance", "max_passes", "max_seconds")
        solver = SolverOptions(**{name: options.pop(name) for name in names}, seed=options["seed"])
        return run_bench_papers(BenchPapersJob(solver=solver, **options), reporter)

    def show(document: Document) -> None:
        from dkgp.commands.reporting.tables import tables
        from dkgp.commands.reporting.tables.layout import table_of

        print_parts(tables(document))
        for section in document["sections"]:
            print_parts(tables({"command": "bench", **section}))
        print_parts([table_of("What differs from the papers", list(document["cautions"].items()))])

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug, show=show)


@click.command(
    epilog=examples(
        "dkgp bench solvers --sizes 2000,20000",
        "dkgp bench solvers --data benchmark-data --problem kin40k --problem abalone --repeats 3 --out solvers.json",
    )
)
@click.option(
    "--data",
    metavar="DIR",
    help="Folder of .npz files with X, y and perhaps test_mask.  [default: Friedman1 alone, which is generated]",
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="NAME",
    help="friedman1 or a file of --data without .npz.  [default: friedman1]",
)
@click.option(
    "--sizes", type=whole_numbers, default="2000,10000", show_default=True, metavar="N,N,...", help="Training samples."
)
@click.option(
    "--solver",
    "solvers",
    type=click.Choice(["cholesky", "tiled-cholesky", "gbcd", "bcdc", "bcdg", "pcg", "cg", "kcg", "smo"]),
    multiple=True,
    help="What auto is compared with.  [default: cholesky, pcg, gbcd, tiled-cholesky, cg, bcdc, smo]",
)
@click.option("--repeats", type=int, default=1, show_default=True, help="Of everything, in turns; medians count.")
@click.option("--subset", type=int, default=2000, show_default=True, help="Samples to tune on.")
@tolerance_option
@seed_option
@out_option
@output_options
def solvers(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Time every solver, and see how near `--solver auto` comes to the best of them.

    Whoever takes longer than four times the best so far is cut off. The time of auto includes its look at the problem.
    """

    def job(reporter: Reporter) -> Document:
        from dkgp.bench.solvers import RIVALS, BenchSolversJob, run_bench_solvers
        from dkgp.commands.solver_options import SolverOptions

        options["solvers"] = options["solvers"] or RIVALS
        return run_bench_solvers(
            BenchSolversJob(solver=SolverOptions(tolerance=options.pop("tolerance")), **options), reporter
        )

    execute("bench", job, as_json=as_json, quiet=quiet, debug=debug)
