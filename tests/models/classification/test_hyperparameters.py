"""Hyperparameters of labels: the marginal likelihood of centred signs.

Hyperparameters by the evidence of labels: what is found, on subsets, with weights, and to the same bits.

Laplace's evidence with neighbours: the dense one where halos are everything, and its slopes against differences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification import hyperparameters
from dkgp.models.classification import near as evidence_module
from dkgp.models.classification.hyperparameters import LabelTuning, labelled_subsets, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.near import EvidenceLabels, LabelVifObjective
from dkgp.models.sparse.vif import Neighbours
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.laplace import LogitEvidence, ProbitEvidence
from dkgp.models.tuning.subsets import draw_subset
from dkgp.models.tuning.tune import tune
from dkgp.operators import ArrayInputs
from tests.models.classification.problems import noisy_sine
from tests.workers import on_dask


def labelled(rng: np.random.Generator, n: int = 200) -> tuple[Dataset, Labels]:
    X = rng.standard_normal((n, 3))
    codes = (np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(n) > 0.0).astype(np.int64)
    return memory_dataset(X, codes.astype(np.float64)), Labels(("no", "yes"), codes)


def test_as_tuning_on_centred_signs(rng: np.random.Generator) -> None:
    data, labels = labelled(rng)
    found = tune_labels(LabelledData(data, labels))
    signs = labels.signs()
    expected = tune(data.inputs(0, 200), signs - signs.mean(), tolerance=1e-3, max_evaluations=200)
    assert found.kernel.to_json() == expected.kernel.to_json()
    assert found.noise_variance == expected.noise_variance
    assert found.gamma[0] > 5.0 * max(found.gamma[1:])


def test_a_subset_of_many_samples(rng: np.random.Generator) -> None:
    data, labels = labelled(rng, 400)
    found = tune_labels(LabelledData(data, labels), LabelTuning(100, 3, isotropic=True))
    assert (found.subset_size, found.n_samples) == (100, 400)
    assert len(set(found.gamma)) == 1


def test_what_is_refused(rng: np.random.Generator) -> None:
    data, _ = labelled(rng)
    with pytest.raises(InputError, match="are of one class only; expected at least two"):
        tune_labels(LabelledData(data, Labels(("no", "yes"), np.zeros(200, dtype=np.int64))))


@pytest.mark.parametrize(("rare", "expected"), [(1, 1), (5, 5), (12, 5)])
def test_a_class_that_a_random_subset_would_miss_is_in_it(
    rng: np.random.Generator, rare: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 4000
    codes = np.zeros(n, dtype=np.int64)
    codes[rng.choice(np.setdiff1d(np.arange(n), draw_subset(n, 60, 0)), rare, replace=False)] = 1
    X = rng.standard_normal((n, 2)) + 3.0 * codes[:, None]
    seen: list[np.ndarray] = []

    def noted(inputs: np.ndarray, targets: np.ndarray, **settings: Any) -> Any:
        seen.append(targets)
        return tune(inputs, targets, **settings)

    monkeypatch.setattr(hyperparameters, "tune", noted)
    data = LabelledData(memory_dataset(X, codes.astype(np.float64)), Labels(("no", "yes"), codes))
    found = tune_labels(data, LabelTuning(60))
    assert np.count_nonzero(seen[0] > 0.0) == expected
    assert found.subset_size == len(seen[0]) == 60 + expected


def test_the_optimum_is_a_general_searchs(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng, 70)
    found = tune_labels(LabelledData(data, labels), LabelTuning(likelihood="logit", tolerance=1e-6, isotropic=True))
    inputs = data.inputs(0, 70)
    kernel = SquaredExponential(gamma=(1 / 6,), n_features=3)
    evidence = LogitEvidence(family_of(kernel, inputs, True, data.feature_names), labels.signs())

    def negative(logs: np.ndarray) -> float:
        return -evidence(np.append(logs, 0.0))[0]  # type: ignore[index]

    best = optimize.minimize(negative, np.log([1 / 6, 1.0]), method="Nelder-Mead", options={"fatol": 1e-6})
    assert found.log_marginal_likelihood is not None
    assert_allclose(found.log_marginal_likelihood, -best.fun, rtol=1e-6)
    assert (found.likelihood, found.noise_variance, found.converged) == ("logit", 1.0, True)
    assert [parameter.name for parameter in found.parameters or ()] == ["gamma", "variance"]
    assert Hyperparameters.from_json(found.to_json()) == found


def test_length_scales_tell_the_features_that_matter(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng)
    found = tune_labels(LabelledData(data, labels), LabelTuning(likelihood="probit"))
    assert found.gamma[0] > 10.0 * max(found.gamma[1:])


@pytest.mark.parametrize(
    "likelihood",
    ["logit", pytest.param("probit", marks=pytest.mark.slow), pytest.param("softmax", marks=pytest.mark.slow)],
)
def test_subsets_add_up_to_the_same_bits_on_any_number_of_threads(likelihood: str, rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng, 300, 3)
    weights = rng.uniform(0.5, 2.0, 300)
    results = []
    for threads in (1, 2, 5):
        executor = LocalExecutor(threads)
        try:
            found = tune_labels(
                LabelledData(data, labels, weights),
                LabelTuning(
                    likelihood=likelihood,  # type: ignore[arg-type]
                    kernel="rbf(isotropic=True)",
                    subset=60,
                    subsets=3,
                    folds=3,
                    holdout=0.5,
                    max_evaluations=6,
                ),
                executor,
            )
        finally:
            executor.close()
        results.append(replace(found, seconds=None))
    assert results[0] == results[1] == results[2]
    scores = results[0].scores or {}
    assert scores["folds"]["predictions"] == 180
    assert scores["holdout"]["rows"] == 30
    assert 0.0 < scores["holdout"]["error_rate"] < 0.6
    assert 0.3 < scores["folds"]["log_loss"] < np.log(3.0)


def test_a_rare_class_is_in_every_subset_and_none_is_of_one_class(rng: np.random.Generator) -> None:
    n = 2000
    codes = np.zeros(n, dtype=np.int64)
    codes[:12] = 1
    labels = Labels(("no", "yes"), codes)
    data = memory_dataset(rng.standard_normal((n, 2)), codes.astype(np.float64))
    drawn = labelled_subsets(LabelledData(data, labels), LabelTuning(100, 1, subsets=3, holdout=0.2))
    assert all((signs > 0.0).sum() >= 5 for signs in drawn.labels)
    held = drawn.plan.held_out()
    assert all(len(np.intersect1d(chosen, held)) == 0 for chosen in drawn.indices)
    with pytest.raises(InputError, match="of one class only"):
        labelled_subsets(LabelledData(data, Labels(("no", "yes"), np.zeros(n, dtype=np.int64))), LabelTuning(100))


def test_noise_of_labels_is_said_to_find_nothing(rng: np.random.Generator) -> None:
    data, _ = noisy_sine(rng)
    codes = rng.integers(0, 2, 150)
    found = tune_labels(
        LabelledData(data, Labels(("a", "b"), codes)), LabelTuning(likelihood="logit", kernel="rbf(isotropic=True)")
    )
    assert any("no structure found" in message for message in found.warnings)


def test_what_the_evidence_refuses(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng)
    with pytest.raises(InputError, match="there is no hyperparameter 'noise_variance'; available:"):
        tune_labels(LabelledData(data, labels), LabelTuning(likelihood="logit", fixed={"noise_variance": 0.1}))
    with pytest.raises(InputError, match="leave white noise out of the kernel"):
        tune_labels(LabelledData(data, labels), LabelTuning(likelihood="logit", kernel="rbf + 0.1 * white"))
    with pytest.raises(InputError, match="must be one of logit, probit, softmax"):
        tune_labels(LabelledData(data, labels), LabelTuning(likelihood="gauss"))  # type: ignore[arg-type]


NAMES = ("a", "b", "c")
DENSE: dict[str, Any] = {"logit": LogitEvidence, "probit": ProbitEvidence}
RBF, SUM = SquaredExponential((1.0, 0.5, 0.2), 3.0), parse_kernel("matern32 + linear", 3)
# Relative errors of gradients by the corrections made: what a leaf's halo leaves out moves little with W.
ERRORS = {0: 2e-2, 1: 1e-3, 4: 1e-5}


def columns_of_labels(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, two columns of signs, weights of which some are zero, and a basis."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n, 3))
    latent = 2.0 * np.sin(2.0 * X[:, :1]) + X[:, 1:2] + rng.standard_normal((n, 2))
    weights = np.maximum(rng.uniform(-0.5, 3.0, n), 0.0)
    return X, np.where(latent > 0.0, 1.0, -1.0), weights, np.concatenate([X[::12], rng.standard_normal((2, 3))])


def objective(
    X: np.ndarray, signs: np.ndarray, weights: np.ndarray | None, executor: Any, name: str, leaf: int, halo: int
) -> LabelVifObjective:
    columns = [EvidenceLabels(column, DENSE[name].loss, weights) for column in signs.T]
    return LabelVifObjective(ArrayInputs(X), columns, executor, Neighbours(leaf, halo))


@pytest.mark.spread(3)
@pytest.mark.covering(2)
@pytest.mark.parametrize("basis", [0, 8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("kernel", [RBF, SUM], ids=["rbf", "sum"])
def test_with_all_samples_near_it_is_the_dense_evidence(
    kernel: Kernel, name: str, weighted: bool, basis: int, executor: BlockExecutor
) -> None:
    X, signs, weights, Z = columns_of_labels(70)
    used = weights if weighted else None
    tried = objective(X, signs, used, executor, name, 8, 70)(kernel, 1.0, Z[:basis])
    family = family_of(kernel, X, True, NAMES)
    outcome = DENSE[name](family, signs, None, used)(np.append(family.initial(), 0.0))
    assert outcome is not None
    assert tried.value == pytest.approx(outcome[0], rel=1e-7)
    np.testing.assert_allclose(tried.gradient, outcome[1], rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize(("leaf", "halo"), [(8, 12), (4, 8)])
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("kernel", [RBF, SUM], ids=["rbf", "sum"])
def test_gradient_is_nearly_the_slope_of_the_value(
    kernel: Kernel, name: str, leaf: int, halo: int, executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more corrections of how the mode moves, the nearer."""
    X, signs, weights, Z = columns_of_labels(60)
    tried = objective(X, signs, weights, executor, name, leaf, halo)
    tried.hold(kernel)
    monkeypatch.setattr(evidence_module, "TOLERANCE", 1e-9)
    at = np.log([parameter.value for parameter in kernel.parameters()])

    def value(point: np.ndarray) -> float:
        return tried(kernel.with_parameters(np.exp(point)), 1.0, Z).value

    steps = 1e-4 * np.eye(len(at))
    slopes = np.array([(value(at + step) - value(at - step)) / 2e-4 for step in steps])
    errors = {}
    for corrections in ERRORS:
        monkeypatch.setattr(evidence_module, "CORRECTIONS", corrections)
        gradient = tried(kernel, 1.0, Z).gradient
        assert gradient[-1] == 0.0
        errors[corrections] = float(np.linalg.norm(gradient[:-1] - slopes) / np.linalg.norm(slopes))
    assert all(errors[corrections] <= least for corrections, least in ERRORS.items())
    assert errors[4] < errors[0]


