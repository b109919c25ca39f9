"""Several subsets: their likelihoods add up, side by side, to the same bits wherever they are computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray

from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor, worker_cache
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, tune, tune_dataset
from dkgp.models.tuning import tune as tuning_run
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LeaveOneOut, LogMarginalLikelihood, ObjectiveName
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import evaluate_task

FloatArray = NDArray[np.float64]

N, D, SUBSET, SUBSETS = 400, 3, 70, 3


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    generator = np.random.default_rng(11)
    inputs = generator.standard_normal((N, D))
    targets = np.sin(2.0 * inputs[:, 0]) * inputs[:, 1] + 0.2 * generator.standard_normal(N)
    return dataset_from_arrays(tmp_path_factory.mktemp("tuning") / "train.zarr", inputs, targets, chunk_rows=60)


def tuned(dataset: Dataset, objective: ObjectiveName = "likelihood", **given: object) -> Hyperparameters:
    found = tune_dataset(
        dataset,
        subset=SUBSET,
        subsets=SUBSETS,
        objective=objective,
        folds=3,
        holdout=0.3,
        seed=2,
        max_evaluations=8,
        **given,  # type: ignore[arg-type]
    )
    return replace(found, seconds=None)


@pytest.fixture(scope="module")
def reference(dataset: Dataset) -> dict[ObjectiveName, Hyperparameters]:
    """The results of one thread."""
    executor = LocalExecutor(1)
    try:
        return {name: tuned(dataset, name, executor=executor) for name in ("likelihood", "loo")}
    finally:
        executor.close()


@pytest.mark.parametrize("objective", ["likelihood", "loo"])
def test_the_value_is_the_sum_over_subsets(
    dataset: Dataset, reference: dict[ObjectiveName, Hyperparameters], objective: ObjectiveName
) -> None:
    found = reference[objective]
    inputs, targets = dataset.inputs(0, N), dataset.targets(0, N)
    plan = plan_subsets(N, SUBSET, subsets=SUBSETS, seed=2, holdout=0.3)
    parameters = np.log([*found.gamma, found.noise_variance])
    kind: type[LogMarginalLikelihood | LeaveOneOut] = (
        LogMarginalLikelihood if objective == "likelihood" else LeaveOneOut
    )
    total = 0.0
    for index in range(SUBSETS):
        rows = plan.subset(index)
        family = ArdSquaredExponential(inputs[rows], learn_variance=False, feature_names=("a", "b", "c"))
        outcome = kind(family, targets[rows])(parameters)
        total += outcome[0]
    value = found.log_marginal_likelihood if objective == "likelihood" else found.leave_one_out_log_likelihood
    assert value == pytest.approx(total, rel=1e-9)
    assert (found.subsets, found.subset_size, found.n_samples) == (SUBSETS, SUBSET, N)


@pytest.mark.parametrize("objective", ["likelihood", "loo"])
@pytest.mark.parametrize("threads", [2, 5])
def test_any_number_of_threads_gives_the_same_bits(
    dataset: Dataset, reference: dict[ObjectiveName, Hyperparameters], objective: ObjectiveName, threads: int
) -> None:
    executor = LocalExecutor(threads)
    try:
        assert tuned(dataset, objective, executor=executor) == reference[objective]
    finally:
        executor.close()


@pytest.mark.parametrize("kind", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_cluster_gives_the_same_bits(
    dataset: Dataset, reference: dict[ObjectiveName, Hyperparameters], kind: str
) -> None:
    options = ClusterOptions(kind=kind, workers=2, threads_per_worker=1)  # type: ignore[arg-type]
    with open_executor(options, N) as executor:
        assert tuned(dataset, executor=executor) == reference["likelihood"]


def test_tasks_and_results_that_travel_give_the_same_bits(
    dataset: Dataset, reference: dict[ObjectiveName, Hyperparameters]
) -> None:
    # Over TCP and through pickle as between machines, though the workers are threads of this process.
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        executor = DaskExecutor(client)
        assert not executor.shares_memory
        assert tuned(dataset, executor=executor) == reference["likelihood"]
        with pytest.raises(InputError, match="workers in other processes cannot read arrays"):
            tune(np.zeros((10, 1)), np.zeros(10), executor=executor)
        executor.close()


def test_without_an_executor_it_is_the_same_and_so_it_is_from_arrays(
    dataset: Dataset, reference: dict[ObjectiveName, Hyperparameters]
) -> None:
    assert tuned(dataset) == reference["likelihood"]
    found = tune(
        dataset.inputs(0, N),
        dataset.targets(0, N),
        feature_names=dataset.feature_names,
        subset=SUBSET,
        subsets=SUBSETS,
        folds=3,
        holdout=0.3,
        seed=2,
        max_evaluations=8,
    )
    assert replace(found, seconds=None) == reference["likelihood"]


def test_one_subset_on_an_executor_has_the_bits_of_one_without(dataset: Dataset) -> None:
    alone = tune_dataset(dataset, subset=80, seed=3)
    executor = LocalExecutor(2)
    try:
        shared = tune_dataset(dataset, subset=80, seed=3, executor=executor)
    finally:
        executor.close()
    assert replace(alone, seconds=None) == replace(shared, seconds=None)


def test_more_subsets_find_the_truth_better(rng: np.random.Generator) -> None:
    inputs = rng.standard_normal((1200, 1))
    kernel = SquaredExponential((0.5,))
    targets = np.linalg.cholesky(kernel(inputs, inputs) + 0.1 * np.eye(1200)) @ rng.standard_normal(1200)
    noise = {count: tune(inputs, targets, subset=60, subsets=count).noise_variance for count in (1, 20)}
    assert abs(np.log(noise[20] / 0.1)) < 0.1
    assert abs(np.log(noise[20] / 0.1)) < abs(np.log(noise[1] / 0.1))


def test_subsets_that_must_overlap_are_told_of(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((50, 1)), rng.standard_normal(50)
    found = tune(inputs, targets, subset=30, subsets=2, max_evaluations=2)
    assert any("2 subsets of 30 samples share some of the 50 samples" in text for text in found.warnings)


def test_one_subset_without_a_likelihood_leaves_none_of_the_sum(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = evaluate_task
    monkeypatch.setattr(
        tuning_run,
        "evaluate_task",
        lambda context, parameters, starts, subsets: [
            (None, None) if index == 1 else outcome
            for index, outcome in zip(subsets, evaluate(context, parameters, starts, subsets), strict=True)
        ],
    )
    with pytest.raises(NumericalError, match="not positive definite at any starting point"):
        tune(rng.standard_normal((60, 1)), rng.standard_normal(60), subset=20, subsets=2)


def test_nothing_is_left_in_this_process_when_it_ends(rng: np.random.Generator) -> None:
    before = worker_cache().nbytes
    tune(rng.standard_normal((200, 2)), rng.standard_normal(200), subset=50, subsets=2, max_evaluations=2)
    assert worker_cache().nbytes == before


def test_a_store_with_holes_is_refused_by_whoever_reads_it(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((100, 2)), rng.standard_normal(100)

    class Holes:
        n_samples, chunk_rows, feature_names = 100, 40, ("a", "b")
        covariate_names = ()

        def rows_at(self, indices: NDArray[np.int64]) -> FloatArray:
            return np.where(inputs[indices] > 2.0, np.nan, inputs[indices])

        def targets(self, start: int, stop: int) -> FloatArray:
            return targets[start:stop]

    with pytest.raises(InputError, match="inputs hold .* NaN or infinite"):
        tune_dataset(Holes(), subset=50, subsets=2)
