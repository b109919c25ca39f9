"""Features that the end of a search can do without are switched off: which, and what the rest of dkgp makes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern52, SquaredExponential, parse_kernel
from dkgp.models import Hyperparameters, read_hyperparameters, tune, write_hyperparameters
from dkgp.models.tuning.search import (
    LARGEST_GAMMA,
    MOST_LOST,
    Choices,
    Optimum,
    SearchProblem,
    SearchSettings,
    candidates,
    switch_off,
)
from dkgp.models.tuning.space import SearchSpace

# Bounds of one's own keep a feature: here, those that there are anyway.
KEPT = {"gamma*": (1e-8, 1e4)}


def problem(d: int, seed: int, n: int = 220) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1.7, 1.7, (n, d))
    targets = np.sin(2.0 * inputs[:, 1]) + 0.5 * inputs[:, 0] + 0.2 * rng.standard_normal(n)
    return inputs, (targets - targets.mean()) / targets.std()


def density(kernel: Kernel, noise: float, inputs: FloatArray, targets: FloatArray) -> float:
    covariance = kernel(inputs, inputs) + noise * np.eye(len(inputs))
    return float(stats.multivariate_normal(cov=covariance).logpdf(targets))


def gammas(found: Hyperparameters) -> FloatArray:
    assert isinstance(found.kernel, SquaredExponential | Matern52)
    return np.array(found.kernel.gamma)


@pytest.mark.covering
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_as_many_are_switched_off_as_cost_a_tenth_of_a_nat(kernel: str, seed: int) -> None:
    """By the densities of a normal distribution, of the search's end as it was and of each that may follow."""
    inputs, targets = problem(7, seed)
    before, found = (tune(inputs, targets, kernel=kernel, bounds=bounds) for bounds in (KEPT, None))
    gamma, off = gammas(before), gammas(found) == 0.0
    np.testing.assert_array_equal(gammas(found)[~off], gamma[~off])
    assert gamma.all()
    assert found.noise_variance == before.noise_variance
    order = [index for index in np.argsort(gamma) if gamma[index] <= LARGEST_GAMMA]
    assert sorted(order[: off.sum()]) == np.flatnonzero(off).tolist()
    assert isinstance(before.kernel, SquaredExponential | Matern52)
    best = density(before.kernel, before.noise_variance, inputs, targets)
    lost = []
    for count in range(1, len(order) + 1):
        values = gamma.copy()
        values[order[:count]] = 0.0
        off_kernel = replace(before.kernel, gamma=tuple(values.tolist()))
        lost.append(best - density(off_kernel, before.noise_variance, inputs, targets))
    assert off.sum() == sum(loss <= MOST_LOST for loss in lost) >= 1
    assert found.log_marginal_likelihood == pytest.approx(best - lost[off.sum() - 1], abs=1e-6)


def test_a_bisection_finds_the_most() -> None:
    space = _space(12)
    parameters = np.log(np.append(np.linspace(1e-8, 3e-5, 12), 0.1))
    parameters[11] = 0.0
    tried: list[int] = []

    def likelihood(at: FloatArray) -> tuple[float, FloatArray]:
        off = int(np.isinf(at).sum())
        tried.append(off)
        return 5.0 - 0.03 * off, np.full(13, 0.5)

    best = Optimum(parameters, 5.0, 5.0, np.zeros(13))
    found, evaluations = switch_off(likelihood, space, best, names(12))
    assert np.flatnonzero(np.isinf(found.parameters)).tolist() == [0, 1, 2]
    assert (found.log_likelihood, found.value) == pytest.approx((4.91, 4.91))
    assert evaluations == len(tried) <= 1 + math.ceil(math.log2(11))
    assert tried[0] == 11
    np.testing.assert_array_equal(best.parameters, parameters)
    nowhere, _ = switch_off(lambda at: None, space, best, names(12))
    assert nowhere is best
    nowhere, _ = switch_off(lambda at: (math.nan, np.zeros(13)), space, best, names(12))
    assert nowhere is best


def names(d: int) -> tuple[str, ...]:
    """One with what looks like a parameter's."""
    return tuple(f"x{index}" if index else "a.gamma.b" for index in range(d))


def _space(d: int, expression: str = "rbf", **choices: object) -> SearchSpace:
    made = SearchProblem.of(names(d), Choices(kernel=expression, **choices), SearchSettings())  # type: ignore[arg-type]
    return made.space


