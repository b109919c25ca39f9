"""`dkgp bench variance --ways`: every way to variances on ten problems, beside what dkgp chooses, in one run.

Processor seconds of this process are told beside those of the clock: on a machine that does other things, too, they
are what can be compared.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, ModelRecord, memory_dataset, memory_model, standardised_inputs
from dkgp.errors import DkgpError, UsageError
from dkgp.kernels import Kernel, Matern32, SquaredExponential
from dkgp.models.certificate import Certificate
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.settings import WAYS, VarianceSettings

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
Inputs = Callable[[int, np.random.Generator], FloatArray]
GOAL = 1.2
# Ways with proven intervals; approximate variances are no competitor.
PROVEN = tuple(way for way in WAYS if way not in ("auto", "vif"))
# Enough to compile all the code there is.
WARM_UP, WARM_UP_TESTS = 300, 10
COLUMNS = (
    Column("problem", "problem", text=True),
    Column("n", "n", "d"),
    Column("d", "d", "d"),
    Column("tests", "tests", "d"),
    *(Column(f"{way}_cpu", f"{way}, processor s", ".2f") for way in WAYS),
    *(Column(f"{way}_seconds", "by the clock", ".2f") for way in WAYS),
    Column("taken", "chosen way", text=True),
    Column("to_best", "time / best way", ".2f"),
    Column("unmet", "too wide", "d"),
)


@dataclass(frozen=True)
class WayProblem:
    """Inputs by a generator or a data set, and the kernel of variances: no target matters to them."""

    name: str
    n: int
    tests: int
    gamma: Callable[[int], tuple[float, ...]]
    noise_variance: float
    draw: Inputs | None = None
    file: str = ""
    latent: bool = False
    rough: bool = False  # Matern 3/2 instead of a squared exponential

    def kernel(self, d: int) -> Kernel:
        """Kernel of d features."""
        scales = self.gamma(d)
        if self.rough:
            return Matern32(tuple(1.0 / np.sqrt(2.0 * gamma) for gamma in scales), 1.0)
        return SquaredExponential(scales, 1.0)

    def inputs(self, n: int, folder: str | None, rng: np.random.Generator) -> FloatArray | None:
        """Draw n standardised rows; None where the data set is not there."""
        if self.draw is not None:
            X = self.draw(n, rng)
        else:
            path = os.path.join(folder or "", self.file)
            if folder is None or not os.path.exists(path):
                return None
            with np.load(path) as data:
                X = np.asarray(data["X"], dtype=np.float64)
            X = X[rng.permutation(len(X))[:n]]
        spread = X.std(axis=0)
        return np.asarray((X - X.mean(axis=0))[:, spread > 0.0] / spread[spread > 0.0])


def _one_hot(n: int, rng: np.random.Generator) -> FloatArray:
    """Four categories of 5 to 8 kinds, not alike in number, and three skewed numbers: a table as tables are."""
    parts = []
    for kinds in (5, 7, 8, 6):
        share = rng.dirichlet(np.full(kinds, 2.0))
        parts.append(np.eye(kinds)[rng.choice(kinds, n, p=share)])
    return np.column_stack([*parts, np.log(rng.lognormal(size=(n, 3)) + 0.1)])


def _normal(d: int) -> Inputs:
    return lambda n, rng: rng.normal(size=(n, d))


def _uniform(d: int) -> Inputs:
    return lambda n, rng: rng.uniform(size=(n, d))


def _even(total: float) -> Callable[[int], tuple[float, ...]]:
    return lambda d: (total / d,) * d


PROBLEMS = (
    WayProblem("one-hot table", 17_812, 1_979, lambda d: (0.02,) * (d - 3) + (0.3,) * 3, 0.05, _one_hot),
    WayProblem("smooth, 10 features", 20_000, 1_000, lambda d: (0.05,) * 5 + (1e-4,) * (d - 5), 0.05, _uniform(10)),
    WayProblem(
        "the same, latent", 10_000, 1_000, lambda d: (0.05,) * 5 + (1e-4,) * (d - 5), 0.05, _uniform(10), latent=True
    ),
    WayProblem("rough, 8 features", 12_000, 1_000, _even(1.0), 0.01, _normal(8)),
    WayProblem("rough, few tests", 30_000, 20, _even(1.0), 0.01, _normal(8)),
    WayProblem("a map, 2 features", 12_000, 500, _even(40.0), 0.01, _uniform(2)),
    WayProblem("a map, Matern", 8_000, 500, _even(10.0), 0.01, _uniform(2), rough=True),
    WayProblem("smooth map", 20_000, 2_000, _even(2.0), 0.01, _uniform(2)),
    WayProblem("100 features", 5_000, 500, _even(0.5), 0.1, _normal(100)),
    WayProblem("small", 2_000, 2_000, _even(1.0), 0.01, _normal(5)),
    WayProblem("california", 18_000, 2_000, _even(2.0), 0.1, file="california.npz"),
    WayProblem("kin40k", 10_000, 500, _even(0.5), 0.007, file="kin40k.npz"),
    WayProblem("pumadyn32nm", 7_168, 1_024, _even(0.2), 0.05, file="pumadyn32nm.npz"),
    WayProblem("adult", 12_000, 1_000, _even(0.5), 0.1, file="adult.npz"),
)


@dataclass(frozen=True)
class BenchWaysJob:
    """A comparison of ways: of all problems or those named, no larger than `most` samples each."""

    cluster: ClusterOptions
    most: int | None = None
    data_folder: str | None = None
    only: Sequence[str] = ()
    gap: float = 0.02
    seed: int = 0
    out: str | None = None


def run_bench_ways(job: BenchWaysJob, reporter: Reporter) -> Document:
    """Measure; return seconds of each way and of the default, and the worst ratio of the default to the best."""
    check_record_file(job.out)
    known = [problem.name for problem in PROBLEMS]
    unknown = [name for name in job.only if name not in known]
    if unknown:
        raise UsageError(f"there is no problem {unknown[0]!r}; choose among {', '.join(known)}")
    rows = []
    with open_executor(job.cluster, 0, reporter) as executor:
        for problem, model, test in _problems(job):
            reporter.note(f"{problem.name}: n = {model.n_samples:,}, {test.n_samples:,} test samples")
            row: dict[str, Any] = {
                "problem": problem.name,
                "n": model.n_samples,
                "d": model.n_features,
                "tests": test.n_samples,
            }
            for way in WAYS[::-1]:
                row |= _timed(model, test, executor, VarianceSettings(gap=job.gap, latent=problem.latent, way=way))
            best = min(value for way in PROVEN if (value := row[f"{way}_cpu"]) is not None)
            rows.append({**row, "to_best": row["auto_cpu"] / best})
    worst = max((float(row["to_best"]) for row in rows), default=0.0)
    figures = {"worst_to_best": worst, "beyond_goal": sum(float(row["to_best"]) > GOAL for row in rows)}
    title = f"Ways to variances, gap {job.gap:g}: {len(rows)} problems, one turn each"
    document = report("variance", title, COLUMNS, rows, figures, most=job.most, gap=job.gap, seed=job.seed)
    document["warnings"] = list(reporter.warnings)
    return write_record(document, job.out)


def _problems(job: BenchWaysJob) -> Iterator[tuple[WayProblem, ModelRecord, Dataset]]:
    """The problems of a job, one at a time; those whose data are not there are left out."""
    for number, problem in enumerate(PROBLEMS):
        if job.only and problem.name not in job.only:
            continue
        rng = np.random.default_rng([job.seed, number])
        n = min(problem.n, job.most or problem.n)
        tests = max(1, round(problem.tests * n / problem.n))
        X = problem.inputs(n + tests, job.data_folder, rng)
        if X is None:
            continue
        tests = max(1, len(X) * tests // (n + tests))
        yield problem, _model(problem, X[:-tests]), _named(X[-tests:])


def _named(X: FloatArray) -> Dataset:
    return standardised_inputs(X, [f"x{index}" for index in range(X.shape[1])])


def _model(problem: WayProblem, X: FloatArray) -> ModelRecord:
    """A model whose means are all zero, which variances do not depend on."""
    n, d = X.shape
    kernel = problem.kernel(d)
    certificate = Certificate(problem.noise_variance, n, (0.0,), (0.0,), (0.0,), (0.0,))
    return memory_model(
        _named_targets(X),
        kernel=kernel.to_json(),
        noise_variance=problem.noise_variance,
        alpha=np.zeros((n, 1)),
        certificate=certificate.to_json(),
    )


def _named_targets(X: FloatArray) -> Dataset:
    return memory_dataset(X, np.cos(np.arange(len(X))))


def _timed(model: ModelRecord, test: Dataset, executor: Any, settings: VarianceSettings) -> dict[str, Any]:
    """Seconds of one way; None for one that cannot be taken."""
    way = settings.way
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as folder:
        began, own = time.perf_counter(), time.process_time()
        try:
            summary = predict(model, test, os.path.join(folder, "pred.zarr"), executor, variance=settings).variance
        except DkgpError:
            return {f"{way}_seconds": None, f"{way}_cpu": None}
        seconds, own = time.perf_counter() - began, time.process_time() - own
    assert summary is not None
    figures: dict[str, Any] = {f"{way}_seconds": seconds, f"{way}_cpu": own}
    if way == "auto":
        figures |= {"taken": str(summary.get("way", "iterative")), "unmet": summary["unmet"]}
    return figures
