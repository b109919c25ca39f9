"""The kernel CG paper's tree column: seconds of KCG with kd-trees and without, by iteration and by size (section 7).

Its elevation map was of Puget Sound: lambda = 0.1 / n, sigma^2 = k N / (n pi) with N = 500 x 500 points of the map and
k = 15, so that about k samples lie within sigma of any; up to about 100,000 samples, none of their kernels kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.solvers.conjugate.kernel_cg import kernel_product
from dkgp.solvers.losses import SquaredLoss
from dkgp.solvers.risk import Risk
from dkgp_benchmarks.library import Library
from dkgp_benchmarks.papers.kernel_cg.pruned_sums import TreeKernelOperator
from dkgp_benchmarks.papers.tables import section
from dkgp_benchmarks.risk.runs import RiskRun, minimise

FloatArray = NDArray[np.float64]

STAND_IN = "dem_bigtujunga"
# Of the paper: points along a side of the map, samples within sigma, and lambda times n.
SIDE, NEIGHBOURS, REGULARISATION = 500, 15.0, 0.1
# Of heights that vary by one: what a product's entry may be off by.
ERROR = 1e-3
# A terrain's power falls with the wave number to this power.
ROUGHNESS = -3.2
WARM_UP_SAMPLES = 512
# All iterations that are asked for are taken.
NO_GAP = 1e-15

COLUMNS = (
    Column("n", "n", ",d"),
    Column("sigma", "sigma, points", ".2f"),
    Column("iterations", "iterations", ",d"),
    Column("tree_seconds", "with trees, s", ",.2f"),
    Column("plain_shown", "without, s", text=True),
    Column("times_shown", "times quicker", text=True),
    Column("tree_entries", "entries / n^2", ",.3f"),
    Column("plain_entries", "without", ",.2f"),
    Column("risk_share", "risk / that of 0", ".2e"),
    Column("risk_difference", "the two differ by", ".1e"),
)


@dataclass(frozen=True)
class Elevation:
    """A map of heights (side, side), and its name."""

    name: str
    heights: FloatArray

    def samples(self, n: int, seed: int) -> tuple[FloatArray, FloatArray]:
        """Draw n points of the map: row and column (n, 2), and heights (n, 1), standardised."""
        side = len(self.heights)
        if not 2 <= n <= side * side:
            raise InputError(f"a map of {side} x {side} points has no {n:,} samples; expected 2 to {side * side:,}")
        rows = np.random.default_rng([seed, 23]).permutation(side * side)[:n]
        inputs = np.column_stack(np.divmod(rows, side)).astype(np.float64)
        heights = self.heights.reshape(-1)[rows]
        return inputs, ((heights - heights.mean()) / heights.std())[:, None]


def generated_terrain(seed: int, side: int = SIDE) -> FloatArray:
    """Draw a terrain (side, side): random phases, and a power that falls with the wave number as mountains' does."""
    rng = np.random.default_rng([seed, 29])
    along = np.fft.fftfreq(side)[:, None]
    across = np.fft.rfftfreq(side)[None, :]
    wave = np.hypot(along, across)
    wave[0, 0] = 1.0
    waves = wave ** (0.5 * ROUGHNESS) * (rng.standard_normal(wave.shape) + 1j * rng.standard_normal(wave.shape))
    waves[0, 0] = 0.0
    return np.asarray(np.fft.irfft2(waves, s=(side, side)))


def elevation(library: Library, seed: int) -> Elevation:
    """Return the paper's window of the elevation model that is here, or a generated terrain.

    Raises
    ------
    InputError
        The file is no grid of heights of that size.
    """
    if not library.has(STAND_IN):
        return Elevation("generated terrain", generated_terrain(seed))
    path = library.path(STAND_IN)
    with np.load(path, allow_pickle=False) as archive:
        if missing := {"y", "grid_shape"} - set(archive.files):
            raise InputError(f"'{path}' has no array '{min(missing)}'; it has {', '.join(archive.files)}")
        heights, shape = np.asarray(archive["y"], dtype=np.float64), tuple(int(each) for each in archive["grid_shape"])
    if len(shape) != 2 or math.prod(shape) != heights.size or min(shape) < SIDE:
        raise InputError(
            f"'{path}' has {heights.size:,} heights and a grid of shape {shape}; expected {SIDE} x {SIDE} at least"
        )
    return Elevation("Big Tujunga", heights.reshape(shape)[:SIDE, :SIDE].copy())


