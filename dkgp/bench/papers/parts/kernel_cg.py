"""The kernel CG paper: its Figure 1.

N. Ratliff, J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dkgp.bench.papers.part import PARTS, Part, Shown, Work
from dkgp.bench.papers.parts.gbcd import FRIEDMAN1, data_sets, file_of, options_of

if TYPE_CHECKING:
    from dkgp.bench.library import Library

# Abalone as in the paper; the next one that is here beside it.
RIVALS = ("abalone", "california", "sarcos_test4449")
FEWEST = 2


def _risks(work: Work) -> Iterator[Shown]:
    from dkgp.bench.library import prepare_data
    from dkgp.bench.papers.kernel_cg.figure import kernel_cg_figure
    from dkgp.bench.papers.plots import shown
    from dkgp.bench.papers.runs import Workbench
    from dkgp.bench.papers.trials import described
    from dkgp.cluster import ClusterOptions, open_executor

    asked = work.settings
    sizes = (asked["n"], asked["n_test"], asked["subset"])
    data = prepare_data(work.library, work.variant, *sizes, work.seed, work.folder, work.reporter)
    with open_executor(ClusterOptions(kind="none"), data.n, work.reporter) as executor:
        bench = Workbench(data, executor, work.reporter)
        yield shown(kernel_cg_figure(bench, options_of(work)) | {"problem": described(bench)})


def _rivals(library: Library, problems: tuple[str, ...]) -> tuple[str, ...]:
    if problems:
        return data_sets(library, problems)
    return tuple(name for name in RIVALS if library.has(name))[:FEWEST] or (FRIEDMAN1,)


PARTS.add(
    Part(
        name="kcg-figure-1",
        paper="kcg",
        title="Figure 1, squared loss: bounds on the risk",
        shows="The risk's bounds by iteration: kernel CG needs about the square root of the iterations of conjugate "
        "gradients on the parameters (PCG), on abalone; a plot, without printed numbers.",
        items=("figure kcg",),
        quick={"tolerance": 1e-4, "max_passes": 4000.0, "max_seconds": 10.0, "n": 1000, "n_test": 500, "subset": 500},
        full={"tolerance": 1e-4, "max_passes": 20_000.0, "max_seconds": None, "n": 3133, "n_test": 1044}
        | {"subset": 2000},
        variants=_rivals,
        reads=file_of,
        run=_risks,
    )
)
