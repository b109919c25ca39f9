"""Classifiers and risks on worker processes, some of them killed: the same bits as on one thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, open_classifier, open_prediction, save_classifier
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RiskSettings, train_gp
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.prediction.predict import predict
from dkgp.models.variance import iterative
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, GreedyBlockCoordinateDescent
from dkgp.solvers.losses import LogisticLoss, SoftmaxLoss
from dkgp.solvers.risk import minimise_risk
from tests.engine.helpers import opened, with_a_worker_killed

N = 1300
KERNEL = SquaredExponential((0.2, 0.2, 0.15, 0.05, 0.05, 0.01))
Bits = tuple[Any, ...]


def risk(method: str, coupled: bool) -> Callable[[Dataset, Any], Bits]:
    def minimised(dataset: Dataset, executor: Any) -> Bits:
        codes = labels_of(dataset).codes
        targets = np.eye(3)[codes] if coupled else np.where(codes == 0, 1.0, -1.0)
        with BlockedKernelOperator(KERNEL, 1.0, dataset, executor) as operator:
            found = minimise_risk(
                operator,
                targets,
                loss=SoftmaxLoss() if coupled else LogisticLoss(),
                regularisation=2.0,
                weights=1.0 + np.arange(N) % 2,
                method=method,
                gap=1e-5,
            )
        assert found.solution.converged
        return tuple(array.tobytes() for array in (found.solution.alpha, found.values, found.gradient_image))

    return minimised


def exact(solver: Any) -> Callable[[Dataset, Any], Bits]:
    def trained(dataset: Dataset, executor: Any) -> Bits:
        weights = np.where(np.arange(N) % 3 == 0, 2.0, 0.5)
        data = LabelledData(dataset, labels_of(dataset), weights)
        found = train_exact(data, Hyperparameters(KERNEL, 0.1), executor, ExactSettings(solver=solver))
        return found.alpha.tobytes(), found.ones.tobytes(), found.intercept.tobytes(), found.certificate

    return trained


def probabilities(dataset: Dataset, executor: Any) -> Bits:
    """Averaged probabilities, by variances as precise as these have use for, in two batches wherever they are taken."""
    data = LabelledData(dataset, labels_of(dataset))
    settings = RiskSettings(Likelihood.of("logit", "ovr", 3), tolerance=0.1)
    model = train_gp(data, Hyperparameters(KERNEL, 1.0), executor, settings)
    X, _ = friedman1(1200, n_features=6, seed=8, test=True)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Threads of one process would share one larger batch: another plan, which has bits of its own.
        patch.setattr(iterative, "MOST_DECIDED", 600)
        save_classifier(f"{folder}/model.zarr", model.record(data), dataset=dataset)
        tests = dataset_from_arrays(f"{folder}/test.zarr", X, None, chunk_rows=200)
        predict(open_classifier(f"{folder}/model.zarr"), tests, f"{folder}/p.zarr", executor)
        stored = open_prediction(f"{folder}/p.zarr")
        plans = stored.attributes["latent_variance"]
        assert all(plan["averages"] and plan["batch_size"] == 600 for plan in plans)
        return tuple(stored.read(name).tobytes() for name in stored.variables)


@dataclass(frozen=True)
class Model:
    """Arguments of the training, and the rounds in which a worker is killed, by name and number."""

    train: Callable[[Dataset, Any], Bits]
    kills: tuple[tuple[str, int], ...] = ()


MODELS = {
    "risk, kcg": Model(risk("kcg", False)),
    "risk, newton": Model(risk("newton", False), (("kgram", 2), ("kproject", 2))),
    "risk, majorisation": Model(risk("majorisation", False)),
    "risk, auto": Model(risk("auto", False)),
    "coupled risk, kcg": Model(risk("kcg", True)),
    "coupled risk, newton": Model(risk("newton", True)),
    "coupled risk, majorisation": Model(risk("majorisation", True)),
    "coupled risk, auto": Model(risk("auto", True)),
    "averaged probabilities": Model(probabilities, (("kvariance", 4),)),
    "exact, gbcd": Model(exact(GreedyBlockCoordinateDescent(block_size=100)), (("kblock", 3),)),
    "exact, pcg": Model(exact(ConjugateGradient(FactorPreconditioning(halo=100, leaf=50))), (("kvforward", 3),)),
}
KILLS = [(name, *kill) for name, model in MODELS.items() for kill in model.kills]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X, y = friedman1(N, n_features=6, seed=7)
    codes = np.digitize(y, np.quantile(y, (0.3, 0.6)))
    url = str(tmp_path_factory.mktemp("labelled") / "train.zarr")
    return dataset_from_arrays(url, X, codes, chunk_rows=300, classes=("low", "middle", "high"))


@pytest.fixture(scope="module")
def of_one_thread(dataset: Dataset) -> Callable[[str], Bits]:
    @cache
    def trained(name: str) -> Bits:
        executor = LocalExecutor(1)
        found = MODELS[name].train(dataset, executor)
        executor.close()
        return found

    return trained


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_worker_processes(dataset: Dataset, of_one_thread: Callable[[str], Bits], workers: int) -> None:
    with opened("processes", workers) as executor:
        assert executor.parallelism == workers
        for name, model in MODELS.items():
            assert model.train(dataset, executor) == of_one_thread(name), name


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
@pytest.mark.parametrize(("name", "kind", "count"), KILLS)
def test_a_killed_worker(
    dataset: Dataset, of_one_thread: Callable[[str], Bits], name: str, kind: str, count: int
) -> None:
    found = with_a_worker_killed(kind, count, lambda executor: MODELS[name].train(dataset, executor))
    assert found == of_one_thread(name)
