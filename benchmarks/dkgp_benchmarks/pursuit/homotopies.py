"""Figures 12 and 13: SCDP, LARS, the LASSO and matching pursuit on (29), by cardinality and by seconds.

The intercept is taken out of the system beforehand, for all alike, so that every regressor is a prototype. All get the
same matrix; what it takes to sum it up is on nobody's clock. What the rivals choose is de-biased, as in the paper:
least squares on their support, anew for each cardinality.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.progress import Reporter
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.driver import Watch
from dkgp.solvers.pursuit.engine import PursuitProgress, PursuitSettings, pursue
from dkgp.solvers.pursuit.rivals import homotopy, matching_pursuit
from dkgp.solvers.pursuit.systems import GramSystem
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure
from dkgp_benchmarks.pursuit.tuned import TunedProblem, folder_of, tuned, working

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES, POOL, LONGEST = 4000, 500, 150
PAPER_POOL, PAPER_LONGEST = 2000, 400
DRAWS, PAPER_DRAWS = 7, 20
STAND_IN = "made-twonorm"
# Matching pursuit comes back to what it has; so many steps for each regressor are enough to see that.
MP_STEPS = 40
METHODS = ("SCDP", "LARS", "LASSO", "MP")


@dataclass(frozen=True)
class Supports:
    """Choices of a method by cardinality 1, 2, ...: its regressors, its own weights, and seconds until it had them."""

    supports: list[IndexArray]
    weights: list[FloatArray]
    seconds: list[float]


@dataclass(frozen=True)
class _Centred:
    """(29) with the intercept taken out: A (m, m), b (m, 1), and what the intercept of weights w is: mean - row w."""

    A: FloatArray
    b: FloatArray
    row: FloatArray
    mean: float
    prototypes: FloatArray


def figure_12(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure | None:
    """Gamma telescope."""
    return _figure(job, reporter, "magic", "magic")


def figure_13(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure | None:
    """Adult."""
    return _figure(job, reporter, "adult-codes", "adult")


def _figure(job: BenchPursuitJob, reporter: Reporter, name: str, file: str) -> PaperFigure | None:
    folder = folder_of(job)
    is_there = folder is not None and (folder / f"{file}.npz").is_file()
    if not is_there:
        if folder is not None:
            return None
        name = STAND_IN
    name = job.problems[0] if job.problems else name
    most = job.n if job.n is not None else None if job.full else SAMPLES
    pool = job.pool if job.pool is not None else PAPER_POOL if job.full else POOL
    longest = min(pool - 1, PAPER_LONGEST if job.full else LONGEST)
    draws = job.repeats(DRAWS, PAPER_DRAWS)
    with reporter.work(f"figure of {name}"), working() as executor:
        problem = tuned(name, folder, executor, seed=job.seed, most=most, pool=pool)
        system = _centred(problem, pool, executor, job.seed)
        errors, seconds = _measured(problem, system, longest, draws)
    return _shown(name, problem, errors, seconds, draws, is_there)


def _centred(problem: TunedProblem, pool: int, executor: BlockExecutor, seed: int) -> _Centred:
    signs, s2 = problem.labels.signs(), problem.noise_variance
    with BlockedKernelOperator(problem.kernel, 1.0, problem.dataset, executor) as operator:
        _, prototypes = choose_prototypes("k-centre", operator, pool, seed)
        cross = CrossKernel(operator, prototypes)
        gram = cross.gram(np.column_stack([signs, np.ones(operator.n)]))
        ridge = cross.kernel_matrix()
    n, row = len(signs), gram.projected[:, 1]
    A = gram.matrix + s2 * ridge - np.outer(row, row) / n
    b = gram.projected[:, :1] - row[:, None] * signs.mean()
    return _Centred(np.ascontiguousarray(0.5 * (A + A.T)), b, row / n, float(signs.mean()), prototypes)


def _measured(
    problem: TunedProblem, system: _Centred, longest: int, draws: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Test errors in percent by cardinality, and seconds to each, the least of the draws, of each method."""
    columns = problem.kernel(problem.test_inputs, system.prototypes)
    gram = GramSystem(system.A)
    methods: dict[str, Callable[[], Supports]] = {
        "SCDP": lambda: _scdp(gram, system.b, longest),
        "LARS": lambda: _breaks(gram, system.b, longest, drops=False),
        "LASSO": lambda: _breaks(gram, system.b, longest, drops=True),
        "MP": lambda: _mp(gram, system.b, longest),
    }
    errors: dict[str, list[float]] = {}
    seconds: dict[str, list[list[float]]] = {name: [] for name in methods}
    with single_threaded_blas():
        for draw in range(draws + 1):
            for name, method in methods.items():
                supports = method()
                times, weights = supports.seconds, supports.weights
                if name != "SCDP":
                    times, weights = _debiased(system, supports)
                if draw:  # the first has compiled what there is to compile
                    seconds[name].append(times)
                if name not in errors:
                    errors[name] = [
                        _error(problem, columns, system, S, w) for S, w in zip(supports.supports, weights, strict=True)
                    ]
    # The least: what a busy machine adds is no method's.
    return errors, {name: [min(column) for column in zip(*turns, strict=True)] for name, turns in seconds.items()}


