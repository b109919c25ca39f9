"""The certificate and the stopping rule of LS-SVMs, term by term in 50 digits, each where it is a share that shows.

The certificate and the stopping rule of regularised risks, term by term in 50 digits, each where it shows.

The loss is (f - y)^2 / 2 here: its slopes within a distance of f are f - y and that distance, so that nothing that the
certificate adds up is of the loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.certificate import (
    DecisionCertificate,
    GradientLength,
    Minimum,
    RiskCertificate,
    _around,
    _sizes_of,
    certified_decisions,
    certified_labels,
)
from dkgp.models.classification.exact import DecisionError
from dkgp.models.classification.likelihoods import Likelihood, LikelihoodName
from dkgp.models.classification.logistic import RiskError
from dkgp.models.rounding import UNIT, mean_roundings, product_roundings, step_roundings
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import Progress
from tests.models.classification.references import Approximation, exact_slopes
from tests.models.exact_gp import entry, mp, numbers

U = mp.mpf(2) ** -53
MORE, FEW = mp.mpf("1.01"), 1 + 32 * U


def near(value: Any, expected: Any) -> bool:
    """Equal but for what a few dozen operations round."""
    return float(value) == pytest.approx(float(expected), rel=2e-13, abs=0)


def many(values: np.ndarray) -> list[Any]:
    return [mp.mpf(float(value)) for value in values]


class Sample:
    """A certificate's arguments, and what `docs/proofs.md` makes of them by plain loops."""

    def __init__(self, rng: np.random.Generator, errors: np.ndarray, size: float, step: bool, product: float) -> None:
        self.n, self.t = len(errors), 2
        n, t = self.n, self.t
        self.alpha, self.solved = rng.normal(size=(n, t)), rng.normal(size=(n, t + 1))
        self.gradient, self.intercept = size * rng.normal(size=(n, t + 1)), np.array([0.7, -0.4])
        self.noise, self.diagonal, self.errors = rng.uniform(0.5, 9.0, n), rng.uniform(1.0, 4.0, n), errors
        self.stepped = rng.uniform(0.0, 5.0, (n, t + 1)) if step else None
        self.product = product
        e, diagonal = many(errors), many(self.diagonal)
        self.scale = [mp.sqrt(diagonal[i]) * (1 + 4 * U * e[i]) for i in range(n)]

    def certificate(self, columns: int | None = None) -> DecisionCertificate:
        """Return the certificate of the given number of columns, by default of all."""
        stepped = np.zeros((0, 0)) if self.stepped is None else self.stepped[:, :columns]
        found = Approximation(self.solved[:, :columns], self.gradient[:, :columns], stepped, self.product)
        return DecisionCertificate.of(self.alpha, self.intercept, found, self.noise, self.diagonal, self.errors)

    def off(self, column: int, columns: int) -> list[Any]:
        n, s, e, noise = self.n, self.scale, many(self.errors), many(self.noise)
        gradient, terms = many(self.gradient[:, column]), [abs(value) for value in many(self.solved[:, column])]
        rho = mp.mpf(product_roundings(n)) * U
        if self.stepped is not None:
            terms = [a + 2 * b for a, b in zip(terms, many(self.stepped[:, column]), strict=True)]
            rho += mp.mpf(step_roundings(columns)) * U
        size, spread = mp.fdot(s, terms), mp.fsum(s[j] * e[j] * terms[j] for j in range(n))
        entries = [s[i] * ((rho + 2 * U * e[i]) * size + 2 * U * spread) for i in range(n)]
        sums = [rho * noise[i] * terms[i] + 2 * U * abs(gradient[i]) for i in range(n)]
        return [MORE * (entries[i] + sums[i]) + mp.mpf(self.product) for i in range(n)]

    def length(self, residual: list[Any], off: list[Any]) -> Any:
        noise = many(self.noise)
        return mp.norm([(abs(residual[i]) + off[i]) / mp.sqrt(noise[i]) for i in range(self.n)])

    def residual(self, column: int) -> Any:
        n, b = self.n, mp.mpf(float(self.intercept[column]))
        first, ones = many(self.gradient[:, column]), many(self.gradient[:, self.t])
        solved_ones, alpha, noise = many(self.solved[:, self.t]), many(self.alpha[:, column]), many(self.noise)
        first_off, ones_off = self.off(column, self.t + 1), self.off(self.t, self.t + 1)
        moved = [U * (2 * abs(alpha[i]) + abs(b) * abs(solved_ones[i])) for i in range(n)]
        r = [first[i] - b * ones[i] for i in range(n)]
        off = []
        for i in range(n):
            rounded = U * (2 * abs(r[i]) + abs(b) * abs(ones[i]))
            rounded += self.scale[i] * mp.fdot(self.scale, moved) + noise[i] * moved[i]
            off.append(first_off[i] + abs(b) * ones_off[i] + MORE * rounded)
        return self.length(r, off)


SAMPLES: dict[str, Callable[[np.random.Generator], Sample]] = {
    "errors of rows": lambda rng: Sample(rng, 10.0 ** rng.uniform(0.0, 12.0, 7), 1.0, False, 0.0),
    "a step": lambda rng: Sample(rng, 10.0 ** rng.uniform(0.0, 12.0, 7), 1.0, True, 0.3),
    "roundings alone": lambda rng: Sample(rng, np.zeros(7), 0.0, False, 0.0),
    "roundings of a step alone": lambda rng: Sample(rng, np.zeros(7), 0.0, True, 0.0),
}


def cancelling(rng: np.random.Generator) -> Sample:
    """A difference of gradients that is zero: what is left is what each of the two rounds."""
    sample = Sample(rng, np.zeros(7), 1e9, False, 0.0)
    sample.intercept = np.array([0.5, -4.0])
    sample.gradient[:, :2] = sample.gradient[:, 2:] * sample.intercept
    return sample


SAMPLES["gradients that cancel"] = cancelling


