"""Smola and Bartlett's paper: Table 2, Figure 1, and the two experiments of its text.

A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dkgp_benchmarks.papers.part import PARTS, Part, Shown, Work
from dkgp_benchmarks.papers.verdicts import smola_bartlett as verdicts
from dkgp_benchmarks.papers.verdicts.verdict import Judge

if TYPE_CHECKING:
    from dkgp_benchmarks.library import Library
    from dkgp_benchmarks.papers.smola_bartlett import SmolaBartlett

ABALONE = "give --data DIR with an abalone.npz of X and y: Smola and Bartlett's tables are of Abalone"
WIDTHS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
SUBSETS = [1, 2, 5, 10, 20, 50, 100, 200]


@contextmanager
def _paper(work: Work, *, needs_abalone: bool = True) -> Iterator[SmolaBartlett]:
    import numpy as np

    from dkgp.cluster import ClusterOptions, open_executor
    from dkgp_benchmarks.papers.smola_bartlett import SmolaBartlett, abalone

    # The mixture is generated, and needs no file.
    inputs, targets = abalone(work.library) if needs_abalone else (np.zeros((2, 1)), np.zeros(2))
    with open_executor(ClusterOptions(kind="none"), len(inputs), work.reporter) as executor:
        yield SmolaBartlett(inputs, targets, executor, work.reporter, work.seed)


def _kernels(work: Work) -> Iterator[Shown]:
    settings = work.settings
    with _paper(work) as paper:
        yield Shown(paper.table(settings["n"], settings["widths"], settings["n_test"]))


def _gaps(work: Work) -> Iterator[Shown]:
    from dkgp_benchmarks.papers.plots import shown

    settings = work.settings
    with _paper(work) as paper:
        yield shown(paper.figure(settings["n"], settings["subsets"], settings["draws"], settings["kernels"]))


def _errors(work: Work) -> Iterator[Shown]:
    with _paper(work) as paper:
        yield Shown(paper.test_errors(work.settings["n"], work.settings["draws"]))


def _mixture(work: Work) -> Iterator[Shown]:
    with _paper(work, needs_abalone=False) as paper:
        yield Shown(paper.mixture(work.settings["n"], work.settings["kernels"]))


def _abalone(library: Library, problems: tuple[str, ...]) -> tuple[str, ...]:
    is_there = library.folder is not None and library.has("abalone")
    return ("",) if is_there and (not problems or "abalone" in problems) else ()


def _generated(library: Library, problems: tuple[str, ...]) -> tuple[str, ...]:
    return () if problems else ("",)


def _add(
    name: str, title: str, shows: str, item: str, run: Any, quick: dict[str, Any], full: dict[str, Any], judge: Judge
) -> None:
    PARTS.add(
        Part(
            name=name,
            paper="sb",
            title=title,
            shows=shows,
            items=(item,),
            quick=quick,
            full=full,
            variants=_abalone,
            reads=lambda variant: ("abalone",),
            missing=ABALONE,
            run=run,
            judge=judge,
        )
    )


_add(
    "sb-table-2",
    "Table 2: kernels that a gap takes",
    "Kernels until the gap is 0.025, for the log posterior and for error bars, by the kernel's width, on Abalone with "
    "4,000 training samples.",
    "table sb",
    _kernels,
    {"n": 4000, "widths": [1.0, 10.0], "n_test": 4},
    {"n": 4000, "widths": WIDTHS, "n_test": 177},
    Judge(
        "Log posterior: within 25 % of the paper's kernels, of the targets and the noise that come nearest, since the "
        "paper does not say which it has. Error bars: the mean within two standard errors of the difference of two "
        "means with the paper's spread. Fewer kernels are better.",
        verdicts.kernels,
    ),
)
_add(
    "sb-figure-1",
    "Figure 1: gap by the number of kernels",
    "Random subsets of 50 candidates and more are as good as the largest; relative variance of the gap over ten runs "
    "below 10 %.",
    "figure sb",
    _gaps,
    {"n": 4000, "subsets": [1, 10, 50, 200], "draws": 2, "kernels": 150},
    {"n": 4000, "subsets": SUBSETS, "draws": 10, "kernels": 250},
    Judge(
        "The relative variance of the gap, at its largest over the kernels, is below 10 %; after the last kernel "
        "subsets of 50 and more are within a tenth of the largest's gap, and the smallest is not.",
        verdicts.gaps,
        (
            (
                "subsets of [12]$",
                "Only the first five kernels (three with subsets of 2) exceed 10 %: at the tenth the relative variance "
                "is 3.0 % (1.2 %).",
            ),
        ),
    ),
)
_add(
    "sb-test-errors",
    "Test errors and log posteriors",
    "Over ten splits of 3,000 and 1,177 samples of Abalone the sparse model errs by 1.785, the exact one by 1.782: a "
    "ratio of 1.0017; log posteriors of -1.572e5 and -1.571e5.",
    "table sb-errors",
    _errors,
    {"n": 3000, "draws": 2},
    {"n": 3000, "draws": 10},
    Judge(
        "The ratio of the test errors within 0.5 % of the paper's, and the log posterior within the paper's own 0.5 %, "
        "of the noise that comes nearer. Below is better.",
        verdicts.errors,
    ),
)
PARTS.add(
    Part(
        name="sb-mixture",
        paper="sb",
        title="A mixture of Gaussians",
        shows="10,000 samples of 20 features, from 200 kernels of another width than the model's: the gap is below "
        "0.023 after 500 kernels.",
        items=("table sb-mixture",),
        quick={"n": 4000, "kernels": 300},
        full={"n": 10_000, "kernels": 500},
        variants=_generated,
        missing="its samples are generated: it takes no other data set",
        run=_mixture,
        judge=Judge("Below the paper's bound on the gap; below half of it is better.", verdicts.mixture),
    )
)