def _error(problem: TunedProblem, columns: FloatArray, system: _Centred, S: IndexArray, w: FloatArray) -> float:
    decisions = columns[:, S] @ w + (system.mean - float(system.row[S] @ w))
    return 100.0 * float(np.mean((decisions >= 0.0) != (problem.test_codes == 1)))


def _scdp(system: GramSystem, b: FloatArray, longest: int) -> Supports:
    began, seconds = time.perf_counter(), []

    def tell(progress: PursuitProgress) -> None:
        seconds.append(time.perf_counter() - began)

    path = pursue(system, b, PursuitSettings(size=longest), watch=Watch(callback=tell))
    k = len(path)
    return Supports(
        [path.order[: j + 1] for j in range(k)], [path.weights_at(j + 1)[:, 0] for j in range(k)], seconds[:k]
    )


def _breaks(system: GramSystem, b: FloatArray, longest: int, *, drops: bool) -> Supports:
    """The last solution of each cardinality before a larger one; those that are leapt over take the one before."""
    path = homotopy(system, b, drops=drops, most=longest, breaks=20 * longest)
    breaks: dict[int, Any] = {}
    for at in path:
        inside = at.weights != 0.0
        k = int(inside.sum())
        if k and k not in breaks:
            breaks[k] = (at.support[inside], at.weights[inside], at.seconds)
    return Supports(*(list(column) for column in zip(*(breaks[k] for k in sorted(breaks)), strict=True)))


def _mp(system: GramSystem, b: FloatArray, longest: int) -> Supports:
    path = matching_pursuit(system, b, most=longest, iterations=MP_STEPS * longest)
    return Supports([path.order[: j + 1] for j in range(len(path.order))], path.weights, path.seconds)


def _debiased(system: _Centred, supports: Supports) -> tuple[list[float], list[FloatArray]]:
    """Seconds with those of least squares on each support, one after the other; and its weights."""
    spent, times, weights = 0.0, [], []
    for S, own in zip(supports.supports, supports.seconds, strict=True):
        began = time.perf_counter()
        factor = scipy.linalg.cho_factor(system.A[np.ix_(S, S)], lower=True, check_finite=False)
        weights.append(scipy.linalg.cho_solve(factor, system.b[S, 0], check_finite=False))
        spent += time.perf_counter() - began
        times.append(own + spent)
    return times, weights


def _shown(
    name: str,
    problem: TunedProblem,
    errors: dict[str, list[float]],
    seconds: dict[str, list[float]],
    draws: int,
    here: bool,
) -> PaperFigure:
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    said = f"{name}, n = {problem.dataset.n_samples:,}"
    shared = min(len(values) for values in errors.values())
    for method in METHODS:
        best = int(np.argmin(errors[method][:shared]))
        ratio = seconds[method][shared - 1] / seconds["SCDP"][shared - 1]
        rows += [
            {"data": said, "method": method, "what": "least test error, %", "value": errors[method][best]},
            {"data": said, "method": method, "what": "prototypes at it", "value": best + 1},
            {
                "data": said,
                "method": method,
                "what": f"seconds to {shared} prototypes, over SCDP's",
                "value": ratio,
                "paper": "" if method == "SCDP" else "7 to 10",
            },
        ]
        if method != "SCDP":
            figures[f"{method} over SCDP in seconds"] = ratio
    figures["prototypes of the longest path of all"] = shared
    curves = {
        "errors": errors,
        "seconds": seconds,
        "parameters": problem.parameters,
    }

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        for method, style in zip(METHODS, ("-", "--", "-.", ":"), strict=True):
            k = range(1, len(errors[method]) + 1)
            panels[0].plot(k, errors[method], style, label=method)
            panels[1].semilogy(k, seconds[method], style, label=method)
        panels[0].set(xlabel="prototypes", ylabel="test error, %", title="(a)")
        panels[1].set(xlabel="prototypes", ylabel="seconds", title="(b)")
        for panel in panels:
            panel.grid(alpha=0.3)
        panels[0].legend()

    remarks = [] if here else [f"{name} is generated: there is no folder of data"]
    remarks.append("LARS, the LASSO and MP are de-biased: least squares on their support, anew for each cardinality.")
    title = f"paths on (29), {said}, least seconds of {draws} repeats"
    return PaperFigure(title, rows, figures, curves, draw, remarks=remarks)