@pytest.mark.parametrize("name", SAMPLES)
def test_residuals_as_the_proofs_add_them_up(rng: np.random.Generator, name: str) -> None:
    sample = SAMPLES[name](rng)
    certificate = sample.certificate()
    for column in range(2):
        assert near(certificate.residual[column], sample.residual(column))
        alpha = [abs(value) for value in many(sample.alpha[:, column])]
        spread = [a * b for a, b in zip(sample.scale, many(sample.errors), strict=True)]
        assert near(certificate.magnitude[column], MORE * mp.fdot(sample.scale, alpha))
        assert near(certificate.spread[column], MORE * mp.fdot(spread, alpha))
        assert near(certificate.imbalance[column], abs(mp.fsum(many(sample.alpha[:, column]))))
        assert certificate.imbalance[column] > abs(math.fsum(sample.alpha[:, column].tolist()))
    ones = sample.off(2, 3)
    assert near(certificate.ones_residual, sample.length(many(sample.gradient[:, 2]), ones))
    # Without an intercept there are two columns only, and each is its own.
    bare = sample.certificate(columns=2)
    expected = [sample.length(many(sample.gradient[:, column]), sample.off(column, 2)) for column in range(2)]
    assert all(near(length, value) for length, value in zip(bare.residual, expected, strict=True))
    assert (bare.imbalance, bare.intercept, bare.ones_residual) == ((0.0, 0.0), False, 0.0)


@pytest.mark.parametrize(("size", "product"), [(0.0, 1e-6), (1e-3, 1e-6), (0.0, 0.0)])
def test_the_sum_of_ones_lies_between_what_the_residual_leaves_open(
    rng: np.random.Generator, size: float, product: float
) -> None:
    sample = Sample(rng, np.zeros(7), size, False, product)
    sample.solved[:, 2] = np.abs(sample.solved[:, 2]) + 1.0
    certificate = sample.certificate()
    ones, gradient, off = many(sample.solved[:, 2]), many(sample.gradient[:, 2]), sample.off(2, 3)
    total, products = mp.fsum(ones), [a * b for a, b in zip(ones, gradient, strict=True)]
    unsure = MORE * (mp.fdot([abs(value) for value in ones], off) + U * mp.fsum(abs(value) for value in products))
    low, high = certificate.ones_sum
    middle = total - mp.fsum(products)
    unsure += 8 * U * (abs(total) + abs(mp.fsum(products)))
    rounded = 6.0 * float(U * middle)
    assert float(middle - mp.mpf(low)) == pytest.approx(float(unsure), rel=1e-9, abs=rounded)
    square = mp.mpf(certificate.ones_residual) ** 2
    assert float(mp.mpf(high) - middle) == pytest.approx(float(unsure + square), rel=1e-9, abs=rounded)
    if not product:
        assert float(unsure) > 5.0 * rounded or float(8 * U * total) > rounded


def test_the_sum_of_ones_is_never_below_what_any_gaussian_process_has() -> None:
    n, half = 5, np.full(5, 0.5)
    # E = 0 says nothing; Cauchy's inequality does: n^2 / (1'K 1 + sum s2) at K = 4 everywhere.
    certificate = DecisionCertificate.of(
        np.zeros((n, 1)), np.zeros(1), Approximation(np.zeros((n, 2)), np.zeros((n, 2))), half, 4.0, np.zeros(n)
    )
    low, high = certificate.ones_sum
    assert low == pytest.approx(25.0 / (100.0 + 2.5), rel=1e-13)
    assert low < 25.0 / 102.5
    assert high == low


def certificate(**changes: Any) -> DecisionCertificate:
    known: dict[str, Any] = {
        "n": 100, "residual": (3.0, 6.0), "imbalance": (0.5, 0.25), "magnitude": (1e14, 2e14), "spread": (3e14, 0.0),
        "intercept": True, "ones_residual": 0.125, "ones_sum": (2.0, 4.0), "ones_magnitude": 5e13, "ones_spread": 7e13,
    }  # fmt: skip
    return DecisionCertificate(**{**known, **changes})


@pytest.mark.parametrize("extra", [None, np.array([[0.5, 0.25, 0.125], [0.0, 1.0, 0.0625], [2.0, 0.0, 0.5]])])
@pytest.mark.parametrize("intercept", [True, False])
def test_bounds_of_decisions_as_the_proofs_add_them_up(intercept: bool, extra: np.ndarray | None) -> None:
    decisions = np.array([[1e13, -2e14], [3.0, 1e15], [0.0, 0.0]])
    ones, prior, errors = np.array([0.1, 0.75, -20.0]), np.array([1.0, 4.0, 9.0]), np.array([5.0, 1e12, 0.0])
    known = certificate() if intercept else certificate(intercept=False)
    bounds = known.decision_error_bound(decisions, ones if intercept else None, prior, errors, extra)
    assert bounds.shape == (3, 2)
    for i in range(3):
        e, k = mp.mpf(float(errors[i])), mp.mpf(float(ones[i]))
        scale = mp.sqrt(mp.mpf(float(prior[i]))) * (1 + 2 * U * (2 * e + 8))
        unit = mp.mpf(mean_roundings(100)) * U + 2 * U * e
        slack = scale * (MORE * (unit * known.ones_magnitude + 2 * U * known.ones_spread) + known.ones_residual)
        slack += 0 if extra is None else mp.mpf(float(extra[i, 2]))
        rest = 1 - 2 * (k - slack)
        rest /= known.ones_sum[0] if rest > 0 else known.ones_sum[1]
        variance = max(scale**2 + rest + (16 * U * (1 + 2 * abs(k) + 2 * slack) + 16 * U * abs(rest)) / 2, mp.zero)
        away = (abs(1 - k) + slack) / 2
        for column in range(2):
            rounding = unit * mp.mpf(known.magnitude[column]) + 2 * U * mp.mpf(known.spread[column])
            bound = MORE * (scale * rounding + U * abs(mp.mpf(float(decisions[i, column]))))
            bound += 0 if extra is None else mp.mpf(float(extra[i, column]))
            if intercept:
                bound += mp.sqrt(variance) * known.residual[column] + away * known.imbalance[column]
            else:
                bound += scale * known.residual[column]
            assert near(bounds[i, column], bound)


def test_roundings_where_the_variance_is_next_to_nothing() -> None:
    """k_x'E at which k(x, x) and what the intercept adds cancel: what is left is all rounding."""
    bare = {"residual": (1.0, 1.0), "imbalance": (0.0, 0.0), "magnitude": (0.0, 0.0), "spread": (0.0, 0.0)}
    bare |= {"ones_residual": 0.0, "ones_sum": (2.0, 2.0), "ones_magnitude": 0.0, "ones_spread": 0.0}
    known = certificate(**bare)
    zero, prior, ones = np.zeros((1, 2)), np.array([4.0]), np.array([4.5])
    bound = known.decision_error_bound(zero, ones, prior, np.zeros(1))[0, 0]
    # sqrt(k(x, x)) is off by 8 eps of itself, the square by as much and 16 eps; 1 - 2 p by 8 eps (1 + 9), and by 8 eps
    # of itself; each over 1'E*.
    left = 4.0 * (16.0 + 16.0) + (8.0 * 10.0 + 8.0 * 4.0) / 2.0
    assert bound**2 / np.finfo(np.float64).eps == pytest.approx(left, abs=4.0)
    with pytest.raises(ValueError, match="takes k_x'E, `ones`, for its bound"):
        known.decision_error_bound(zero, None, prior, np.zeros(1))