def tree_row(
    terrain: Elevation, n: int, *, iterations: int, plain_up_to: int, error: float, seed: int, reporter: Reporter
) -> dict[str, Any]:
    """Run the same iterations of KCG with trees and, up to a size, without; return a row with both runs' curves.

    Parameters
    ----------
    terrain : Elevation
    n : int
        Samples.
    iterations : int
    plain_up_to : int
        Samples up to which sums are evaluated in full, too.
    error : float
        That an entry of a product may be off by, of heights of unit variance.
    """
    inputs, targets = terrain.samples(n, seed)
    sigma = math.sqrt(NEIGHBOURS * terrain.heights.size / (n * math.pi))
    gamma = 1.0 / (2.0 * sigma**2)
    kernel = SquaredExponential(gamma=(gamma, gamma))
    executor = LocalExecutor()

    def tree(rows: int) -> BlockedKernelOperator:
        return TreeKernelOperator(kernel, 1.0, ArrayInputs(inputs[:rows]), executor, error=error)

    def without(rows: int) -> BlockedKernelOperator:
        return BlockedKernelOperator(kernel, 1.0, ArrayInputs(inputs[:rows]), executor)

    def run(make: Any, rows: int, most: int, label: str) -> RiskRun:
        with make(rows) as operator:
            return minimise(
                operator, targets[:rows], SquaredLoss(), REGULARISATION / n, "kcg", reporter,
                gap=NO_GAP, max_iterations=most, precision="mixed", label=label,
            )  # fmt: skip

    runs: dict[str, RiskRun] = {}
    # Processor seconds: other work on the machine distorts the clock's seconds of a small run.
    seconds: dict[str, float] = {}
    try:
        for key, make, label in (("tree", tree, "with trees"), ("plain", without, "without")):
            if key == "plain" and n > plain_up_to:
                continue
            run(make, min(n, WARM_UP_SAMPLES), 2, "warm up")  # compiled code is loaded before the clock starts
            began = time.process_time()
            runs[key] = run(make, n, iterations, f"{terrain.name}, n = {n:,}, {label}")
            seconds[key] = time.process_time() - began
        true = None
        if (solution := runs["tree"].solution) is not None and "plain" in runs:
            # What trees came to, by sums in full: their own risk is what it is at most.
            alpha = solution.solution.alpha
            with without(n) as operator:
                values = kernel_product(operator, alpha, "double")
            true = float(np.sum(Risk(SquaredLoss(), REGULARISATION / n).value(targets, alpha, values)))
    finally:
        executor.close()
    return _row(n, sigma, targets, runs, seconds, true)


def tree_figure(rows: Sequence[dict[str, Any]], terrain: str, *, error: float, single: int) -> Document:
    """The figure from its rows; the single run is that of the size `single`, or the largest with both runs."""
    both = [row for row in rows if row["plain_seconds"] is not None]
    shown = next((row for row in both if row["n"] == single), both[-1] if both else rows[-1])
    document = section(
        "figure_kcg-trees",
        f"Kernel CG paper, Figure 1, third column: {terrain}, seconds of KCG with trees and without",
        COLUMNS,
        [{name: value for name, value in row.items() if name != "curves"} for row in rows],
        hyperparameters=f"lambda = {REGULARISATION:g} / n, sigma^2 = {NEIGHBOURS:g} N / (n pi), N = {SIDE} x {SIDE}",
        largest_error_of_a_sum=f"{error:g} times the largest coefficient below one",
        most_times_quicker=max((row["times"] for row in both), default=None),
        growth_with_trees=_growth(rows, "tree_seconds"),
        growth_without=_growth(both, "plain_seconds"),
        compared_by="processor seconds of the same iterations, float64 verification at the end included; the paper "
        "does not say at which gap its runs ended, and without noise the least risk is too small for a relative one",
    )
    sizes = {key: [(row["n"], row[f"{key}_seconds"]) for row in rows] for key in ("tree", "plain")}
    return document | {"curves": plain({"sizes": sizes, "single": {"n": shown["n"], **shown["curves"]}})}


def _row(
    n: int,
    sigma: float,
    targets: FloatArray,
    runs: dict[str, RiskRun],
    seconds: dict[str, float],
    true: float | None,
) -> dict[str, Any]:
    tree, without = runs["tree"], runs.get("plain")
    at_zero = 0.5 * float(np.sum(targets**2))
    plain_seconds = seconds.get("plain")
    times = None if plain_seconds is None else plain_seconds / seconds["tree"]
    difference = None if without is None or true is None else abs(without.least[0] - true) / at_zero
    return {
        "n": n,
        "sigma": sigma,
        "iterations": tree.iterations,
        "tree_seconds": seconds["tree"],
        "plain_seconds": plain_seconds,
        "plain_shown": "-" if plain_seconds is None else f"{plain_seconds:,.2f}",
        "times": times,
        "times_shown": "-" if times is None else f"{times:,.1f}",
        "tree_entries": tree.entries,
        "plain_entries": None if without is None else without.entries,
        "risk_share": (tree.least[0] if true is None else true) / at_zero,
        "risk_difference": difference,
        "curves": plain(
            {key: {"iteration": run.iteration, "seconds": run.clock, "risk": run.risk} for key, run in runs.items()}
        ),
    }


def _growth(rows: Sequence[dict[str, Any]], name: str) -> str | None:
    """Power of n that seconds grew with over the last doubling or so of the sizes."""
    if len(rows) < 2:
        return None
    first, last = rows[-2], rows[-1]
    power = math.log(last[name] / first[name]) / math.log(last["n"] / first["n"])
    return f"n^{power:.2f} from n = {first['n']:,} to {last['n']:,}"
