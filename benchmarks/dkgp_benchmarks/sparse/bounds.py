"""`dkgp bench sparse --bounds`: all that is proven of sparse models, beside the exact one by a float64 Cholesky factor.

Each statement is counted, and whether it holds: the distance over the training samples, that of each test sample's
mean, the interval of each one's exact variance, both ends of the evidence, the divergence, and the gap. Beside each
bound stands what it bounds, so that a reader sees how tight it is. One problem has a flat kernel and little noise: a
condition of 1e9 or so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.bench.problem import FRIEDMAN1, BenchProblem, prepare_problem
from dkgp.cluster import open_executor
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.measurements import Column, check_record_file, median, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, open_dataset
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator, fold_white
from dkgp.models import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.models.sparse.bounds import Points
from dkgp.models.sparse.model import METHODS, interval_of
from dkgp.models.sparse.near import NearPredictor
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.train import TrainedSparse, train_sparse
from dkgp_benchmarks.sparse.job import BenchSparseJob

FloatArray = NDArray[np.float64]

# Those of a folder of data sets; samples are drawn where there are more than the reference can hold.
DATA = ("abalone", "airfoil", "california", "kin40k", "pumadyn32nm")
LARGEST = 10_000
SIZES = (100, 500)
BOUND_METHODS = (*METHODS, "sggp,certify_passes=4")
ILL_CONDITIONED = "ill-conditioned"
# Of a condition of n over the noise: inputs a length scale apart, and noise that the targets do not have.
FLAT_GAMMA, LITTLE_NOISE, MOST_ILL = 0.02, 1e-6, 2000

COLUMNS = (
    Column("data", "data", text=True),
    Column("model", "model", text=True),
    Column("m", "m", ",d"),
    Column("rms", "RMS to exact", ".2e"),
    Column("rms_bound", "proven", ".2e"),
    Column("best", "proven by", text=True),
    Column("mean_use", "share of bound reached", ".1%"),
    Column("interval", "variance interval, ±", ".1g"),
    Column("divergence", "KL", ".3g"),
    Column("divergence_bound", "proven", ".3g"),
    Column("gap", "gap", ".2e"),
    Column("gap_bound", "proven", ".2e"),
    Column("held", "holds", text=True),
)


@dataclass(frozen=True)
class Reference:
    """The exact model of a data set by dense algebra in float64, at its samples and at test inputs.

    Attributes
    ----------
    targets, at_samples : (n, p) float64
        y, and the mean.
    quadratic : (p,) float64
        y' Kbar^-1 y.
    evidence : float
        log p(y), summed over targets.
    inputs, mean, variance : (t, d), (t, p) and (t,) float64
        Test inputs, standardised, and the function there.
    """

    kernel: Kernel
    noise: float
    X: FloatArray
    targets: FloatArray
    at_samples: FloatArray
    quadratic: FloatArray
    evidence: float
    inputs: FloatArray
    mean: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, dataset: Dataset, found: Hyperparameters, inputs: FloatArray) -> Reference:
        """8 n^2 bytes and n^3 / 3 multiply-adds."""
        X, y = dataset.inputs(0, dataset.n_samples), dataset.all_targets()
        kernel, s2 = fold_white(found.kernel, found.noise_variance)
        evaluator = TileEvaluator(kernel, "double")
        features = evaluator.prepare(X)
        matrix = np.asfortranarray(evaluator.tile(features, features))
        matrix[np.diag_indices(len(X))] += s2
        lower = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        half = scipy.linalg.solve_triangular(lower, y, lower=True, check_finite=False)
        alpha = scipy.linalg.solve_triangular(lower, half, lower=True, trans=1, check_finite=False)
        across = np.asfortranarray(evaluator.tile(features, evaluator.prepare(inputs)))
        mean = across.T @ alpha
        solved = scipy.linalg.solve_triangular(lower, across, lower=True, check_finite=False)
        variance = kernel.diagonal(inputs) - np.einsum("nt,nt->t", solved, solved)
        quadratic, n, p = np.einsum("np,np->p", half, half), *y.shape
        determinant = 2.0 * float(np.log(lower.diagonal()).sum())
        evidence = -0.5 * (p * (n * np.log(2.0 * np.pi) + determinant) + float(quadratic.sum()))
        return cls(kernel, s2, X, y, y - s2 * alpha, quadratic, evidence, inputs, mean, variance)

    def divergence(self, trained: TrainedSparse) -> float:
        """KL of the variational posterior on the model's basis from the exact one: log p(y) less the bound's best."""
        model, s2 = trained.model, self.noise
        evaluator = model.evaluator()
        columns = evaluator.tile(evaluator.prepare(model.prototypes), evaluator.prepare(self.X))
        F = scipy.linalg.solve_triangular(model.lower, columns, lower=True, check_finite=False)
        lower = scipy.linalg.cholesky(np.eye(model.m) + F @ F.T / s2, lower=True, check_finite=False)
        half = scipy.linalg.solve_triangular(lower, F @ self.targets / s2, lower=True, check_finite=False)
        n, p = self.targets.shape
        determinant = n * np.log(s2) + 2.0 * float(np.log(lower.diagonal()).sum())
        quadratic = float((self.targets**2).sum()) / s2 - float((half**2).sum())
        trace = float((self.kernel.diagonal(self.X) - np.einsum("mn,mn->n", F, F)).sum()) / s2
        bound = -0.5 * (p * (n * np.log(2.0 * np.pi) + determinant + trace) + quadratic)
        return float(self.evidence - bound)


def run_bench_sparse_bounds(job: BenchSparseJob, reporter: Reporter) -> Document:
    """Judge every model of every data set; return how many statements hold, and how tight they are."""
    check_record_file(job.out)
    specs, rows = job.specs(BOUND_METHODS), list[dict[str, Any]]()
    for name, problem in _problems(job.problem):
        with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as folder:
            dataset, found, inputs = _prepared(name, problem, Path(folder), reporter)
            reporter.note(f"{name}: the exact model of {dataset.n_samples:,} samples by Cholesky in float64")
            reference = Reference.of(dataset, found, inputs)
            with open_executor(job.cluster, dataset.n_samples, reporter) as executor:
                for size in job.sizes or SIZES:
                    for spec in specs:
                        settings = SparseSettings(**spec.sized(min(size, dataset.n_samples), problem.seed))
                        row = {"data": name, "model": spec.text, **judge(reference, dataset, settings, executor)}
                        reporter.note(f"  {spec.text}, m = {row['m']:,}: {row['held']}")
                        rows.append(row)
    statements = sum(row["statements"] for row in rows)
    broken = sum(len(row["broken"]) for row in rows)
    figures: dict[str, Any] = {"statements": statements, "broken": broken, **_counts(rows), **_tightness(rows)}
    title = (
        f"What is proven of sparse models, beside Cholesky in float64: {statements - broken:,} of {statements:,} hold"
    )
    return write_record(report("sparse_bounds", title, COLUMNS, rows, figures, sizes=job.sizes or SIZES), job.out)


def judge(reference: Reference, dataset: Dataset, settings: SparseSettings, executor: BlockExecutor) -> dict[str, Any]:
    """Train a model and hold all that is said of it against the reference."""
    trained = train_sparse(dataset, reference.kernel, reference.noise, executor, settings)
    model, certificate = trained.model, trained.certificate
    own = None if trained.basis.indices is None else reference.noise
    lower, upper = interval_of(model, own, certificate.normal_share)(reference.inputs)
    points = Points.of(reference.kernel, model.evaluator(), reference.inputs)
    bound = certificate.mean_error_bound(upper, points.prior, points.errors)
    off = np.abs(model.mean(reference.inputs) - reference.mean)
    rms = np.sqrt(np.mean((model.mean(reference.X) - reference.at_samples) ** 2, axis=0))
    inside, within = off <= bound, (lower <= reference.variance) & (reference.variance <= upper)
    square, least = np.asarray(certificate.target_square), 0.5 * reference.quadratic
    risk = np.asarray(certificate.risk)
    gap = 2.0 * (risk - least) / np.maximum(square - risk - least, np.finfo(float).tiny)
    held = {
        "distance": rms <= certificate.rms_bound,
        "mean": inside,
        "variance": within,
        "least_risk": np.concatenate([np.asarray(values) <= least for values in certificate.least_risk.values()]),
        "gap": gap <= certificate.gap,
    }
    if trained.near is not None:
        mean, _ = NearPredictor(model.kernel, model.prototypes, model.lower, trained.near)(reference.inputs)
        apart = np.abs(mean - model.mean(reference.inputs)) + bound
        held["mean_with_neighbours"] = np.abs(mean - reference.mean) <= apart * (1.0 + 4.0 * np.finfo(float).eps)
    row: dict[str, Any] = {
        "n": dataset.n_samples,
        "m": model.m,
        "rms": float(rms.max()),
        "rms_bound": float(certificate.rms_bound.max()),
        "best": certificate.best[0],
        "mean_use": median((off / np.maximum(bound, np.finfo(float).tiny)).ravel().tolist()),
        "interval": median((0.5 * (upper - lower) / points.prior).tolist()),
        "gap": float(gap.max()),
        "gap_bound": float(certificate.gap.max()),
    }
    evidence, ceiling, divergence = certificate.evidence, certificate.evidence_upper, certificate.divergence
    if evidence is not None and ceiling is not None and divergence is not None:
        true = reference.divergence(trained)
        row |= {"elbo_slack": reference.evidence - evidence.lower, "upper_slack": ceiling - reference.evidence}
        row |= {"divergence": true, "divergence_bound": divergence}
        held |= {
            "ELBO": np.asarray(evidence.lower <= reference.evidence),
            "evidence_from_above": np.asarray(reference.evidence <= ceiling),
            "KL": np.asarray(true <= divergence),
        }
    broken = [name for name, values in held.items() for _ in range(int(np.sum(~values)))]
    count = sum(values.size for values in held.values())
    row["counts"] = {name: values.size for name, values in held.items()}
    row |= {"statements": count, "broken": broken, "held": f"{count - len(broken):,} / {count:,}"}
    return row


def _counts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Statements of each kind that hold, of all."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["counts"]))
    all_of = {kind: sum(row["counts"].get(kind, 0) for row in rows) for kind in kinds}
    false = {kind: sum(row["broken"].count(kind) for row in rows) for kind in kinds}
    return {f"{kind}_holds": f"{all_of[kind] - false[kind]:,} of {all_of[kind]:,}" for kind in kinds}


def _tightness(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each bound over what it bounds, by the lower bound that won."""
    found: dict[str, Any] = {}
    for name in sorted({row["best"] for row in rows}):
        own = [row for row in rows if row["best"] == name]
        found[f"models_by_{name}"] = len(own)
        found[f"distance_tightness_by_{name}"] = median([row["rms_bound"] / max(row["rms"], 1e-300) for row in own])
        found[f"mean_use_by_{name}"] = median([row["mean_use"] for row in own])
    told = [row for row in rows if "divergence" in row]
    if told:
        found["divergence_tightness"] = median([r["divergence_bound"] / max(r["divergence"], 1e-300) for r in told])
    return found