def test_bounds_are_rounded_outward() -> None:
    bare = certificate(intercept=False, residual=(1.0, 1.0), magnitude=(0.0, 0.0), spread=(0.0, 0.0))
    bound = bare.decision_error_bound(np.zeros((1, 2)), None, np.ones(1), np.zeros(1))[0, 0]
    # sqrt(k(x, x)) by 8 eps, and what is made of it by 16.
    assert (bound - 1.0) / np.finfo(np.float64).eps == pytest.approx(24.0, abs=2.0)
    # With an intercept by 16 of the square's share, 16 of the square and 8 of 1 - 2 p = 0, over two, and 16 once more.
    bare = certificate(
        residual=(1.0, 1.0), imbalance=(0.0, 0.0), magnitude=(0.0, 0.0), spread=(0.0, 0.0),
        ones_residual=0.0, ones_sum=(2.0, 2.0), ones_magnitude=0.0, ones_spread=0.0,
    )  # fmt: skip
    bound = bare.decision_error_bound(np.zeros((1, 2)), np.array([0.5]), np.ones(1), np.zeros(1))[0, 0]
    assert (bound - 1.0) / np.finfo(np.float64).eps == pytest.approx(36.0, abs=2.0)


@pytest.mark.parametrize("intercept", [True, False])
def test_written_and_read_it_is_the_same(intercept: bool) -> None:
    known = certificate(assumes="a word")
    if not intercept:
        known = certificate(intercept=False, ones_sum=(math.inf, math.inf))
    document = json.loads(json.dumps(known.to_json()))
    assert document["ones_sum"] == ([2.0, 4.0] if intercept else None)
    assert DecisionCertificate.from_json(document) == known


def test_labels_are_certified_where_the_leader_is_ahead_of_both_bounds() -> None:
    decisions, bounds = np.array([[0.5], [-0.5], [0.5], [np.nan]]), np.array([[0.4], [0.4], [0.5], [0.1]])
    assert certified_labels(decisions, bounds).tolist() == [True, True, False, False]
    three = np.array([[1.0, 0.0, -1.0], [0.0, -1.0, 1.0], [1.0, 0.5, 0.0], [1.0, 0.5, 0.0], [1.0, 1.0, 0.0]])
    both = np.array([[0.4, 0.5, 9.0], [0.3, 9.0, 0.6], [0.25, 0.25, 0.1], [0.2, 0.2, 0.1], [0.0, 0.0, 0.0]])
    assert certified_labels(three, both).tolist() == [False, False, False, True, False]
    both[:2] = [[0.4, 0.5, 1.5], [0.3, 1.3, 0.6]]
    assert certified_labels(three, both).tolist()[:2] == [True, True]


def progress(norm: float = 1.0, **more: float) -> Progress:
    return Progress(
        iteration=1, column_passes=1.0, kernel_evaluations=1, seconds=0.0, gradient_inf_norm=norm,
        gradient_norm=norm, relative_residual=1.0, objective=0.0, objective_gap_bound=1.0, **more,
    )  # fmt: skip


def test_the_rule_by_its_formula() -> None:
    # Two columns, V = 3 + 1 over s2 = 0.25: sqrt of 16.
    rule = DecisionError(0.1, 0.25, 3.0, level=1.0)
    assert rule.measure(progress(0.5)) == pytest.approx(2.0 * 0.5 * 4.0, rel=1e-15)
    assert rule.needed_fall(progress(0.5)) == pytest.approx(40.0, rel=1e-15)
    assert rule.gradient_tolerance(9) == pytest.approx(0.1 / 2.0 / 12.0, rel=1e-14)
    # One column, and no level to be unsure of.
    bare = DecisionError(0.1, 0.25, 4.0, intercept=False, level=1.0)
    assert (bare.variance, rule.variance) == (4.0, 4.0)
    assert bare.measure(progress(0.5)) == pytest.approx(2.0, rel=1e-15)
    assert bare.gradient_tolerance(9) == pytest.approx(0.1 / 12.0, rel=1e-14)
    # Where every decision is zero, whatever the coefficients are, any gradient will do.
    assert DecisionError(0.1, 0.25, 0.0, intercept=False).gradient_tolerance(9) == 0.1
    # By default there is an intercept, whose level nothing is known of.
    assert DecisionError(0.1, 0.25, 4.0) == DecisionError(0.1, 0.25, 4.0, True, 0.0)
    assert DecisionError(0.1, 0.25, 4.0).measure(progress(0.5)) == pytest.approx(4.0, rel=1e-15)


def test_the_rule_is_met_at_its_tolerance_and_never_by_nan() -> None:
    rule = DecisionError(0.5, 1.0, 1.0, intercept=False)
    at = rule.check(progress(0.5))
    assert at is not None
    assert (at.rule, at.converged, at.message) == ("decision_error", True, "decisions within 0.5 <= 0.5")
    assert rule.check(progress(np.nextafter(0.5, 1.0))) is None
    assert rule.check(progress(np.nan)) is None
    assert rule.check(progress(0.0)) is not None


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "rule", [partial(DecisionError, noise_variance=1.0, largest=1.0), partial(RiskError, largest=1.0)]
)
def test_tolerances_that_make_no_sense_are_refused(rule: Callable[..., Any], tolerance: float) -> None:
    with pytest.raises(InputError, match="the tolerance of decisions must be finite and above 0; got"):
        rule(tolerance=tolerance)