def test_noise_is_of_no_account_and_columns_are_added_up(executor: BlockExecutor) -> None:
    X, signs, weights, Z = columns_of_labels(90)
    both = objective(X, signs, weights, executor, "logit", 8, 16)(RBF, 1.0, Z)
    each = [objective(X, signs[:, [k]], weights, executor, "logit", 8, 16)(RBF, 9.0, Z) for k in range(2)]
    assert both.value == pytest.approx(sum(part.value for part in each), rel=1e-12)
    np.testing.assert_allclose(both.gradient, sum(part.gradient for part in each), rtol=1e-9, atol=1e-9)
    assert both.unexplained == pytest.approx(each[0].unexplained, rel=1e-12)


def test_whole_weights_are_repeated_samples(executor: BlockExecutor) -> None:
    X, signs, _, Z = columns_of_labels(50)
    counts = np.random.default_rng(1).integers(0, 4, 50)
    again = np.repeat(np.arange(50), counts)
    weighted = objective(X, signs, counts.astype(np.float64), executor, "logit", 5, 50)(RBF, 1.0, Z)
    repeated = objective(X[again], signs[again], None, executor, "logit", 5, len(again))(RBF, 1.0, Z)
    assert weighted.value == pytest.approx(repeated.value, rel=1e-7)
    np.testing.assert_allclose(weighted.gradient, repeated.gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_it_goes_on_from_the_last_modes(executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, signs, _, Z = columns_of_labels(120)
    taken = []
    step = evidence_module.ModeSearch.step

    def counted(*arguments: Any) -> None:
        taken.append(1)
        step(*arguments)

    monkeypatch.setattr(evidence_module.ModeSearch, "step", counted)
    tried, moved = objective(X, signs, None, executor, "logit", 8, 16), SquaredExponential((1.1, 0.5, 0.2), 3.3)
    tried.hold(RBF)
    tried(RBF, 1.0, Z)
    taken.clear()
    warm = tried(moved, 1.0, Z)
    after_the_last, start = len(taken), tried.start
    assert start is not None
    assert start.dtype == np.float32
    taken.clear()
    # From zero, and from far off.
    for begin in (None, 30.0 * np.random.default_rng(0).standard_normal((120, 2)).astype(np.float32)):
        tried.start = begin
        taken.clear()
        cold = tried(moved, 1.0, Z)
        assert len(taken) > after_the_last
        assert cold.value == pytest.approx(warm.value, rel=1e-7)
        np.testing.assert_allclose(cold.gradient, warm.gradient, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(tried.start, start, atol=1e-5)


def test_modes_that_lead_nowhere_are_not_gone_on_from(executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, signs, _, Z = columns_of_labels(80)
    tried = objective(X, signs, None, executor, "logit", 8, 16)
    cold, step = tried(RBF, 1.0, Z), evidence_module.ModeSearch.step

    def lost(search: Any, state: Any, *others: Any) -> None:
        if np.isinf(state.psi):  # begun elsewhere than at zero
            state.ended = "stalled"
        else:
            step(search, state, *others)

    monkeypatch.setattr(evidence_module.ModeSearch, "step", lost)
    again = tried(RBF, 1.0, Z)
    assert again.value == cold.value
    np.testing.assert_array_equal(again.gradient, cold.gradient)


@pytest.mark.long
def test_bits_do_not_depend_on_who_computes(executor: BlockExecutor) -> None:
    X, signs, _, Z = columns_of_labels(400)
    here = objective(X, signs, None, executor, "logit", 8, 16)(RBF, 1.0, Z)
    with on_dask(2, processes=False) as (workers, _):
        there = objective(X, signs, None, workers, "logit", 8, 16)(RBF, 1.0, Z)
    assert here.value == there.value
    np.testing.assert_array_equal(here.gradient, there.gradient)


def test_refusals(executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, signs, _, Z = columns_of_labels(50)
    with pytest.raises(InputError, match=r"expected columns of labels of 50 samples; got \[49\]"):
        LabelVifObjective(ArrayInputs(X), [EvidenceLabels(signs[:49, 0], DENSE["logit"].loss)], executor)
    monkeypatch.setattr(evidence_module, "MOST_STEPS", 2)
    with pytest.raises(NumericalError, match="the labels' mode was not found in 2 steps"):
        objective(X, signs, None, executor, "logit", 8, 16)(RBF, 1.0, Z)