def _problems(problem: BenchProblem) -> Iterator[tuple[str, BenchProblem]]:
    """Problems by name: those of `DATA` that a folder holds, or the one that is named; and an ill-conditioned one."""
    folder = Path(problem.data)
    files = [folder / f"{name}.npz" for name in DATA] if folder.is_dir() else []
    files = [file for file in files if file.is_file()]
    for file in files:
        yield file.stem, replace(problem, data=str(file))
    if not files:
        yield Path(problem.data).stem, problem
    yield ILL_CONDITIONED, replace(problem, data=FRIEDMAN1, n=min(problem.n or MOST_ILL, MOST_ILL))


def _prepared(
    name: str, problem: BenchProblem, folder: Path, reporter: Reporter
) -> tuple[Dataset, Hyperparameters, FloatArray]:
    if name == ILL_CONDITIONED:
        flat = Hyperparameters(SquaredExponential(gamma=(FLAT_GAMMA,) * 10), LITTLE_NOISE)
        problem = replace(problem, hyper=str(folder / "flat.json"))
        write_hyperparameters(folder / "flat.json", flat)
    prepared = prepare_problem(small_enough(problem), folder, reporter)
    dataset, found = open_dataset(prepared.train), read_hyperparameters(prepared.hyper)
    if prepared.test is None:
        inputs = dataset.inputs(0, min(problem.n_test, dataset.n_samples))
    else:
        test = open_dataset(prepared.test)
        inputs = test.inputs(0, test.n_samples)
    return dataset, found, inputs


def small_enough(problem: BenchProblem) -> BenchProblem:
    """Samples that the reference can hold: `LARGEST` at most."""
    if problem.n is not None:
        return replace(problem, n=min(problem.n, LARGEST))
    if problem.data == FRIEDMAN1 or Path(problem.data).suffix != ".npz":
        return replace(problem, n=LARGEST if problem.data == FRIEDMAN1 else None)
    with np.load(problem.data, allow_pickle=False) as archive:
        samples = len(archive["y"])
    return replace(problem, n=min(LARGEST, samples - min(problem.n_test, samples // 4)))
