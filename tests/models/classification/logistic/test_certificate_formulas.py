"""The certificate and the stopping rule of regularised risks, term by term in 50 digits, each where it shows.

The loss is (f - y)^2 / 2 here: its slopes within a distance of f are f - y and that distance, so that nothing that the
certificate adds up is of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.models.classification.certificate import GradientLength, Minimum, RiskCertificate, _around, _sizes_of
from dkgp.models.classification.logistic import RiskError
from dkgp.models.rounding import mean_roundings, product_roundings
from dkgp.solvers import Progress
from tests.models.exact_gp import mp

U = mp.mpf(2) ** -53
MORE = mp.mpf("1.01")


@dataclass(frozen=True)
class Squared:
    """Stands for a likelihood."""

    coupled: bool

    def slopes(self, targets: np.ndarray, values: np.ndarray, away: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values - targets - away, values - targets + away


def near(value: Any, expected: Any) -> bool:
    return float(value) == pytest.approx(float(expected), rel=2e-13, abs=0)


def many(values: np.ndarray) -> list[Any]:
    return [mp.mpf(float(value)) for value in values]


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
        """What entries of a product are off by."""
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
        """What the gradient's entries are off by."""
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
def test_bounds_of_decisions_as_the_proofs_add_them_up(extra: Any) -> None:
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
    """Of two that are together within the radius, the difference is within the root of two of it, and no less."""
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


def progress(distance: float) -> Progress:
    return Progress(
        iteration=1, column_passes=1.0, kernel_evaluations=1, seconds=0.0, gradient_inf_norm=1.0, gradient_norm=1.0,
        relative_residual=1.0, objective=0.0, objective_gap_bound=1.0, distance=distance,
    )  # fmt: skip


def test_the_rule_by_its_formula() -> None:
    rule = RiskError(0.5, 9.0)
    assert rule.measure(progress(0.25)) == 0.75
    assert rule.needed_fall(progress(0.25)) == 1.5
    assert rule.check(progress(0.25)) is None
    at = rule.check(progress(0.5 / 3.0))
    assert at is not None
    assert (at.rule, at.converged, at.message) == ("decision_error", True, "decisions within 0.5 <= 0.5")
    assert rule.check(progress(math.nan)) is None
    assert rule.check(progress(math.inf)) is None


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf])
def test_tolerances_that_make_no_sense_are_refused(tolerance: float) -> None:
    with pytest.raises(InputError, match="the tolerance of decisions must be finite and above 0; got"):
        RiskError(tolerance, 1.0)
