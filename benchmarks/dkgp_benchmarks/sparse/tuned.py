"""`dkgp bench sparse --tuned`: hyperparameters by the likelihood with neighbours on all samples, and by a subset's own.

Both predict held-out samples by one and the same model with neighbours, so that only the hyperparameters differ. The
kernel is Matern's of smoothness 3/2. Where a data set has no more samples than the subset, that has the exact
likelihood of all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.problem import FRIEDMAN1, BenchProblem, PreparedProblem, prepare_problem
from dkgp.cluster import open_executor
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, UsageError
from dkgp.kernels import fold_white
from dkgp.models import Hyperparameters, read_hyperparameters, tune_dataset
from dkgp.models.sparse.near import NearPredictor
from dkgp.models.sparse.search import BASIS_SIZES, tune_by_bound
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.train import train_sparse
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp_benchmarks.sparse.bounds import small_enough
from dkgp_benchmarks.sparse.contenders import processor_seconds
from dkgp_benchmarks.sparse.job import BenchSparseJob
from dkgp_benchmarks.sparse.measure import scores

# Those of a folder of data sets, beside Friedman's function.
DATA = ("abalone", "airfoil", "california", "concrete_raw", "dem_bigtujunga", "kin40k", "pumadyn32nm")
KERNEL = "matern32"
SUBSET, NEIGHBOURS = "subset", "neighbours"

COLUMNS = (
    Column("data", "data", text=True),
    Column("n", "n", ",d"),
    Column("d", "d", "d"),
    Column("tuned_by", "tuned by", text=True),
    Column("rmse", "RMSE", ".4f"),
    Column("nlpd", "NLPD", ".4f"),
    Column("coverage", "coverage of 95 %", ".1%"),
    Column("noise_variance", "noise", ".3g"),
    Column("processor_seconds", "tuning, processor s", ".1f"),
)


def run_bench_sparse_tuned(job: BenchSparseJob, reporter: Reporter) -> Document:
    """Tune each data set twice and predict; return errors, and on how many sets the neighbours' density is better.

    Raises
    ------
    UsageError
        Hyperparameters or methods were given: both are this benchmark's.
    """
    if job.problem.hyper is not None or job.methods or job.bases or len(job.sizes) > 1:
        raise UsageError("`tuned` finds its own hyperparameters, by vif with one `sizes`; leave out the others")
    check_record_file(job.out)
    rows: list[dict[str, Any]] = []
    for name, problem in _problems(job.problem):
        with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as folder:
            rows += _of_problem(job, name, problem, Path(folder), reporter)
    lower = [by["nlpd"] < of["nlpd"] for of, by in _pairs(rows)]
    figures = {
        "lower_nlpd_by_neighbours": f"{sum(lower)} of {len(lower)}",
        "nlpd_difference_mean": float(np.mean([by["nlpd"] - of["nlpd"] for of, by in _pairs(rows)])),
        "rmse_ratio_mean": float(np.mean([by["rmse"] / of["rmse"] for of, by in _pairs(rows)])),
    }
    title = f"Hyperparameters by {NEIGHBOURS} on all samples, and by a {SUBSET} of {job.problem.subset:,}: {KERNEL}"
    return write_record(report("sparse_tuned", title, COLUMNS, rows, figures, subset=job.problem.subset), job.out)


def _pairs(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return zip(rows[::2], rows[1::2], strict=True)


def _of_problem(
    job: BenchSparseJob, name: str, problem: BenchProblem, folder: Path, reporter: Reporter
) -> list[dict[str, Any]]:
    """The row of a subset, and that of all samples."""
    seconds: dict[str, float] = {}

    def measured(what: str, search: Callable[[], Hyperparameters]) -> Hyperparameters:
        began = processor_seconds()
        found = search()
        seconds[what] = processor_seconds() - began
        return found

    def by_subset(dataset: Dataset) -> Hyperparameters:
        subset, seed = problem.subset, problem.seed
        return measured(SUBSET, lambda: tune_dataset(dataset, kernel=KERNEL, subset=subset, seed=seed))

    # As many as were asked for, or as there are.
    largest = small_enough(replace(problem, n=None))
    if problem.n is not None and largest.n is not None:
        largest = replace(largest, n=min(problem.n, largest.n))
    prepared = prepare_problem(largest, folder, reporter, by_subset)
    dataset = open_dataset(prepared.train)
    size = min(job.sizes[0] if job.sizes else BASIS_SIZES["vif"], dataset.n_samples)
    search = SearchSettings(problem.seed)
    with open_executor(job.cluster, dataset.n_samples, reporter) as executor:
        found = {
            SUBSET: read_hyperparameters(prepared.hyper, n_features=prepared.d),
            NEIGHBOURS: measured(
                NEIGHBOURS,
                lambda: tune_by_bound(dataset, executor, Choices(KERNEL), search, objective="vif", basis_size=size),
            ),
        }
        rows = []
        for what, values in found.items():
            row = {"data": name, "n": dataset.n_samples, "d": dataset.n_features, "tuned_by": what}
            row |= _scored(prepared, values, executor, size, noise_free=problem.data == FRIEDMAN1)
            rows.append({**row, "noise_variance": values.noise_variance, "processor_seconds": seconds[what]})
            reporter.note(f"{name}, tuned by {what}: NLPD {row['nlpd']:.4f}, {seconds[what]:.1f} processor seconds")
    return rows


def _scored(
    prepared: PreparedProblem, found: Hyperparameters, executor: BlockExecutor, size: int, *, noise_free: bool
) -> dict[str, float]:
    """Errors of the model with neighbours at the test samples; the function's where their targets have no noise."""
    if prepared.test is None:
        raise InputError(f"all {prepared.n:,} samples are trained on; none are left to test on")
    test, settings = open_dataset(prepared.test), SparseSettings("vif", size)
    trained = train_sparse(open_dataset(prepared.train), found.kernel, found.noise_variance, executor, settings)
    model, near = trained.model, trained.near
    assert near is not None
    mean, variance = NearPredictor(model.kernel, model.prototypes, model.lower, near)(test.inputs(0, test.n_samples))
    noise = 0.0 if noise_free else fold_white(found.kernel, found.noise_variance)[1]
    return scores(mean, variance, test.all_targets(), noise)


def _problems(problem: BenchProblem) -> Iterator[tuple[str, BenchProblem]]:
    """Problems by name: those of `DATA` that a folder holds, and Friedman's; or the one that is named."""
    folder = Path(problem.data)
    if not folder.is_dir() or folder.suffix == ".zarr":
        yield folder.stem, problem
        return
    for name in DATA:
        if (file := folder / f"{name}.npz").is_file():
            yield name, replace(problem, data=str(file))
    yield FRIEDMAN1, replace(problem, data=FRIEDMAN1)