def test_what_was_given_bounds_a_prior_or_a_value_stays() -> None:
    flat = np.full(5, math.log(1e-7))
    assert candidates(_space(4), np.append(flat[:3], [0.0, 0.0]), names(4)) == [0, 1, 2]
    given = _space(
        4,
        bounds={"gamma.a.gamma.b": (1e-8, 1.0)},
        fixed={"gamma.x1": 1e-7},
        priors={"gamma.x2": "lognormal(1e-7, 1)"},
    )
    assert candidates(given, flat, names(4)) == [3]


def test_a_weight_and_what_has_a_period_stay() -> None:
    for expression in ("linear", "periodic"):
        space = _space(4, expression)
        logs = np.full(len(space.names), math.log(1e-7))
        logs[space.gamma_like.nonzero()[0][-1]] = 0.0
        assert candidates(space, logs, names(4)) == []


def test_a_part_of_a_kernel_keeps_a_feature() -> None:
    space = _space(2, "rbf + matern32")
    logs = np.full(len(space.names), math.log(1e-7))
    assert candidates(space, logs, names(2)) == []
    second = [place for place, name in enumerate(space.names) if "gamma" in name][2]
    logs[second] = 0.0
    named = [space.names[place] for place in candidates(space, logs, names(2))]
    assert len(named) == 1
    assert named[0] == space.names[second + 1]


@pytest.mark.parametrize("expression", ["rbf + linear", "matern32 * rbf"])
def test_sums_and_products_have_their_gradients_at_the_end(expression: str) -> None:
    inputs, targets = problem(5, 3)
    found = tune(inputs, targets, kernel=expression, max_evaluations=60)
    assert found.log_marginal_likelihood == pytest.approx(
        density(found.kernel, found.noise_variance, inputs, targets), abs=1e-5
    )
    assert any(item.value == 0.0 and item.words == "irrelevant" for item in found.parameters or ())


def test_a_file_may_hold_zeros_but_not_zeros_alone(tmp_path: Path) -> None:
    inputs, targets = problem(6, 4)
    found = tune(inputs, targets, feature_names=tuple("abcdef"))
    write_hyperparameters(tmp_path / "hyper.json", found)
    assert read_hyperparameters(tmp_path / "hyper.json") == found
    off = [item for item in found.parameters or () if item.value == 0.0]
    assert off
    assert all((item.length_scale, item.words) == (math.inf, "irrelevant") for item in off)
    document = json.loads((tmp_path / "hyper.json").read_text())
    document["kernel"]["gamma"] = [0.0] * 6
    (tmp_path / "hyper.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"gamma\[0\] must be positive and finite; got 0.0"):
        read_hyperparameters(tmp_path / "hyper.json")


def test_a_search_goes_on_without_them_and_still_lists_them() -> None:
    inputs, targets = problem(6, 5)
    first = tune(inputs, targets)
    zeros = [item.name for item in first.parameters or () if item.value == 0.0]
    assert zeros
    for kernel in (None, "rbf"):
        second = tune(inputs, targets, kernel=kernel, start=first)
        assert [item.name for item in second.parameters or ()] == [item.name for item in first.parameters or ()]
        assert set(zeros) <= {item.name for item in second.parameters or () if item.value == 0.0}
    with pytest.raises(InputError, match="of another kernel"):
        tune(inputs, targets, kernel="matern32", start=first)


def test_values_of_a_kernel_may_be_zero_for_gammas_alone() -> None:
    kernel = SquaredExponential((0.5, 0.2), variance=2.0)
    assert kernel.with_parameters([0.5, 0.0, 2.0]) == SquaredExponential((0.5, 0.0), variance=2.0)
    with pytest.raises(InputError, match="positive and finite"):
        kernel.with_parameters([0.5, 0.2, 0.0])
    total = parse_kernel("rbf + linear", 2)
    values = [parameter.value for parameter in total.parameters()]
    place = next(index for index, item in enumerate(total.parameters()) if item.name.endswith("gamma"))
    values[place] = 0.0
    assert len(total.with_parameters(values).parameters()) == len(values) - 1
    assert isinstance(Hyperparameters(total.with_parameters(values), 0.1), Hyperparameters)
