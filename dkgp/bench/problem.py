"""The problem that solvers are compared on: a training store, a test store, hyperparameters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.measurements import check_record_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, Standardisation, dataset_from_arrays, ingest, open_dataset, recognise, write_friedman1
from dkgp.data.remote.storage import normalise_url
from dkgp.errors import InputError
from dkgp.models import Hyperparameters, read_hyperparameters, tune_dataset, write_hyperparameters

# Hyperparameters of a data set, without a search.
Untuned = Callable[[Dataset], Hyperparameters]

FRIEDMAN1 = "friedman1"


@dataclass(frozen=True)
class BenchProblem:
    """The regression problem of a benchmark: data, sizes, hyperparameters.

    Attributes
    ----------
    data
        "friedman1", a dataset store, or a file that `dkgp ingest` reads.
    n
        Training samples, drawn at random; default 20,000 for Friedman1, all but the test samples elsewhere.
    n_test
        Test samples at most, from those that are left.
    target
        Of a file.
    hyper
        Hyperparameter file; tuned on `subset` samples where there is none.
    """

    data: str = FRIEDMAN1
    n: int | None = None
    n_test: int = 5000
    target: str = "y"
    hyper: str | None = None
    subset: int = 2000
    seed: int = 0


@dataclass(frozen=True)
class PreparedProblem:
    """A problem's stores and files; `warm` holds the first training samples, to load compiled code with."""

    train: str
    test: str | None
    warm: str
    hyper: str
    n: int
    d: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class ProblemJob:
    """A benchmark on one problem, by one solver; `out` is where the record goes."""

    problem: BenchProblem = field(default_factory=BenchProblem)
    solver: SolverOptions = field(default_factory=SolverOptions)
    out: str | None = None

    @contextmanager
    def prepared(self, reporter: Reporter, untuned: Untuned | None = None) -> Iterator[tuple[PreparedProblem, Path]]:
        """Open a folder that holds the problem, for as long as it is measured; the record's place is checked first."""
        check_record_file(self.out)
        with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
            yield prepare_problem(self.problem, Path(name), reporter, untuned), Path(name)

    def title(self, subject: str, prepared: PreparedProblem, more: str) -> str:
        """Return the title of a record: the subject and its problem."""
        return f"{subject}: {self.problem.data}, n = {prepared.n:,}, d = {prepared.d}, {more}"

    def settings(self, prepared: PreparedProblem) -> dict[str, Any]:
        """Return the settings that the records of all benchmarks on a problem have."""
        solver = self.solver.to_json()
        return {"n": prepared.n, "d": prepared.d, "problem": asdict(self.problem), "solver": solver}


def prepare_problem(
    problem: BenchProblem, folder: Path, reporter: Reporter, untuned: Untuned | None = None
) -> PreparedProblem:
    """Write the stores and the hyperparameter file into `folder`; `untuned` replaces a search."""
    from dkgp.plan.validation import write_warm_up

    train_url, warm_url, hyper_file = (str(folder / name) for name in ("train.zarr", "warm.zarr", "hyper.json"))
    if problem.data == FRIEDMAN1:
        with reporter.work("prepare") as show:
            train, test = write_friedman1(
                train_url, folder / "test.zarr", problem.n or 20_000, problem.n_test, seed=problem.seed, progress=show
            )
    else:
        train, test = _drawn(problem, folder, train_url, reporter)
    if problem.hyper is not None:
        hyper = read_hyperparameters(problem.hyper, n_features=train.n_features, feature_names=train.feature_names)
    elif untuned is not None:
        hyper = untuned(train)
    else:
        with reporter.search("tune") as progress:
            hyper = tune_dataset(train, subset=problem.subset, seed=problem.seed, progress=progress)
    write_hyperparameters(hyper_file, hyper)
    write_warm_up(train, warm_url)
    test_url = None if test is None else test.url
    return PreparedProblem(train.url, test_url, warm_url, hyper_file, train.n_samples, train.n_features)


def _drawn(problem: BenchProblem, folder: Path, train_url: str, reporter: Reporter) -> tuple[Dataset, Dataset | None]:
    """Draw training samples, and test samples from the rest."""
    dataset = open_whole(problem, folder, reporter)
    order = np.random.default_rng(problem.seed).permutation(dataset.n_samples)
    n = problem.n or max(2, dataset.n_samples - problem.n_test)
    if not 2 <= n <= dataset.n_samples:
        raise InputError(f"'{problem.data}' has {dataset.n_samples:,} samples; cannot draw {n:,} of them to train on")
    train_rows, rest = order[:n], order[n : n + problem.n_test]
    train = write_rows(dataset, train_rows, train_url)
    return train, write_rows(dataset, rest, folder / "test.zarr", train.standardisation) if rest.size else None


def write_rows(
    dataset: Dataset, rows: NDArray[np.int64], url: str | Path, standardisation: Standardisation | None = None
) -> Dataset:
    """Write some samples of a data set, in the units of its source, to a store of their own."""
    return dataset_from_arrays(
        url,
        dataset.inputs(0, dataset.n_samples, standardised=False)[rows],
        dataset.all_targets(standardised=False)[rows],
        feature_names=dataset.feature_names,
        target_names=dataset.target_names,
        standardisation=standardisation,
    )


def open_whole(problem: BenchProblem, folder: Path, reporter: Reporter) -> Dataset:
    """Open a dataset store, or ingest a file into `folder`: all its samples."""
    if recognise(normalise_url(problem.data)) is not None:
        return open_dataset(problem.data)
    with reporter.work("prepare") as show:
        return ingest(problem.data, folder / "whole.zarr", target=problem.target, progress=show).train