@dataclass(frozen=True)
class Squared:
    """Stands for a likelihood."""

    coupled: bool

    def slopes(self, targets: np.ndarray, values: np.ndarray, away: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values - targets - away, values - targets + away


class Case:
    """A function at a few samples, all of its numbers eighths, and what `docs/proofs.md` makes of them by loops."""

    def __init__(self, rng: np.random.Generator, errors: np.ndarray, *, stands: bool, product: float) -> None:
        n, t = self.n, self.t = len(errors), 2

        def eighths() -> np.ndarray:
            return rng.integers(-40, 40, (n, t)) / 8.0

        self.targets, self.alpha, self.values = eighths(), eighths(), eighths()
        self.image, self.weights = eighths(), rng.integers(1, 5, n).astype(float)
        self.weights[2] = 0.0
        self.penalty = 0.5
        # The gradient of these very values, or another.
        exact = self.weights[:, None] * (self.values - self.targets) + self.penalty * self.alpha
        self.gradient = exact if stands else eighths()
        # v'K v is not negative.
        self.image *= np.sign(np.einsum("it,it->t", self.gradient, self.image))
        self.noise, self.product = 3.0, product
        self.diagonal, self.errors = rng.uniform(1.0, 4.0, n), errors
        e, diagonal = many(errors), many(self.diagonal)
        self.scale = [mp.sqrt(diagonal[i]) * (1 + 2 * U * (2 * e[i] + 8)) for i in range(n)]
        self.found = Minimum(
            self.penalty, self.alpha, self.values, self.gradient, self.image, product_error=product, noise=self.noise
        )

    def sums(self, vector: np.ndarray) -> tuple[Any, Any]:
        sizes, e = [abs(value) for value in many(vector)], many(self.errors)
        spread = mp.fsum(self.scale[i] * e[i] * sizes[i] for i in range(self.n))
        return MORE * mp.fdot(self.scale, sizes), MORE * spread

    def off(self, vector: np.ndarray, image: np.ndarray) -> list[Any]:
        """Return the error of a product's entries."""
        (size, spread), e, rho = self.sums(vector), many(self.errors), mp.mpf(product_roundings(self.n)) * U
        v, w, s = many(vector), many(image), self.scale
        entries = [s[i] * (rho * size + 2 * U * (e[i] * size + spread)) for i in range(self.n)]
        own = [rho * mp.mpf(self.noise) * abs(v[i]) + 2 * U * abs(w[i]) for i in range(self.n)]
        return [MORE * (entries[i] + own[i]) + mp.mpf(self.product) for i in range(self.n)]

    def length(self, column: int) -> Any:
        v, w = many(self.gradient[:, column]), many(self.image[:, column])
        off = self.off(self.gradient[:, column], self.image[:, column])
        terms = [a * b for a, b in zip(v, w, strict=True)]
        square = mp.fsum(terms) + MORE * (
            (self.n + mp.mpf(self.n) / 8192 + 8) * U * mp.fsum(abs(term) for term in terms)
            + mp.fsum(abs(v[i]) * off[i] for i in range(self.n))
        )
        return mp.sqrt(max(square, mp.zero))

    def entries(self, column: int) -> list[Any]:
        """Return the error of the gradient's entries."""
        away = self.off(self.alpha[:, column], self.values[:, column])
        result = []
        for i in range(self.n):
            f, y = mp.mpf(float(self.values[i, column])), mp.mpf(float(self.targets[i, column]))
            g, weight = mp.mpf(float(self.gradient[i, column])), mp.mpf(float(self.weights[i]))
            penalty = mp.mpf(self.penalty) * mp.mpf(float(self.alpha[i, column]))
            ends = [weight * (f - y + sign * away[i]) for sign in (-1, 1)]
            rounded = max(abs(end) for end in ends) + abs(penalty) + abs(g)
            result.append(max(abs(end + penalty - g) for end in ends) + 4 * U * MORE * rounded)
        return result

    def certified(self, coupled: bool) -> GradientLength:
        return GradientLength.of(
            self.found,
            self.targets,
            Squared(coupled),
            self.diagonal,
            self.errors,
            self.weights,  # type: ignore[arg-type]
        )


CASES = {
    "errors of rows": lambda rng: Case(rng, 10.0 ** rng.uniform(0.0, 12.0, 7), stands=False, product=0.0),
    "products that are off": lambda rng: Case(rng, np.zeros(7), stands=True, product=0.375),
    "roundings alone": lambda rng: Case(rng, np.zeros(7), stands=True, product=0.0),
    "another gradient": lambda rng: Case(rng, np.full(7, 5.0), stands=False, product=0.0),
}


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_lengths_of_gradients_as_the_proofs_add_them_up(rng: np.random.Generator, name: str, coupled: bool) -> None:
    case = CASES[name](rng)
    found = case.certified(coupled)
    lengths = [case.length(column) for column in range(2)]
    off = [MORE * mp.fdot(case.scale, case.entries(column)) for column in range(2)]
    if coupled:
        lengths, off = [mp.norm(lengths)] * 2, [mp.norm(off)] * 2
    assert found.coupled is coupled
    assert all(near(*pair) for pair in zip(found.length, lengths, strict=True))
    # Entries of which nearly all cancels are as exact as the bounds of the products are.
    for value, expected in zip(found.off, off, strict=True):
        assert value == pytest.approx(float(expected), rel=1e-12 if name != "roundings alone" else 0.02, abs=0)
        assert mp.mpf(value) >= expected / MORE


def test_a_length_is_told_apart_from_its_roundings() -> None:
    """g'K g = 0 as computed: what is left of the length is all rounding, sums and products."""
    n, one, zero = 4, np.ones((4, 1)), np.zeros((4, 1))
    found = Minimum(1.0, zero, zero, one, np.array([[1.0], [-1.0], [1.0], [-1.0]]) * 1e6, noise=0.0)
    length = GradientLength.of(found, zero, Squared(False), 1e-12, np.zeros(n)).length[0]  # type: ignore[arg-type]
    # 1.01 (n + 8) u sum |terms|, and each |v| times 2 u |w| and 1.01 times that.
    expected = 1.01 * (12.0 * float(U) * 4e6 + 1.01 * 4.0 * 2.0 * float(U) * 1e6)
    assert length**2 == pytest.approx(expected, rel=1e-3)


def test_a_step_down_the_gradient_takes_the_values_along(rng: np.random.Generator) -> None:
    found = CASES["another gradient"](rng).found
    np.testing.assert_array_equal(found.stepped(0.25), found.alpha - 0.5 * found.gradient)
    np.testing.assert_array_equal(found.stepped_values(0.25), found.values - 0.5 * found.gradient_image)
    assert found.stepped(0.0) is found.alpha
    assert found.stepped_values(0.0) is found.values


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_radii_as_the_proofs_add_them_up(rng: np.random.Generator, share: float, coupled: bool) -> None:
    for name in ("errors of rows", "roundings alone"):
        case = CASES[name](rng)
        length = (3.0, 3.0) if coupled else (3.0, 0.25)
        for gradient in (GradientLength(length, length, coupled), GradientLength((0.0, 0.0), (0.0, 0.0), coupled)):
            certificate = RiskCertificate.of(case.found, gradient, share, case.diagonal, case.errors, "a word")
            stored = case.alpha - share / case.penalty * case.gradient
            moved = [mp.zero, mp.zero]
            for column in range(2) if share else ():
                step = [abs(value) * mp.mpf(share / case.penalty) for value in many(case.gradient[:, column])]
                rounded = [
                    U * (2 * a + abs(b)) for a, b in zip(step, many(stored[:, column]), strict=True)
                ]  # the quotient, the product, the difference
                moved[column] = mp.fdot(case.scale, rounded)
            if coupled:
                moved = [mp.norm(moved)] * 2
            for column in range(2):
                long, off = mp.mpf(gradient.length[column]), mp.mpf(gradient.off[column])
                radius = ((1 - mp.mpf(share)) * long + off) / case.penalty + MORE * moved[column]
                assert near(certificate.radius[column], radius)
                size, spread = case.sums(stored[:, column])
                assert near(certificate.magnitude[column], size)
                assert near(certificate.spread[column], spread)
            assert (certificate.n, certificate.n_columns) == (7, 2)
            assert (certificate.coupled, certificate.assumes) == (coupled, "a word")


@pytest.mark.parametrize("extra", [0.0, np.array([[0.5, 0.25], [0.0, 8.0], [2.0, 0.0]])])
def test_bounds_of_risk_decisions_as_the_proofs_add_them_up(extra: Any) -> None:
    known = RiskCertificate(100, (3.0, 0.0), (1e14, 2e14), (3e14, 0.0))
    decisions = np.array([[1e13, -2e14], [3.0, 1e15], [0.0, 0.0]])
    prior, errors = np.array([1.0, 4.0, 9.0]), np.array([5.0, 1e12, 0.0])
    bounds = known.decision_error_bound(decisions, prior, errors, extra)
    more = np.broadcast_to(extra, (3, 2))
    for i in range(3):
        e = mp.mpf(float(errors[i]))
        scale = mp.sqrt(mp.mpf(float(prior[i]))) * (1 + 2 * U * (2 * e + 8))
        unit = mp.mpf(mean_roundings(100)) * U + 2 * U * e
        for column in range(2):
            rounding = unit * mp.mpf(known.magnitude[column]) + 2 * U * mp.mpf(known.spread[column])
            bound = scale * (mp.mpf(known.radius[column]) + MORE * rounding) + mp.mpf(float(more[i, column]))
            bound += MORE * U * abs(mp.mpf(float(decisions[i, column])))
            assert near(bounds[i, column], bound)


@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e3])
def test_coupled_decisions_share_a_radius_of_any_size(radius: float) -> None:
    """If both are within the radius, the difference is within sqrt(2) of it, and no less."""
    certificate = RiskCertificate(1, (radius,) * 3, (0.0,) * 3, (0.0,) * 3, coupled=True)
    for ahead, sure in ((math.sqrt(2.0) * (1.0 - 1e-9), False), (math.sqrt(2.0) * (1.0 + 1e-9), True)):
        decisions = np.array([[ahead * radius, 0.0, -9.0 * radius]])
        bounds = certificate.decision_error_bound(decisions, np.ones(1), np.zeros(1))
        assert certificate.certified(decisions, bounds, np.ones(1), np.zeros(1)).tolist() == [sure]


