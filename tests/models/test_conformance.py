"""Conformance of trainers: the result does not depend on workers, interruptions or options."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, ClusterOptions, LocalExecutor, open_executor
from dkgp.data import open_classifier, save_classifier
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, RunContext, SparseSettings, train, train_sparse
from dkgp.models.classification.basis import BasisSettings, train_on_basis
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RiskSettings, train_gp, train_logistic
from dkgp.models.classification.near import NearSettings, train_near
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.solvers import Checkpointing, ConjugateGradient, FactorPreconditioning, GreedyBlockCoordinateDescent
from dkgp.solvers.risk import RISK_METHODS
from tests.covering import few
from tests.models.classification.problems import noisy_sine

Trainer = Callable[[LabelledData, RunContext], Any]

KERNEL = SquaredExponential((0.3, 0.3, 0.3))
HYPERPARAMETERS = Hyperparameters(KERNEL, 0.1)
LOGIT = Likelihood.of("logit", "ovr", 2)
SOLVER = GreedyBlockCoordinateDescent(block_size=20)

REGRESSIONS: dict[str, Trainer] = {
    "exact GP": lambda data, context: train(data.dataset, KERNEL, 0.1, context, solver=SOLVER),
    "exact GP, known noise": lambda data, context: train(
        data.dataset, KERNEL, 0.01, context, sample_noise=np.linspace(0.0, 0.3, data.n), solver=SOLVER
    ),
    "sparse GP": lambda data, context: train_sparse(
        data.dataset, KERNEL, 0.1, context, SparseSettings("sggp", 12, per_round=4)
    ),
}
CLASSIFIERS: dict[str, Trainer] = {
    "exact LS-SVM": lambda data, context: train_exact(data, HYPERPARAMETERS, context, ExactSettings(SOLVER)),
    "logistic": lambda data, context: train_logistic(data, HYPERPARAMETERS, context, RiskSettings(LOGIT)),
    "GP": lambda data, context: train_gp(data, HYPERPARAMETERS, context, RiskSettings(LOGIT)),
    "logistic on a basis": lambda data, context: train_on_basis(
        data, HYPERPARAMETERS, context, BasisSettings(12), likelihood=LOGIT
    ),
    "GP on a basis": lambda data, context: train_on_basis(
        data, HYPERPARAMETERS, context, BasisSettings(12, basis="greedy", certify=True), likelihood=LOGIT, form="gp"
    ),
    "GP on a basis with neighbours": lambda data, context: train_near(
        data, HYPERPARAMETERS, context, NearSettings(12, "greedy", neighbours=16), likelihood=LOGIT
    ),
    "fixed-size LS-SVM": lambda data, context: train_fixed_size(data, FixedSizeSettings(24, folds=3), context),
}
TRAINERS = REGRESSIONS | CLASSIFIERS


def near_with(given: np.ndarray | None = None, **changes: Any) -> Trainer:
    settings = NearSettings(**{"size": 12, "basis": "greedy", "neighbours": 16, **changes})
    return lambda data, context: train_near(data, HYPERPARAMETERS, context, settings, likelihood=LOGIT, given=given)


def risk_with(*changes: Any, **named: Any) -> Trainer:
    return lambda data, context: train_logistic(data, HYPERPARAMETERS, context, RiskSettings(*changes, **named))


def fixed_size_by(search: Any) -> Trainer:
    return lambda data, context: train_fixed_size(data, FixedSizeSettings(24, folds=3, search=search), context)


# The classifiers with other settings, which a checkpoint does not belong to.
CHANGED: dict[str, list[Trainer]] = {
    "exact LS-SVM": [
        lambda data, context: train_exact(
            data, HYPERPARAMETERS, context, ExactSettings(SOLVER, fit_intercept=False)
        )
    ],
    "logistic": [risk_with(LOGIT, 0.4), risk_with(Likelihood("probit", 2))],
    "logistic on a basis": [
        lambda data, context: train_on_basis(
            data, HYPERPARAMETERS, context, BasisSettings(12), likelihood=LOGIT, regularisation=2.0
        )
    ],
    "GP on a basis with neighbours": [
        near_with(neighbours=20), near_with(searched=50), near_with(size=11), near_with(tolerance=1e-4),
        near_with(given=np.arange(12)),
    ],
    "fixed-size LS-SVM": [
        lambda data, context: train_fixed_size(data, FixedSizeSettings(25, folds=3), context)
    ],
}  # fmt: skip
# With other settings, on three classes.
SOFTMAX = Likelihood("softmax", 3)
VARIANTS: dict[str, Trainer] = {
    "exact LS-SVM by preconditioned conjugate gradients": lambda data, context: train_exact(
        data, HYPERPARAMETERS, context, ExactSettings(ConjugateGradient(FactorPreconditioning(rank=50)))
    ),
    "GP on a basis, coupled": lambda data, context: train_on_basis(
        data, HYPERPARAMETERS, context, BasisSettings(30, certify=True), likelihood=SOFTMAX, form="gp"
    ),
    **{
        f"logistic by {method}, coupled": risk_with(SOFTMAX, 0.5, method=method)
        for method in RISK_METHODS
        if method not in ("gradient", "paramcg")  # which take thousands of products
    },
    **{f"fixed-size LS-SVM by {search}": fixed_size_by(search) for search in ("shared", "profile", "annealing")},
}
# Of a summary: what a run did, however often it was stopped.
COUNTS = {"iterations", "passes", "basis_size", "cardinality"}

# Noise by sample goes where the common one does: tests/solvers/test_every_solver.py.
every_trainer = pytest.mark.parametrize(
    "name", few(TRAINERS, *(name for name in TRAINERS if name != "exact GP, known noise"))
)
every_classifier = pytest.mark.parametrize("name", CLASSIFIERS)
Whole = Callable[[str], Any]


def draw() -> LabelledData:
    return LabelledData(*noisy_sine(np.random.default_rng(0)))


@pytest.fixture(scope="module")
def data() -> LabelledData:
    return draw()


@pytest.fixture(scope="module")
def whole(data: LabelledData, executor: BlockExecutor) -> Whole:
    """Return the model of the named trainer, trained once on two threads."""
    return functools.cache(lambda name: TRAINERS[name](data, RunContext(executor)))


@pytest.fixture(scope="module")
def others(data: LabelledData) -> Iterator[tuple[BlockExecutor, ...]]:
    """One thread, and two workers of Dask."""
    one = LocalExecutor(1)
    with open_executor(ClusterOptions(kind="local", workers=2), data.n) as dask:
        yield one, dask
    one.close()


def arrays_of(value: Any) -> dict[str, np.ndarray]:
    """The arrays of a trained model, those of the models within it too, by their path."""
    if isinstance(value, np.ndarray):
        return {"": value}
    if not dataclasses.is_dataclass(value):
        return {}
    return {
        f"{field.name}.{path}": array
        for field in dataclasses.fields(value)
        for path, array in arrays_of(getattr(value, field.name)).items()
    }


def bits_of(model: Any) -> dict[str, bytes]:
    arrays = arrays_of(model)
    assert any(array.dtype == np.float64 and array.any() for array in arrays.values())
    certificate = getattr(model, "certificate", None)
    text = json.dumps(certificate, sort_keys=True) if isinstance(certificate, dict) else repr(certificate)
    return {path: array.tobytes() for path, array in arrays.items()} | {"certificate": text.encode()}


def summary_of(model: Any) -> dict[str, Any]:
    return dict(model.summary if hasattr(model, "summary") else model.model.summary)


def subclasses(kind: type) -> set[type]:
    return {kind} if not kind.__subclasses__() else set().union(*map(subclasses, kind.__subclasses__()))


def test_every_kind_of_trained_classifier_is_tried(whole: Whole) -> None:
    trained = {type(whole(name)) for name in CLASSIFIERS}
    ours = {kind for kind in subclasses(TrainedClassifier) if kind.__module__.startswith("dkgp.")}
    assert ours <= trained, "a new trainer has a line in CLASSIFIERS"


@every_trainer
def test_the_bits_do_not_tell_who_computed(
    name: str, data: LabelledData, whole: Whole, others: tuple[BlockExecutor, ...]
) -> None:
    for other in others:
        assert bits_of(TRAINERS[name](data, RunContext(other))) == bits_of(whole(name))


@pytest.mark.spread(4)
@every_trainer
def test_a_watch_changes_nothing(
    name: str, data: LabelledData, executor: BlockExecutor, whole: Whole, tmp_path: Path
) -> None:
    told: list[Any] = []
    checkpointing = Checkpointing(CheckpointStore(str(tmp_path)), 0.0)
    context = RunContext(executor, callback=told.append, checkpointing=checkpointing, interrupted=lambda: False)
    assert bits_of(TRAINERS[name](data, context)) == bits_of(whole(name))
    assert told


@every_trainer
def test_inputs_are_left_as_they_were(name: str, executor: BlockExecutor) -> None:
    data = draw()
    before = data.dataset.inputs(0, data.n).tobytes(), data.dataset.all_targets().tobytes(), data.labels.codes.tobytes()
    TRAINERS[name](data, RunContext(executor))
    after = data.dataset.inputs(0, data.n).tobytes(), data.dataset.all_targets().tobytes(), data.labels.codes.tobytes()
    assert before == after


@every_trainer
def test_an_interrupted_run_goes_on_to_the_same_bits(
    name: str, data: LabelledData, executor: BlockExecutor, whole: Whole, tmp_path: Path
) -> None:
    trainer, store = TRAINERS[name], CheckpointStore(str(tmp_path))

    def saved() -> bool:
        return store.load_latest() is not None

    with pytest.raises(InterruptedRunError, match="saved in"):
        trainer(data, RunContext(executor, checkpointing=Checkpointing(store, 0.0), interrupted=saved))
    assert saved()
    resumed = trainer(data, RunContext(executor, checkpointing=Checkpointing(store, 0.0, resume=True)))
    assert bits_of(resumed) == bits_of(whole(name))
    one, other = summary_of(whole(name)), summary_of(resumed)
    assert {count: other[count] for count in COUNTS & other.keys()} == {
        count: one[count] for count in COUNTS & one.keys()
    }


class KilledError(Exception):
    """As good as a kill: nothing is done about it."""


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_other_settings_keep_their_bits_on_any_workers_and_after_a_kill(
    name: str, executor: BlockExecutor, others: tuple[BlockExecutor, ...], tmp_path: Path
) -> None:
    trainer, data = VARIANTS[name], LabelledData(*noisy_sine(np.random.default_rng(0), 150, 3))
    whole = trainer(data, RunContext(executor))
    for other in others:
        assert bits_of(trainer(data, RunContext(other))) == bits_of(whole)
    for rounds in (1, 5):
        store, told = CheckpointStore(str(tmp_path / f"{rounds}")), list[Any]()

        def cut(record: Any, told: list[Any] = told, rounds: int = rounds) -> None:
            told.append(record)
            if len(told) == rounds:
                raise KilledError

        with contextlib.suppress(KilledError):
            trainer(data, RunContext(executor, callback=cut, checkpointing=Checkpointing(store, 0.0)))
        resumed = trainer(data, RunContext(executor, checkpointing=Checkpointing(store, 0.0, resume=True)))
        assert bits_of(resumed) == bits_of(whole)
        assert getattr(resumed, "path", None) == getattr(whole, "path", None)


@pytest.mark.spread(3)
@every_classifier
def test_a_checkpoint_of_other_labels_weights_or_settings_is_refused(
    name: str, data: LabelledData, executor: BlockExecutor, tmp_path: Path
) -> None:
    trainer, store = CLASSIFIERS[name], CheckpointStore(str(tmp_path))
    trainer(data, RunContext(executor, checkpointing=Checkpointing(store, 0.0)))
    turned = LabelledData(data.dataset, Labels(data.labels.classes, 1 - data.labels.codes))
    weighted = LabelledData(data.dataset, data.labels, np.linspace(0.5, 1.5, data.n))
    runs = [(trainer, turned), (trainer, weighted), *((other, data) for other in CHANGED.get(name, ()))]
    for other, samples in runs:
        with pytest.raises(CheckpointError, match="another run|other settings"):
            other(samples, RunContext(executor, checkpointing=Checkpointing(store, 0.0, resume=True)))


def test_a_fixed_size_checkpoint_that_does_not_tell_its_labels_is_taken(
    data: LabelledData, executor: BlockExecutor, whole: Whole, tmp_path: Path
) -> None:
    """As earlier versions wrote them."""
    trainer, store = CLASSIFIERS["fixed-size LS-SVM"], CheckpointStore(str(tmp_path))
    trainer(data, RunContext(executor, checkpointing=Checkpointing(store, 0.0)))
    latest = store.load_latest()
    assert latest is not None
    state = {key: value for key, value in latest.metadata["state"].items() if key != "labels"}
    assert len(state) < len(latest.metadata["state"])
    store.clear()
    store.save(state["iteration"], latest.arrays, {**latest.metadata, "state": state})
    resumed = trainer(data, RunContext(executor, checkpointing=Checkpointing(store, 0.0, resume=True)))
    assert bits_of(resumed) == bits_of(whole("fixed-size LS-SVM"))


@every_trainer
def test_the_summary_is_plain_json(name: str, data: LabelledData, whole: Whole) -> None:
    summary = summary_of(whole(name))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["n"] == data.n
    assert summary["seconds"] > 0.0


@every_classifier
def test_a_classifiers_store_holds_what_was_trained(
    name: str, data: LabelledData, whole: Whole, tmp_path: Path
) -> None:
    model = whole(name)
    record = model.record(data)
    save_classifier(str(tmp_path / "model.zarr"), record, dataset=data.dataset)
    stored = open_classifier(str(tmp_path / "model.zarr"))
    assert stored.classes == data.labels.classes
    assert stored.form == record.form
    assert (stored.regularisation, stored.likelihood) == (record.regularisation, record.likelihood)
    assert bits_of(stored) == bits_of(record)
    trained = vars(model) | vars(getattr(model, "model", model))
    arrays = [array for array in model.fields() if isinstance(trained.get(array), np.ndarray)]
    assert {"weights", "alpha"} & set(arrays)
    for array in arrays:
        np.testing.assert_array_equal(getattr(stored, array), trained[array])


# The fixed-size LS-SVM draws its folds class by class, so it is cross-validated on others.
@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name != "fixed-size LS-SVM"])
def test_classes_that_change_places_turn_the_decisions_round(
    name: str, data: LabelledData, executor: BlockExecutor, whole: Whole
) -> None:
    turned = LabelledData(data.dataset, Labels(data.labels.classes[::-1], 1 - data.labels.codes))
    one, other = whole(name).fields(), CLASSIFIERS[name](turned, RunContext(executor)).fields()
    weights = next(array for array in ("weights", "alpha") if array in one)
    np.testing.assert_allclose(one[weights], -other[weights], rtol=1e-5, atol=1e-6)
