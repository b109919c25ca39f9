"""Predictions of latent functions with noises of their own: against single ones, dense algebra, and from stores."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, ndtr

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_classifier, open_prediction, save_classifier
from dkgp.data.stores.models.classifier import memory_classifier
from dkgp.errors import InputError, MemoryBudgetError, StoreError
from dkgp.kernels import Matern32
from dkgp.models import memory
from dkgp.models.classification.labels import LabelledData, Labels, labels_of
from dkgp.models.classification.likelihoods import Likelihood, Link
from dkgp.models.classification.near import NearSettings, TrainedNear, train_near
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.prediction.classes import ClassPosterior
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.prediction.sparse import plan_prediction, prediction_memory
from dkgp.models.sparse.near import Near, NearPredictor, fit_near
from dkgp.models.sparse.vif import Neighbours
from dkgp.models.tuning.laplace import column_mode, latent_predictions
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import ArrayInputs
from dkgp.operators.cross.kernel import CrossKernel
from tests.models.classification.modes import KERNEL, N, rows
from tests.models.posteriors import class_posterior
from tests.workers import on_dask

TESTS, ROWS = 90, 30


def trained(
    dataset: Dataset, labels: Labels, executor: LocalExecutor, *, link: Link = "logit", **settings: Any
) -> TrainedNear:
    return train_near(
        LabelledData(dataset, labels),
        Hyperparameters(KERNEL, 1.0),
        executor,
        NearSettings(**{"size": 12, "neighbours": 16, "seed": 1, **settings}),
        likelihood=Likelihood.of(link, "ovr", labels.n_classes),
    )


def training_set(folder: Path, n_classes: int = 2, n: int = 160) -> Dataset:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 2))
    score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0.0, 1.0, n_classes + 1)[1:-1]))
    return dataset_from_arrays(folder / "train.zarr", X, codes.astype(float), classes=("a", "b", "c")[:n_classes])


@cache
def model_of(n_classes: int) -> TrainedNear:
    """Train once for all tests that take the model as it is."""
    with closing(LocalExecutor(1)) as executor, TemporaryDirectory() as folder:
        dataset = training_set(Path(folder), n_classes)
        return trained(dataset, labels_of(dataset), executor)


def stored(folder: Path, n_classes: int = 2) -> tuple[Dataset, TrainedNear]:
    dataset, found = training_set(folder, n_classes), model_of(n_classes)
    save_classifier(str(folder / "model.zarr"), found.record(LabelledData(dataset, labels_of(dataset))))
    return dataset, found


@pytest.fixture
def unseen(rng: np.random.Generator, tmp_path: Path) -> Dataset:
    return dataset_from_arrays(tmp_path / "test.zarr", rng.standard_normal((TESTS, 2)), None, chunk_rows=ROWS)


def in_memory(dataset: Dataset, found: TrainedNear) -> ClassPosterior:
    """Predictions without a store."""
    record = memory_classifier(found.record(LabelledData(dataset, labels_of(dataset))))
    return class_posterior(record, record.url, threads=1)


def predicted(
    folder: Path, unseen: Dataset, executor: Any, name: str = "pred", *, plug_in: bool = False
) -> dict[str, np.ndarray]:
    to = Destination(str(folder / f"{name}.zarr"), chunk_rows=ROWS)
    predict(open_classifier(folder / "model.zarr"), unseen, to, executor, plug_in=plug_in)
    held = open_prediction(to.url)
    return {variable: held.read(variable) for variable in held.variables}


@pytest.mark.parametrize("basis", [0, 8])
def test_targets_with_noises_of_their_own_are_models_of_one_target(basis: int, one_thread: LocalExecutor) -> None:
    """To the same bits, in every order of the triangles in memory."""
    X, _, Z = rows()
    Z, rng = Z[:basis], np.random.default_rng(5)
    noise, Y = rng.uniform(0.05, 4.0, (N, 3)), rng.standard_normal((N, 3))
    T = rng.standard_normal((40, 2))
    one: list[Near] = []
    with RunContext.of(one_thread).operator(KERNEL, 1.0, ArrayInputs(X)) as operator:
        lower = CrossKernel(operator, Z).lower if basis else np.empty((0, 0))
        for column in range(3):
            by_sample = operator.with_noise(np.ascontiguousarray(noise[:, column]))
            one.append(fit_near(by_sample, Y[:, column : column + 1].copy(), Z, Neighbours(6, 10)).near)
    whitened = np.concatenate([near.whitened for near in one], axis=1)
    normal = np.stack([near.normal for near in one])
    together = replace(one[0], targets=Y, noise=noise, whitened=whitened, normal=normal)
    for model in (
        together,
        replace(together, normal=np.ascontiguousarray(normal), whitened=np.ascontiguousarray(whitened)),
        replace(together, whitened=np.asfortranarray(whitened), noise=np.asfortranarray(noise)),
    ):
        mean, variance = NearPredictor(KERNEL, Z, lower, model)(T)
        assert mean.shape == variance.shape == (40, 3)
        for column, near in enumerate(one):
            alone, spread = NearPredictor(KERNEL, Z, lower, near)(T)
            assert mean[:, column].tobytes() == alone[:, 0].tobytes()
            assert variance[:, column].tobytes() == spread.tobytes()
    assert np.ptp(variance, axis=1).min() > 1e-6
    nothing, none = NearPredictor(KERNEL, Z, lower, together)(T[:0])
    assert nothing.shape == none.shape == (0, 3)


@pytest.mark.parametrize(("link", "n_classes"), [("logit", 2), ("probit", 2), ("logit", 3)])
def test_with_all_samples_near_predictions_are_dense_laplaces(
    link: Link, n_classes: int, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    dataset, T = training_set(tmp_path, n_classes), np.random.default_rng(6).standard_normal((30, 2))
    n = dataset.n_samples
    labels = labels_of(dataset)
    found = trained(dataset, labels, one_thread, link=link, neighbours=4 * n, tolerance=1e-8)
    values = in_memory(dataset, found)(T)
    X, tests = dataset.inputs(0, n), dataset.standardisation.inputs(T)
    K, across = (np.asarray(KERNEL(X, to)) for to in (X, tests))
    positive, evidence = np.empty((30, labels.n_outputs)), 0.0
    for column, signs in enumerate(labels.signs().T):
        work = np.empty((n, n), order="F")
        mode = column_mode(K, np.ascontiguousarray(signs), found.likelihood.loss, work)
        assert mode is not None
        evidence += mode.objective - float(np.log(np.diagonal(work)).sum())
        mean, variance = latent_predictions(mode, work, across, KERNEL.diagonal(tests))
        np.testing.assert_allclose(found.values[:, column], mode.values, atol=1e-6)
        np.testing.assert_allclose(values["decision"][:, column], mean, atol=1e-5)
        np.testing.assert_allclose(values["latent_variance_lower"][:, column], variance, atol=1e-5)
        if link == "probit":
            average = ndtr(mean / np.sqrt(1.0 + variance))
        else:
            nodes, weights = np.polynomial.hermite_e.hermegauss(150)
            average = expit(mean[:, None] + np.sqrt(variance)[:, None] * nodes) @ weights / weights.sum()
        positive[:, column] = average
    assert found.summary["evidence"] == pytest.approx(evidence, abs=1e-5)
    expected = positive / positive.sum(axis=1, keepdims=True)
    if n_classes == 2:
        expected = np.concatenate([1.0 - positive, positive], axis=1)
    np.testing.assert_allclose(values["probability"], expected, atol=1e-5)
    decision = values["decision"]
    codes = (decision[:, 0] > 0.0) if n_classes == 2 else decision.argmax(axis=1)
    np.testing.assert_array_equal(values["class"].astype(int), codes)


@pytest.mark.long
def test_few_neighbours_are_nearer_to_the_exact_model_than_the_basis_alone(
    tmp_path: Path, one_thread: LocalExecutor
) -> None:
    """The error falls with each further neighbour."""
    dataset, T = training_set(tmp_path), np.random.default_rng(6).standard_normal((60, 2))
    labels, off = labels_of(dataset), []
    everything = None
    for neighbours in (4 * dataset.n_samples, 1, 8, 32):
        found = trained(dataset, labels, one_thread, neighbours=neighbours, size=6)
        decision = in_memory(dataset, found)(T)["decision"]
        if everything is None:
            everything = decision
        else:
            off.append(float(np.sqrt(np.mean((decision - everything) ** 2))))
    assert off[0] > 1.5 * off[1] > 2.0 * off[2]
    assert off[2] < 0.2 * float(everything.std())  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.parametrize("n_classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_store_predicts_what_memory_does_to_the_bit(n_classes: int, unseen: Dataset, tmp_path: Path) -> None:
    """Without the training set, on threads or workers; averaged or plugged in."""
    dataset, found = stored(tmp_path, n_classes)
    values = in_memory(dataset, found)(unseen.raw_inputs(0, TESTS))
    shutil.rmtree(tmp_path / "train.zarr")
    with closing(LocalExecutor(2)) as executor:
        averaged = predicted(tmp_path, unseen, executor)
        plugged = predicted(tmp_path, unseen, executor, "plugged", plug_in=True)
    for name in averaged:
        assert averaged[name].tobytes() == values[name].reshape(averaged[name].shape).tobytes(), name
    assert set(averaged) - set(plugged) == {"latent_variance_lower", "latent_variance_upper"}
    np.testing.assert_array_equal(plugged["decision"], averaged["decision"])
    np.testing.assert_array_equal(plugged["class"], averaged["class"])
    likelihood = found.likelihood
    np.testing.assert_allclose(plugged["probability"], likelihood.probabilities(plugged["decision"]), rtol=1e-12)
    if n_classes == 2:  # surer, by what the latent function leaves open
        sure, less = (np.abs(one["probability"][:, 1] - 0.5) for one in (plugged, averaged))
        assert (sure >= less).all()
        assert (sure - less).max() > 0.01
    with on_dask(3, processes=False) as (executor, _):
        others = predicted(tmp_path, unseen, executor, "pred-3")
    for name, held in averaged.items():
        assert held.tobytes() == others[name].tobytes(), name


def test_a_store_without_what_is_near_is_refused(unseen: Dataset, tmp_path: Path, one_thread: LocalExecutor) -> None:
    """By the record, when it is written; and when it is opened or predicted with, before anything is written."""
    dataset, found = stored(tmp_path)
    record = found.record(LabelledData(dataset, labels_of(dataset)))
    n = dataset.n_samples
    # Which a dkgp without neighbours refuses, where it would take the basis' weights for all there is.
    assert json.loads((tmp_path / "model.zarr" / "dkgp-manifest.json").read_text())["version"] == 3
    for name in ("near_inputs", "near_targets", "near_noise", "near_weights", "near_normal", "kernel_lower"):
        with pytest.raises(InputError, match=rf"A classifier with neighbours needs .*'{name}'"):
            save_classifier(str(tmp_path / "other.zarr"), replace(record, **{name: None}))
        values = getattr(record, name)
        with pytest.raises(InputError, match=rf"'{name}' .* shape"):
            save_classifier(str(tmp_path / "other.zarr"), replace(record, **{name: values[..., :-1]}))
    assert not (tmp_path / "other.zarr").exists()
    for damaged in (
        replace(record, near_targets=None),
        replace(record, near_normal=None),
        replace(record, near_noise=None),
        replace(record, neighbours=n + 1),
        replace(record, neighbours=-1),
        replace(record, search_samples=0),
    ):
        with pytest.raises(StoreError, match="train again"):
            class_posterior(damaged, f"damaged-{tmp_path}")
        with pytest.raises(StoreError, match="train again"):
            predict(damaged, unseen, Destination(str(tmp_path / "pred.zarr")), one_thread)
        assert not (tmp_path / "pred.zarr").exists()
    # Whole without the one count that may be missing, as in a store of before there was a limit.
    assert replace(record, search_samples=None).neighbours == 16
    for name in ("near_targets", "near_normal"):
        shutil.copytree(tmp_path / "model.zarr", tmp_path / "torn.zarr")
        shutil.rmtree(tmp_path / "torn.zarr" / name)
        with pytest.raises(StoreError):
            class_posterior(open_classifier(tmp_path / "torn.zarr"), f"torn-{tmp_path}")
        shutil.rmtree(tmp_path / "torn.zarr")


def test_what_has_no_meaning_is_refused(unseen: Dataset, tmp_path: Path, one_thread: LocalExecutor) -> None:
    dataset, found = stored(tmp_path)
    record = found.record(LabelledData(dataset, labels_of(dataset)))
    with pytest.raises(InputError, match="`by_reference` needs a classifier of all samples"):
        save_classifier(str(tmp_path / "other.zarr"), record, dataset=dataset, by_reference=True)
    to = Destination(str(tmp_path / "pred.zarr"))
    with pytest.raises(InputError, match="`variance`"):
        predict(open_classifier(tmp_path / "model.zarr"), unseen, to, one_thread, variance=VarianceSettings())
    assert not (tmp_path / "pred.zarr").exists()
    with pytest.raises(InputError, match="certify the basis of one"):
        _ = in_memory(dataset, found)(np.zeros((1, 2)))["certified"]


@pytest.mark.long
def test_memory_counts_each_functions_noise_and_triangle(
    unseen: Dataset, tmp_path: Path, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, found = stored(tmp_path, 3)
    record = found.record(LabelledData(dataset, labels_of(dataset)))
    plan, m, n = prediction_memory(record, 1, True), len(found.prototypes), dataset.n_samples
    assert plan == plan_prediction((m, 2, 3), 1, True, (n, 16), by_target=True)
    arrays = [record.near_inputs, record.near_targets, record.near_noise, record.near_weights, record.near_normal]
    assert plan["model_bytes"] > sum(array.nbytes for array in arrays if array is not None) + found.kernel_lower.nbytes
    # Twice each: as stored, and as taken.
    more = plan_prediction((m, 2, 4), 1, True, (n, 16), by_target=True)
    assert more["model_bytes"] - plan["model_bytes"] == 8 * (2 * m * m + 3 * n + m)
    near = found.near
    one = replace(near, noise=near.noise[:, 0], normal=near.normal[0])  # type: ignore[index]
    copies = 2 * 8 * 3 * n - 8 * n + (2 * 3 - 1) * 8 * m * m
    assert near.nbytes - one.nbytes == copies
    free = plan.coordinator_bytes - 1

    class Little:
        available = free

    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: Little)
    to = Destination(str(tmp_path / "pred.zarr"))
    with pytest.raises(
        MemoryBudgetError, match=r"160 samples near is projected to need .*trained with fewer basis samples"
    ):
        predict(open_classifier(tmp_path / "model.zarr"), unseen, to, one_thread)
    assert not (tmp_path / "pred.zarr").exists()
    Little.available = plan.coordinator_bytes
    predict(open_classifier(tmp_path / "model.zarr"), unseen, to, one_thread)


def test_nothing_near_is_as_far_as_the_prior_reaches(tmp_path: Path) -> None:
    """Far from all samples a probability is a half, whatever the labels; on one, the variance is not above the rest."""
    dataset, found = stored(tmp_path)
    here = class_posterior(open_classifier(tmp_path / "model.zarr"), f"far-{tmp_path}", threads=1)
    far = here(np.array([[1e4, -1e4]]))
    np.testing.assert_allclose(far["probability"], 0.5, atol=1e-6)
    np.testing.assert_allclose(far["latent_variance_upper"], 9.0, rtol=1e-9)
    on = here(dataset.raw_inputs(0, 20))
    assert (on["latent_variance_upper"] > 0.0).all()
    assert (on["latent_variance_upper"] < 0.7 * 9.0).all()
    # Of other neighbours than the fit has.
    assert np.corrcoef(on["decision"][:, 0], found.values[:20, 0])[0, 1] > 0.97


def test_kernels_of_one_distance_only_are_not_presumed(tmp_path: Path, one_thread: LocalExecutor) -> None:
    """For a sum of kernels the store keeps the landmarks that define proximity."""
    dataset = training_set(tmp_path)
    labels = labels_of(dataset)
    kernel = Matern32((2.0, 0.5), 4.0) + Matern32((0.3, 3.0), 4.0)
    found = train_near(
        LabelledData(dataset, labels),
        Hyperparameters(kernel, 1.0),
        one_thread,
        NearSettings(12, neighbours=16),
        likelihood=Likelihood.of("logit", "ovr", 2),
    )
    assert found.near.embedding is not None
    save_classifier(str(tmp_path / "model.zarr"), found.record(LabelledData(dataset, labels)))
    T = np.random.default_rng(1).standard_normal((20, 2))
    opened = class_posterior(open_classifier(tmp_path / "model.zarr"), f"sum-{tmp_path}", threads=1)(T)
    here = in_memory(dataset, found)(T)
    assert opened["decision"].tobytes() == here["decision"].tobytes()
    assert opened["latent_variance_lower"].tobytes() == here["latent_variance_lower"].tobytes()