def test_products_of_sizes_are_as_large_as_they_are(rng: np.random.Generator) -> None:
    K, vectors = 1e-6 * rng.uniform(0.0, 1.0, (9, 9)), rng.normal(size=(9, 2))
    sizes = _sizes_of(9, 1e-6, np.zeros(9))
    exact = K @ np.abs(vectors)
    found = _around(vectors, sizes, 0.0, lambda v: (K @ v, 0.0))
    assert (found > exact).all()
    assert (found < exact + 1e-18).all()
    # With what an approximate product is off by, and 1.01 times no more.
    np.testing.assert_allclose(_around(vectors, sizes, 0.0, lambda v: (K @ v, 0.5)), exact + 0.5, rtol=1e-12)


def test_the_rule_of_risks_by_its_formula() -> None:
    rule = RiskError(0.5, 9.0)
    assert rule.measure(progress(distance=0.25)) == 0.75
    assert rule.needed_fall(progress(distance=0.25)) == 1.5
    assert rule.check(progress(distance=0.25)) is None
    at = rule.check(progress(distance=0.5 / 3.0))
    assert at is not None
    assert (at.rule, at.converged, at.message) == ("decision_error", True, "decisions within 0.5 <= 0.5")
    assert rule.check(progress(distance=math.nan)) is None
    assert rule.check(progress(distance=math.inf)) is None


# Each term of the bound by itself, on cases in which it is nearly all there is.
# Each term of the bound by itself, on cases in which it is nearly all there is.


NO_ERRORS = np.zeros(1)


def certificate_of(
    found: Minimum, likelihood: Likelihood, targets: np.ndarray, share: float, **more: Any
) -> RiskCertificate:
    n = len(found.alpha)
    length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n), **more)
    return RiskCertificate.of(found, length, share, 1.0, np.zeros(n))


