"""Figure 11 of the pursuit paper: test error against seconds of training, of four variants with tuned parameters.

SCDP sums up the whole system (29) before its first step; SCDPP evaluates the columns of its candidates as it goes. Each
with all samples as prototypes, and with a pool of k-centre prototypes. Seconds are those of the sums, the prototypes'
choice and the pursuit; test errors are found off the clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.progress import Reporter
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.driver import Watch
from dkgp.solvers.greedy_basis import CANDIDATES
from dkgp.solvers.pursuit.engine import PursuitPath, PursuitSettings, pursue
from dkgp.solvers.pursuit.systems import INTERCEPT_SHARE, GramSystem, KernelSystem
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure
from dkgp_benchmarks.pursuit.tuned import TunedProblem, folder_of, tuned, working

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

PROBLEMS = (("adult-codes", "adult"), ("magic", "magic"))
STAND_IN = "made-twonorm"
SAMPLES, POOL, LONGEST = 4000, 500, 200
PAPER_POOL = 2000
# Samples up to which the whole matrix of (29) is made: half a GiB.
LARGEST_WHOLE = 8000
CARDINALITIES = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 130, 200, 300, 450, 700)


@dataclass(frozen=True)
class _Variant:
    """A variant as the paper names it, and whether it draws candidates, and chooses from a pool."""

    name: str
    draws: bool
    pooled: bool


VARIANTS = (
    _Variant("SCDP", False, False),
    _Variant("SCDPP", True, False),
    _Variant("SCDP, pool", False, True),
    _Variant("SCDPP, pool", True, True),
)


def figure_11(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """Error against seconds on adult and gamma telescope, or on a generated problem where neither is here."""
    folder = folder_of(job)
    names = list(job.problems) or _here(folder) or [STAND_IN]
    most = job.n if job.n is not None else None if job.full else SAMPLES
    pool = job.pool if job.pool is not None else PAPER_POOL if job.full else POOL
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with working() as executor:
        for name in names:
            problem = tuned(name, folder, executor, seed=job.seed, most=most, pool=pool)
            # Compiled loops are ready, and the samples read, before any clock runs.
            _run(problem, VARIANTS[3], 10, executor, job.seed, 5)
            found[name] = {
                variant.name: _run(problem, variant, pool, executor, job.seed, LONGEST)
                for variant in VARIANTS
                # The whole matrix of (29) is n x n.
                if variant.pooled or variant.draws or problem.dataset.n_samples <= LARGEST_WHOLE
            }
            found[name]["parameters"] = problem.parameters
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    for name, curves in found.items():
        for method, curve in curves.items():
            if method == "parameters":
                continue
            best = int(np.argmin(curve["errors"]))
            rows += [
                {"data": name, "method": method, "what": "least test error, %", "value": curve["errors"][best]},
                {"data": name, "method": method, "what": "seconds to it", "value": curve["seconds"][best]},
                {"data": name, "method": method, "what": "prototypes", "value": curve["cardinalities"][best]},
            ]
        for first, second in (("SCDP", "SCDPP"), ("SCDP, pool", "SCDPP, pool"), ("SCDP", "SCDP, pool")):
            if first in curves and second in curves:
                figures[f"{name}: seconds of {first} over those of {second}"] = _ratio(curves, first, second)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for panel, (name, curves) in zip(panels, found.items(), strict=True):
            for number, variant in enumerate(VARIANTS):
                curve = curves.get(variant.name)
                if curve is not None:
                    style = "--" if variant.draws else "-"
                    colour = f"C{int(variant.pooled)}"
                    panel.plot(curve["seconds"], curve["errors"], style, color=colour, marker="os^v"[number],
                               markersize=4, label=variant.name)  # fmt: skip
            panel.set(title=f"{name}, n = {curves['parameters']['n']:,}", xlabel="seconds", ylabel="test error, %")
            panel.set_xscale("log")
            panel.grid(alpha=0.3)
            panel.legend(fontsize="small")

    title = "test error against seconds of training"
    return PaperFigure(title, rows, figures, found, draw, 6.0 * len(found), 4.5)


def _here(folder: File | None) -> list[str]:
    return [] if folder is None else [name for name, file in PROBLEMS if (folder / f"{file}.npz").is_file()]


def _ratio(curves: dict[str, dict[str, Any]], first: str, second: str) -> float:
    """Seconds to the same cardinality, the largest of both."""
    most = min(curves[first]["cardinalities"][-1], curves[second]["cardinalities"][-1])
    one, other = (curves[name]["seconds"][curves[name]["cardinalities"].index(most)] for name in (first, second))
    return float(one / other)


def _run(
    problem: TunedProblem, variant: _Variant, pool: int, executor: BlockExecutor, seed: int, longest: int
) -> dict[str, Any]:
    """Seconds and test errors by cardinality."""
    signs, began = problem.labels.signs(), time.perf_counter()
    with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
        prototypes = problem.inputs
        if variant.pooled:
            _, prototypes = choose_prototypes("k-centre", operator, pool, seed)
        cross, m = CrossKernel(operator, prototypes), len(prototypes)
        # The intercept comes first, and counts as none of the prototypes.
        size = min(longest, m) + 1
        settings = PursuitSettings(size=size, candidates=CANDIDATES if variant.draws else None, first=(m,), seed=seed)
        if variant.draws:
            system = KernelSystem(cross)
            before = time.perf_counter() - began
            # Its projections of the labels are on the clock: they are found as it is set up.
            path, taken = _pursued(system, signs, settings)
            system.close()
        else:
            matrix, right = _whole(operator, cross, signs, problem.noise_variance)
            before = time.perf_counter() - began
            path, taken = _pursued(GramSystem(matrix), right, settings)
    return _curve(problem, prototypes, path, before + taken)


def _whole(
    operator: BlockedKernelOperator, cross: CrossKernel, signs: FloatArray, noise_variance: float
) -> tuple[FloatArray, FloatArray]:
    """(29) over s2: its matrix and right-hand side, the intercept last."""
    n, m = operator.n, cross.m
    gram = cross.gram(np.column_stack([signs, np.ones(n)]))
    matrix = np.empty((m + 1, m + 1))
    matrix[:m, :m] = gram.matrix / noise_variance + cross.kernel_matrix()
    matrix[m, :m] = matrix[:m, m] = gram.projected[:, -1] / noise_variance
    matrix[m, m] = n / noise_variance * (1.0 + INTERCEPT_SHARE)
    matrix[:m, :m] = 0.5 * (matrix[:m, :m] + matrix[:m, :m].T)
    return matrix, np.vstack([gram.projected[:, :-1], signs.sum(axis=0)]) / noise_variance


def _pursued(system: Any, right: FloatArray, settings: PursuitSettings) -> tuple[PursuitPath, FloatArray]:
    """The path, and the seconds since its start after each of its regressors: (k,)."""
    began, ends = time.perf_counter(), {}

    def tell(progress: Any) -> None:
        ends[progress.size] = time.perf_counter() - began

    path = pursue(system, right, settings, watch=Watch(callback=tell))
    return path, np.asarray([ends[size] for size in sorted(ends)])


def _curve(problem: TunedProblem, prototypes: FloatArray, path: PursuitPath, seconds: FloatArray) -> dict[str, Any]:
    m = len(prototypes)
    columns = np.ones((len(problem.test_codes), len(path)))
    is_early = path.order < m
    columns[:, is_early] = problem.kernel(problem.test_inputs, prototypes[path.order[is_early]])
    cardinalities, errors, times = [], [], []
    for k in CARDINALITIES:
        if k + 1 > len(path):
            break
        decisions = columns[:, : k + 1] @ path.weights_at(k + 1)[:, 0]
        cardinalities.append(k)
        errors.append(100.0 * float(np.mean((decisions >= 0.0) != (problem.test_codes == 1))))
        times.append(float(seconds[k]))
    return {"cardinalities": cardinalities, "errors": errors, "seconds": times}
