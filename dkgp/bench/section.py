"""The sections of `dkgp bench`, and the options that several of them share.

A section is declared in one file: `SECTIONS.add(Section(...))` in a module of `dkgp.bench.sections`, or of one that an
installed package names in the entry point group `dkgp.benches`. Such a module imports its tools when it runs, not
before: `dkgp bench --help` imports all sections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dkgp.registry import Option, Registry, whole_or_auto

if TYPE_CHECKING:
    from dkgp.commands.reporting.outputs import Document as Document
    from dkgp.commands.reporting.progress import Reporter as Reporter


@dataclass(frozen=True)
class Section:
    """A comparison that `dkgp bench NAME` runs.

    Attributes
    ----------
    name, help, examples
        The command, its help (one line, then the details), and example calls.
    run
        Called with the options' values by name and a `Reporter`; returns the document, as
        `dkgp.commands.reporting.measurements.report` makes it.
    options
        Its own; a function that returns them where they are known only after some import.
    on_cluster
        Whether a user may say where it runs: `cluster` among the values is a `ClusterOptions`.
    without_null
        Why `NULL` is none of its options; it is then refused with these words.
    exit_code
        The command's exit code for a document; 0 by default.
    """

    name: str
    help: str
    run: Callable[[dict[str, Any], Reporter], Document]
    options: tuple[Option, ...] | Callable[[], tuple[Option, ...]] = ()
    examples: tuple[str, ...] = ()
    on_cluster: bool = False
    without_null: str = ""
    exit_code: Callable[[Document], int] | None = None


SECTIONS: Registry[Section] = Registry("bench section", "dkgp.bench.sections", "dkgp.benches")

SEED = Option("seed", "Seed of all random draws.", type=int, default=0)
SUBSET = Option("subset", "Number of samples to tune on.", type=int, default=2000)
BLOCK_SIZE = Option(
    "block_size",
    "Block size of the solver gbcd.",
    type=whole_or_auto,
    default="auto",
    metavar="M|auto",
)
TOLERANCE = Option("tolerance", "Tolerance of the largest residual.", type=float, default=1e-4, spellings=("--tol",))
REPEATS = Option(
    "repeats",
    "Number of repeats of each measurement; medians are reported.",
    type=int,
    default=3,
    least=1,
    spellings=("--repeats", "--repeat"),
)
NULL = Option(
    "null",
    "Also measure the baseline twice in each repeat. The range of the ratio of both, which shows the noise of the "
    "measurement, is printed beside each ratio.",
    type=bool,
    default=False,
)
OVERWRITE = Option("overwrite", "Replace existing outputs.", type=bool, default=False)
OUT = Option("out", "Write all results as JSON to this file, which is replaced if it exists.", metavar="FILE")
DATA_FOLDER = Option(
    "data",
    "Folder of .npz files with X, y and optionally test_mask.  [default: only generated Friedman1 data]",
    metavar="DIR",
)


def problem_options(test_samples: int = 5000) -> tuple[Option, ...]:
    """Return the options of a problem, by the names of the fields of `dkgp.bench.problem.BenchProblem`."""
    data = "Data: friedman1, a dataset store, or a file that `dkgp ingest` reads, such as an .npz file."
    return (
        Option("data", data, default="friedman1"),
        Option("n", "Number of random training samples.", type=int, spellings=("--samples", "--n")),
        Option(
            "n_test",
            "Largest number of test samples.",
            type=int,
            default=test_samples,
            spellings=("--test-samples", "--n-test"),
        ),
        Option("target", "Name of the target in a file.", default="y"),
        Option("hyper", "File of hyperparameters.  [default: tuned first]", metavar="FILE"),
        SUBSET,
        SEED,
    )


def take(values: dict[str, Any], *options: Option) -> dict[str, Any]:
    """Take the values of some options out of those of all."""
    return {option.name: values.pop(option.name) for option in options}


def measure(
    job: type[Any],
    run: Callable[[Any, Reporter], Document],
    values: dict[str, Any],
    reporter: Reporter,
    *solver_options: Option,
) -> Document:
    """Run the job of a benchmark on a problem: its values are those of `solver_options`, and fields of the job.

    The solver is "auto", but for a block size or a method that only block descent has.
    """
    from dkgp.bench.problem import BenchProblem
    from dkgp.commands.solver_options import SolverOptions

    problem = BenchProblem(**take(values, *problem_options()))
    solver_values = take(values, *solver_options)
    if solver_values.get("block_size", "auto") != "auto" or "variables_per_step" in solver_values:
        solver_values = {"solver": "gbcd", **solver_values}
    solver = SolverOptions(**solver_values, seed=problem.seed)
    return run(job(problem=problem, solver=solver, **values), reporter)