def evaluated(
    X: np.ndarray, kernel: SquaredExponential, noise: float, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(K + noise I) V as it is evaluated, and errors of rows."""
    with (
        closing(LocalExecutor(1)) as executor,
        BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator,
    ):
        return operator.matmat(vectors), operator.row_errors()


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["logit", "probit", "softmax"])
def test_where_the_loss_says_nothing_the_bound_is_reached(name: LikelihoodName, share: float) -> None:
    """One sample that hardly counts: f* is zero, and what is found lies at the very edge of the ball."""
    likelihood = Likelihood(name, 3 if name == "softmax" else 2)
    targets = np.array([[0.0, 1.0, 0.0]]) if name == "softmax" else np.ones((1, 1))
    alpha = np.array([[0.6, 0.0, -0.8]]) if name == "softmax" else np.array([[0.7]])
    for regularisation in (0.3, 1.0, 8.0):
        gradient = regularisation * alpha
        found = Minimum(regularisation, alpha, alpha, gradient, gradient)
        certificate = certificate_of(found, likelihood, targets, share, weights=np.array([1e-12]))
        decisions = found.stepped(share)
        bounds = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)
        distance = np.linalg.norm(decisions)
        assert distance <= bounds.max() <= distance * (1.0 + 1e-6)
        # Of columns that are one problem, every bound is of all together.
        np.testing.assert_allclose(bounds, bounds.max(), rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("told", [0.0, 0.5, 2.0, -1.0])
def test_a_gradient_that_is_told_wrongly_is_made_up_for(told: float, share: float) -> None:
    """The exact function is zero, and the gradient all of the penalty's; what is told of it is a share, or more."""
    alpha, likelihood = np.array([[0.7]]), Likelihood("logit", 2)
    gradient = told * 2.0 * alpha
    found = Minimum(2.0, alpha, alpha, gradient, gradient)
    certificate = certificate_of(found, likelihood, np.ones((1, 1)), share, weights=np.array([1e-12]))
    decisions = found.stepped(share)
    bound = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)[0, 0]
    assert abs(decisions[0, 0]) <= bound * (1.0 + 1e-11)
    if told == 0.0:
        assert bound <= 0.7 * 1.02


def test_columns_that_are_problems_of_their_own_have_their_own_bounds() -> None:
    targets, alpha = np.array([[1.0, -1.0, -1.0]]), np.array([[0.6, 0.0, -0.8]])
    found = Minimum(2.0, alpha, alpha, 2.0 * alpha, 2.0 * alpha)
    certificate = certificate_of(found, Likelihood("logit", 3), targets, 0.0, weights=np.array([1e-12]))
    np.testing.assert_allclose(certificate.radius, [0.6, 0.0, 0.8], atol=1e-11)


def test_two_coupled_decisions_differ_by_the_root_of_two_at_most() -> None:
    """An f* whose largest decision is another one's, as far from what is found as the radius allows."""
    certificate = RiskCertificate(1, (1.0,) * 3, (0.0,) * 3, (0.0,) * 3, coupled=True)
    edge = math.sqrt(0.5)
    for away, sure in ((0.999, False), (1.001, True)):
        decisions = away * np.array([[edge, -edge, -9.0]])
        bounds = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)
        assert certificate.certified(decisions, bounds, np.ones(1), NO_ERRORS)[0] == sure
        # What is not of the radius is of each of the two by itself.
        for more, still in ((0.0005, sure), (0.002, False)):
            wider = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS, np.full((1, 3), more))
            assert certificate.certified(decisions, wider, np.ones(1), NO_ERRORS)[0] == still
    apart = replace(certificate, coupled=False)
    decisions = 1.001 * np.array([[edge, -edge, -9.0]])
    assert not apart.certified(decisions, np.ones((1, 3)), np.ones(1), NO_ERRORS)[0]


def test_a_radius_without_end_certifies_nothing_and_survives_json() -> None:
    certificate = RiskCertificate(1, (math.inf,) * 3, (0.0,) * 3, (0.0,) * 3, coupled=True)
    decisions = np.array([[1e9, 0.0, 0.0]])
    bounds = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)
    assert np.isinf(bounds).all()
    assert not certificate.certified(decisions, bounds, np.ones(1), NO_ERRORS)[0]
    assert certificate.to_json()["radius"] == [None] * 3
    assert RiskCertificate.from_json(certificate.to_json()) == certificate


@pytest.mark.covering
@pytest.mark.parametrize(
    ("noise", "gamma", "size"), [(2.0**-300, 1e-4, 1e9), (1e4, 1e-4, 1e9), (1e6, 1e6, 1.0), (2.0**-300, 10.0, 1e9)]
)
@pytest.mark.parametrize("name", ["logit", "probit", "softmax"])
def test_roundings_of_the_gradient_alone(
    name: LikelihoodName, noise: float, gamma: float, size: float, rng: np.random.Generator
) -> None:
    """A gradient that comes out small, of coefficients that cancel: the one there is in truth is all rounding."""
    likelihood = Likelihood(name, 3 if name == "softmax" else 2)
    n, t, kernel, regularisation = 40, likelihood.n_outputs, SquaredExponential((gamma, gamma)), 1e-9
    X = rng.normal(size=(n, 2))
    alpha = rng.normal(size=(n, t)) * size
    alpha -= alpha.mean(axis=0)
    codes = rng.integers(0, likelihood.n_classes, n)
    targets = np.eye(3)[codes] if name == "softmax" else np.where(codes, 1.0, -1.0)[:, None]
    with (
        closing(LocalExecutor(1)) as executor,
        BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator,
    ):
        values, errors = operator.matmat(alpha) - noise * alpha, operator.row_errors()
    gradient = likelihood.loss.slope(targets, values) + regularisation * alpha
    found = Minimum(regularisation, alpha, values, gradient, np.zeros_like(gradient), noise=noise)
    length = GradientLength.of(found, targets, likelihood, 1.0, errors)
    sharp = GradientLength.of(
        found,
        targets,
        likelihood,
        1.0,
        errors,
        multiply=lambda vectors: (evaluated(X, kernel, noise, vectors)[0] - noise * vectors, 0.0),
    )
    rows = numbers(X)
    matrix = [[entry(kernel, a, b) for b in rows] for a in rows]
    off = []
    for column in range(t):
        true = [
            [mp.fsum(k * mp.mpf(float(a)) for k, a in zip(line, alpha[:, c], strict=True)) for c in range(t)]
            for line in matrix
        ]
        g = [
            exact_slopes(name, targets[i], true[i])[column]
            + mp.mpf(regularisation) * mp.mpf(float(alpha[i, column]))
            - mp.mpf(float(gradient[i, column]))
            for i in range(n)
        ]
        total = mp.fsum(g[i] * matrix[i][j] * g[j] for i in range(n) for j in range(n))
        off.append(float(mp.sqrt(max(total, mp.zero))))
    known = [float(np.linalg.norm(off))] * t if likelihood.coupled else off
    for column in range(t):
        assert 0.0 < known[column] <= sharp.off[column] <= length.off[column] <= 1e5 * known[column]
        assert gamma != 10.0 or sharp.off[column] < 0.6 * length.off[column]


