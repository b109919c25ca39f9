"""Audits: every end against fifty digits, also next to one, below the normal numbers and beyond the largest."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging.audit import Audit, Exact, _misfit, audit

mp = mpmath.mp.clone()
mp.dps = 60
TINY, MAX = 5e-324, float(np.finfo(np.float64).max)
NEAR_ONE = [1.0 + sign * 2.0**-k for k in (52, 45, 30, 20, 10, 3, 2) for sign in (-1.0, 1.0)]
HOSTILE = [TINY, 1e-310, 2.5e-308, 1e-200, 1e-17, 0.4999, 0.5, *NEAR_ONE, 1.0, 1.5, 1.5000001, 2.0, 1e17, 1e200, MAX]


def misfit(exact: float, other: float) -> Any:
    t = mp.mpf(exact) / mp.mpf(other)
    return t - 1 - mp.log(t)


def test_the_misfit_of_variances_is_bounded_at_every_size() -> None:
    pairs = [(a, b) for a in HOSTILE for b in HOSTILE]
    exact, other = (np.array(column) for column in zip(*pairs, strict=True))
    low, high = _misfit(exact, other)
    for (a, b), least, most in zip(pairs, low, high, strict=True):
        true = misfit(a, b)
        assert least <= true <= most, (a, b)
        if np.isfinite(most) and a != b and true > 1e-300:
            assert most - least <= true * 1e-11, (a, b)


def test_next_to_one_the_misfit_is_known_to_its_last_digits(rng: np.random.Generator) -> None:
    other = rng.lognormal(0.0, 20.0, 400)
    exact = other * (1.0 + rng.choice([-1.0, 1.0], 400) * 10.0 ** -rng.uniform(0.31, 15.5, 400))
    low, high = _misfit(exact, other)
    for a, b, least, most in zip(exact.tolist(), other.tolist(), low, high, strict=True):
        true = misfit(a, b)
        assert least <= true <= most
        assert most - least <= float(true) * 64 * 2.0**-52


def true_ends(exact: tuple[float, float], other: tuple[float, float]) -> tuple[Any, Any, Any]:
    """Error, ratio and divergence of a prediction from an exact posterior (mean, variance)."""
    (m, v), (m2, v2) = (tuple(map(mp.mpf, pair)) for pair in (exact, other))
    error = abs(m2 - m)
    return error, v2 / v, (v / v2 - 1 - mp.log(v / v2) + error**2 / v2) / 2


def contained(result: Audit, row: int, exact: tuple[float, float], other: tuple[float, float]) -> None:
    error, ratio, divergence = true_ends(exact, other)
    deviation = error / mp.sqrt(exact[1])
    ends = {
        "error": error,
        "deviation": deviation,
        "ratio": ratio,
        "divergence": divergence,
    }
    for name, value in ends.items():
        low, high = getattr(result, f"{name}_lower")[row], getattr(result, f"{name}_upper")[row]
        assert low <= value <= high, (name, low, value, high, exact, other)


def test_the_exact_posterior_is_anywhere_within_its_proofs(rng: np.random.Generator) -> None:
    r = 600
    scale = 10.0 ** rng.uniform(-150, 150, r)
    mean = rng.standard_normal(r) * scale
    bound = np.abs(mean) * 10.0 ** rng.uniform(-16, 1, r)
    lower = scale * rng.random(r)
    upper = lower * (1.0 + 10.0 ** rng.uniform(-16, 2, r))
    theirs = np.where(rng.random(r) < 0.2, mean, mean + bound * rng.uniform(-3, 3, r))
    variance = np.where(rng.random(r) < 0.2, lower, lower * 10.0 ** rng.uniform(-3, 3, r))
    result = audit(Exact(mean, bound, lower, upper), theirs, variance)
    for row in range(r):
        m, b, low, high = float(mean[row]), float(bound[row]), float(lower[row]), float(upper[row])
        # The exact posterior at corners of its proofs, moved inward to be inside.
        for at in (m, np.nextafter(m - b, np.inf), np.nextafter(m + b, -np.inf)):
            if abs(mp.mpf(float(at)) - mp.mpf(m)) > mp.mpf(b):
                continue
            for v in (low, high, 0.5 * (low + high)):
                contained(result, row, (float(at), v), (float(theirs[row]), float(variance[row])))


@pytest.mark.parametrize("other", HOSTILE[::3])
def test_hostile_sizes_leave_the_truth_inside(other: float) -> None:
    cases = [(a, b) for a in HOSTILE[::2] for b in HOSTILE[::2] if a <= b]
    lower, upper = (np.array(column) for column in zip(*cases, strict=True))
    r = len(cases)
    for mean, theirs in ((MAX, -MAX), (TINY, -TINY), (1.0, 1.0), (1e-200, 3e-200)):
        exact = Exact(np.full(r, mean), np.zeros(r), lower, upper)
        result = audit(exact, np.full(r, theirs), np.full(r, other))
        for row, ends in enumerate(cases):
            for v in ends:
                contained(result, row, (mean, v), (theirs, other))


def test_infinite_ends_prove_nothing_and_zero_ends_prove_all() -> None:
    unknown = audit(
        Exact(np.array([0.0, np.inf]), np.array([np.inf, 1.0]), np.zeros(2), np.full(2, np.inf)), [1, 1], [1, 1]
    )
    assert (unknown.error_lower == 0.0).all()
    assert np.isinf(unknown.error_upper).all()
    assert (unknown.ratio_lower == 0.0).all()
    assert np.isinf(unknown.ratio_upper).all()
    assert (unknown.divergence_lower == 0.0).all()
    assert np.isinf(unknown.divergence_upper).all()
    assert unknown.verdict(0.1)["undecided"] == 1.0
    # Exact interpolation: variance zero, known exactly.
    zero = np.zeros(3)
    certain = audit(Exact(np.ones(3), zero, zero, zero), [1.0, 1.0, 2.0], [0.0, 1.0, 0.0])
    assert certain.error_lower[:2].tolist() == certain.error_upper[:2].tolist() == [0.0, 0.0]
    assert certain.divergence_lower.tolist() == [0.0, np.inf, np.inf]
    assert certain.divergence_upper.tolist() == [0.0, np.inf, np.inf]
    assert certain.deviation_lower.tolist() == [0.0, 0.0, np.inf]  # type: ignore[union-attr]
    assert certain.ratio_upper.tolist() == [1.0, np.inf, 1.0]  # type: ignore[union-attr]
    nan = audit(Exact(np.zeros(1), np.full(1, np.nan), np.full(1, np.nan), np.full(1, np.nan)), [5.0], [1.0])
    assert [nan.error_lower[0], nan.error_upper[0]] == [0.0, np.inf]
    assert [nan.divergence_lower[0], nan.divergence_upper[0]] == [0.0, np.inf]


def test_sums_over_points_keep_the_ends(rng: np.random.Generator) -> None:
    r = 1000
    mean, bound = rng.standard_normal(r) * 1e200, rng.random(r) * 1e180
    theirs = mean + rng.standard_normal(r) * 1e190
    result = audit(Exact(mean, bound), theirs)
    low, high = result.root_mean_square()
    rows = [tuple(mp.mpf(float(value)) for value in row) for row in zip(theirs, mean, bound, strict=True)]
    least, most = (mp.sqrt(mp.fsum((abs(a - m) + sign * b) ** 2 for a, m, b in rows) / r) for sign in (-1, 1))
    assert least * (1 - 1e-12) <= low <= least
    assert most <= high <= most * (1 + 1e-12)


def test_shares_are_proven_or_undecided() -> None:
    exact = Exact(np.zeros(4), np.full(4, 0.1), np.ones(4), np.ones(4))
    result = audit(exact, [0.05, 0.45, 0.55, 2.0], [1.0, 0.5, 2.0, 1.0])
    assert result.verdict(0.5) == {"level": 0.5, "proven_off": 0.25, "proven_within": 0.25, "undecided": 0.5}
    figures = result.summary()
    assert figures["variance"]["proven_too_small"] == 0.25 == figures["variance"]["proven_too_large"]
    assert figures["variance"]["median_ratio"]["at_least"] <= 1.0 <= figures["variance"]["median_ratio"]["at_most"]
    assert sum(figures["verdicts"][0][name] for name in ("proven_off", "proven_within", "undecided")) == 1.0


@pytest.mark.parametrize(
    ("exact", "mean", "variance", "words"),
    [
        ((0, 1, 1), [1.0, 2.0], None, "`mean` has 2 values; expected 1"),
        ((0, 1, 1), [np.nan], None, "the mean is nan in row 0"),
        ((0, 1, 1), [0.0], [np.inf], "the variance is inf in row 0"),
        ((0, 1, 1), [0.0], [-1e-17], "the variance is -1e-17 in row 0, and negative in 1 of 1 rows"),
        ((0, 2, 1), [0.0], [1.0], "lies between 2 and 1 in row 0"),
    ],
)
def test_bad_predictions_are_refused(exact: Any, mean: Any, variance: Any, words: str) -> None:
    m, low, high = (np.array([float(value)]) for value in exact)
    with pytest.raises(InputError) as refused:
        audit(Exact(m, np.zeros(1), low, high), mean, variance)
    assert words in str(refused.value)
    with pytest.raises(InputError, match="no points"):
        audit(Exact(np.zeros(0), np.zeros(0)), [])
    with pytest.raises(InputError, match="predict with `variance`"):
        audit(Exact(np.zeros(1), np.zeros(1)), [0.0], [1.0])