def test_the_length_of_a_gradient_allows_for_what_its_product_rounds(rng: np.random.Generator) -> None:
    """Coefficients that cancel: g'K g as computed is rounding, and may come out below what it is."""
    n, kernel = 50, SquaredExponential((1e-6, 1e-6))
    X, rows_of = rng.normal(size=(n, 2)), []
    for _ in range(6):
        g = rng.normal(size=(n, 1))
        for power in range(3):
            g -= np.vander(X[:, 0], power + 1) @ np.linalg.lstsq(np.vander(X[:, 0], power + 1), g, rcond=None)[0]
        with (
            closing(LocalExecutor(1)) as executor,
            BlockedKernelOperator(kernel, 1e-300, ArrayInputs(X), executor) as one,
        ):
            image, errors = one.matmat(g), one.row_errors()
        found = Minimum(1.0, 0.0 * g, 0.0 * g, g, image)
        length = GradientLength.of(found, np.ones((n, 1)), Likelihood("logit", 2), 1.0, errors).length[0]
        rows = numbers(X)
        exact = mp.fsum(
            mp.mpf(float(g[i, 0])) * entry(kernel, rows[i], rows[j]) * mp.mpf(float(g[j, 0]))
            for i in range(n)
            for j in range(n)
        )
        assert mp.sqrt(exact) <= length
        rows_of.append(float(mp.sqrt(exact)) / length)
    assert max(rows_of) > 1e-4


def test_products_that_are_approximate_are_allowed_for(rng: np.random.Generator) -> None:
    """Values and K g that are off by as much as they may, in the worst direction."""
    n, error, likelihood = 30, 1e-3, Likelihood("logit", 2)
    alpha, targets = rng.normal(size=(n, 1)), np.where(rng.random((n, 1)) < 0.5, 1.0, -1.0)
    K = np.eye(n)
    for sign in (-1.0, 1.0):
        values = K @ alpha + sign * error
        gradient = likelihood.loss.slope(targets, values) + alpha
        found = Minimum(1.0, alpha, values, gradient, K @ gradient - error * np.sign(gradient), product_error=error)
        length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n))
        assert float(np.linalg.norm(gradient)) <= length.length[0]
        true = likelihood.loss.slope(targets, alpha) + alpha
        assert float(np.abs(true - gradient).sum()) <= length.off[0] <= 1.1 * float(np.abs(true - gradient).sum())
        assert float(np.linalg.norm(true)) <= length.length[0] + length.off[0]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_may_be_off_by_every_addition_on_the_way(sign: float, rng: np.random.Generator) -> None:
    """Entries without errors, and values as far from the true ones as additions in the worst order take them."""
    n, likelihood = 30, Likelihood("logit", 2)
    alpha, targets, true = rng.normal(size=(n, 1)) * 1e12, np.ones((n, 1)), rng.normal(size=(n, 1))
    away = product_roundings(n) * UNIT * float(np.abs(alpha).sum())
    assert away > 0.05
    values = true + sign * away
    gradient = likelihood.loss.slope(targets, values) + 1e-30 * alpha
    found = Minimum(1e-30, alpha, values, gradient, gradient)
    length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n))
    assert length.off[0] >= float(np.abs(likelihood.loss.slope(targets, true) - gradient).sum())


def test_a_slope_that_is_not_the_losses_is_seen(rng: np.random.Generator) -> None:
    """The gradient is not believed: one of another risk is as far off as it is."""
    n, likelihood = 20, Likelihood("logit", 2)
    alpha, targets = rng.normal(size=(n, 1)), np.ones((n, 1))
    weights = rng.uniform(0.5, 2.0, n)
    gradient = likelihood.loss.slope(targets, alpha) + alpha  # without the weights
    found = Minimum(1.0, alpha, alpha, gradient, gradient)
    length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n), weights)
    true = weights[:, None] * likelihood.loss.slope(targets, alpha) + alpha
    assert length.off[0] >= float(np.linalg.norm(true - gradient))


def test_roundings_of_the_decision_alone(rng: np.random.Generator) -> None:
    """Without a radius, the bound is the rounding error of k_x'alpha."""
    n, kernel = 60, SquaredExponential((1e-3, 1e-3))
    X, T = rng.normal(size=(n, 2)), rng.normal(size=(20, 2))
    alpha = rng.normal(size=(n, 2)) * 1e7
    magnitude = tuple(np.abs(alpha).sum(axis=0) * 1.01)
    bare = RiskCertificate(n, (0.0, 0.0), magnitude, tuple(10.0 * size for size in magnitude))
    decisions = kernel(T, X) @ alpha
    bounds = bare.decision_error_bound(decisions, np.ones(20), np.full(20, 10.0))
    ratios = []
    for x, found, bound in zip(numbers(T), decisions, bounds, strict=True):
        for column in range(2):
            true = mp.fsum(entry(kernel, row, x) * mp.mpf(float(alpha[i, column])) for i, row in enumerate(numbers(X)))
            ratios.append(float(abs(true - mp.mpf(float(found[column]))) / mp.mpf(float(bound[column]))))
    assert 1e-4 < max(ratios) <= 1.0


def test_the_centre_is_rounded_and_says_so(rng: np.random.Generator) -> None:
    """Coefficients far above the step to the centre: what is stored misses it by a rounding of theirs."""
    n = 30
    alpha = rng.normal(size=(n, 1)) * 1e12
    gradient = rng.normal(size=(n, 1))
    found = Minimum(1.0, alpha, alpha, gradient, gradient)
    length = GradientLength((1e-12,), (0.0,), coupled=False)
    certificate = RiskCertificate.of(found, length, 0.5, 1.0, np.zeros(n))
    exact = [mp.mpf(float(a)) - mp.mpf(float(g)) / 2 for a, g in zip(alpha[:, 0], gradient[:, 0], strict=True)]
    missed = mp.fsum(abs(mp.mpf(float(s)) - e) for s, e in zip(found.stepped(0.5)[:, 0], exact, strict=True))
    assert float(missed) <= certificate.radius[0] <= 10.0 * float(missed)


@dataclass
class Worst:
    """A kernel matrix by features, K = Z Z', and a test sample; what is solved for is off by chosen residuals."""

    rng: np.random.Generator
    n: int
    rank: int

    def __post_init__(self) -> None:
        rng = self.rng
        self.Z = rng.standard_normal((self.n, self.rank)) * 10.0 ** rng.uniform(-2, 1, self.rank)
        if rng.uniform() < 0.4:
            self.Z[:, 0] = 10.0 ** rng.uniform(-1, 1)  # a constant
        self.z = np.zeros(self.rank) if rng.uniform() < 0.3 else self.Z[0] * rng.uniform(0, 2, self.rank)
        if rng.uniform() < 0.2:
            self.z, self.Z = self.Z[0].copy(), np.repeat(self.Z[:1], self.n, axis=0)
        self.noise = 10.0 ** rng.uniform(-2, 1) * 10.0 ** (rng.uniform(-1, 1, self.n) * rng.integers(0, 2))
        self.kbar = self.Z @ self.Z.T + np.diag(self.noise)
        self.kx, self.y = self.Z @ self.z, np.where(rng.uniform(size=self.n) < 0.5, 1.0, -1.0)
        bordered = np.zeros((self.n + 1, self.n + 1))
        bordered[:-1, :-1], bordered[-1, :-1], bordered[:-1, -1] = self.kbar, 1.0, 1.0
        self.bordered = bordered

    def direction(self) -> np.ndarray:
        """A residual: what Cauchy's inequality is an equality for, of the decision or of the ones; or any."""
        rng, choice = self.rng, self.rng.integers(5)
        if choice == 0:
            found = self.noise * np.linalg.solve(self.bordered, np.append(self.kx, 1.0))[:-1]
        elif choice == 1:
            found = self.noise * np.linalg.solve(self.kbar, self.kx)
        elif choice == 2:
            found = np.linalg.eigh(self.kbar)[1][:, -1]
        elif choice == 3:
            found = self.noise * np.linalg.solve(self.kbar, np.ones(self.n))
        else:
            found = rng.standard_normal(self.n)
        length = math.sqrt(float((found**2 / self.noise).sum()))
        return np.zeros(self.n) if length == 0.0 else found / length * rng.choice([-1.0, 1.0])

    def error_and_bound(self) -> tuple[float, float]:
        rng = self.rng
        residuals = np.column_stack(
            [self.direction() * 10.0 ** rng.uniform(-3, 0), self.direction() * rng.choice([0.0, 1e-3, 0.1, 1.0, 10.0])]
        )
        right = np.column_stack([self.y, np.ones(self.n)])
        solved = np.linalg.solve(self.kbar, right - residuals)
        total = solved[:, 1].sum()
        intercept = np.array([solved[:, 0].sum() / total if abs(total) > 1e-6 else 0.3])
        intercept += rng.choice([0.0, 0.0, 0.01])
        alpha = solved[:, :1] - solved[:, 1:] * intercept
        exact = np.append(self.kx, 1.0) @ np.linalg.solve(self.bordered, np.append(self.y, 0.0))
        decision = self.kx @ alpha + intercept
        certificate = DecisionCertificate.of(
            alpha,
            intercept,
            Approximation(solved, -residuals),
            self.noise,
            np.einsum("ij,ij->i", self.Z, self.Z),
            np.ones(self.n),
        )
        prior, ones = np.array([self.z @ self.z]), np.array([self.kx @ solved[:, 1]])
        bound = certificate.decision_error_bound(decision[None], ones, prior, np.ones(1))
        return abs(float(decision[0] - exact)), float(bound[0, 0])


@pytest.mark.long
def test_residuals_of_the_worst_directions_are_within_the_bound_and_reach_it() -> None:
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(1000):
        error, bound = Worst(rng, int(rng.integers(2, 12)), int(rng.integers(1, 4))).error_and_bound()
        assert error <= bound * (1.0 + 1e-7) + 1e-10
        ratios.append(error / bound)
    assert max(ratios) > 0.999


def test_roundings_of_an_exact_gradient_alone(rng: np.random.Generator) -> None:
    """A gradient that comes out as zero, of coefficients that cancel: the residual there is is all rounding."""
    n, noise, kernel = 40, 1e-3, SquaredExponential((1e-4, 1e-4))
    X = rng.normal(size=(n, 2))
    solved = rng.normal(size=(n, 2)) * 1e9
    solved[:, 0] *= np.sign(rng.normal(size=n))
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator:
        right, errors = operator.matmat(solved), operator.row_errors()
    executor.close()
    certificate = DecisionCertificate.of(
        solved[:, :1], np.zeros(1), Approximation(solved, np.zeros((n, 2))), noise, 1.0, errors
    )
    rows = numbers(X)
    matrix = [[entry(kernel, a, b) + (mp.mpf(noise) if a is b else 0) for b in rows] for a in rows]
    lengths = []
    for column in range(2):
        true = [
            mp.fsum(value * mp.mpf(float(weight)) for value, weight in zip(row, solved[:, column], strict=True))
            - mp.mpf(float(goal))
            for row, goal in zip(matrix, right[:, column], strict=True)
        ]
        lengths.append(float(mp.sqrt(mp.fsum(value**2 for value in true) / mp.mpf(noise))))
    assert 0.0 < lengths[0] <= certificate.residual[0] <= 1e4 * lengths[0]
    assert 0.0 < lengths[1] <= certificate.ones_residual <= 1e4 * lengths[1]


def test_roundings_of_an_exact_decision_alone(rng: np.random.Generator) -> None:
    """Without any residual, the bound is the rounding error of k_x'alpha + b."""
    n, kernel = 60, SquaredExponential((1e-3, 1e-3))
    X, T = rng.normal(size=(n, 2)), rng.normal(size=(20, 2))
    alpha, intercept = rng.normal(size=(n, 2)) * 1e7, np.array([0.3, -1e9])
    errors = np.full(n, 10.0)
    certificate = DecisionCertificate.of(
        alpha, intercept, Approximation(np.zeros((n, 3)), np.zeros((n, 3))), 1.0, 1.0, errors
    )
    bare = replace(certificate, residual=(0.0, 0.0), imbalance=(0.0, 0.0))
    context = BlockContext("roundings", ArrayInputs(X), kernel, n)
    decisions, bounds = certified_decisions(context, bare, alpha, np.zeros(n), intercept, T)
    ratios = []
    for x, found, bound in zip(numbers(T), decisions, bounds, strict=True):
        for column in range(2):
            true = mp.mpf(float(intercept[column])) + mp.fsum(
                entry(kernel, row, x) * mp.mpf(float(alpha[i, column])) for i, row in enumerate(numbers(X))
            )
            ratios.append(float(abs(true - mp.mpf(float(found[column]))) / mp.mpf(float(bound[column]))))
    assert 1e-4 < max(ratios) <= 1.0
