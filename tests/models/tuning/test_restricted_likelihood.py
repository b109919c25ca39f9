"""The likelihood that means are tuned by: equation 2.45 of Rasmussen and Williams as printed, and what it finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import parse_kernel
from dkgp.models import tune
from dkgp.models.noise import Noise
from dkgp.models.trend import columns_at
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import LogMarginalLikelihood


def printed(K_y: np.ndarray, H: np.ndarray, y: np.ndarray) -> float:
    """Equation 2.45, with H (m, n) as they have it."""
    (m, n), inverse = H.shape, np.linalg.inv(K_y)
    A = H @ inverse @ H.T
    C = inverse @ H.T @ np.linalg.inv(A) @ H @ inverse
    return float(
        -0.5 * y @ inverse @ y
        + 0.5 * y @ C @ y
        - 0.5 * np.linalg.slogdet(K_y)[1]
        - 0.5 * np.linalg.slogdet(A)[1]
        - (n - m) / 2 * math.log(2 * math.pi)
    )


@pytest.mark.parametrize("kernel", ["rbf", "matern32 + linear"])
@pytest.mark.parametrize("known", [False, True])
def test_value_and_gradient(kernel: str, known: bool) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((40, 2)), rng.standard_normal((40, 2))
    H, noise = columns_at("linear", X), Noise(1.0, rng.uniform(0.0, 1.0, 40) if known else None)
    family = family_of(parse_kernel(kernel, 2), X, True, ("a", "b"))
    objective = LogMarginalLikelihood(family, Y, noise=noise, trend=H)
    point = np.append(family.initial() + rng.uniform(-0.3, 0.3, len(family.initial())), math.log(0.3))
    result = objective(point)
    assert result is not None
    value, gradient = result
    K_y = family.kernel(point[:-1])(X, X) + np.diag(np.broadcast_to(noise.with_common(0.3).diagonal, 40))
    assert value == pytest.approx(sum(printed(K_y, H.T, y) for y in Y.T), rel=1e-10)
    for index, slope in enumerate(gradient):
        step = np.zeros(len(point))
        step[index] = 1e-5
        ends = [objective(point + sign * step) for sign in (1.0, -1.0)]
        assert ends[0] is not None
        assert ends[1] is not None
        assert slope == pytest.approx((ends[0][0] - ends[1][0]) / 2e-5, rel=1e-5, abs=1e-5)


def test_samples_of_noise_about_a_mean_are_told_from_structure() -> None:
    rng = np.random.default_rng(1)
    X, e = rng.standard_normal((250, 2)), rng.standard_normal((250, 1))
    H = columns_at("linear", X)
    best = LogMarginalLikelihood.independent_about(e + H @ [[3.0], [2.0], [1.0]], H)
    rest = e - H @ np.linalg.lstsq(H, e, rcond=None)[0]
    s2 = float((rest**2).sum()) / 247
    assert best == pytest.approx(printed(s2 * np.eye(250), H.T, e[:, 0]), rel=1e-12)
    found = tune(X, e + H @ [[3.0], [2.0], [1.0]], mean="linear")
    assert any("no structure found" in message for message in found.warnings)
    assert found.noise_variance == pytest.approx(s2, rel=0.1)


def test_a_trend_does_not_make_the_amplitude() -> None:
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(-1.7, 1.7, (300, 1)), axis=0)
    y = x + 0.1 * np.sin(12.0 * x) + 0.02 * rng.standard_normal((300, 1))
    about, centred = tune(x, y, mean="linear"), tune(x, y, learn_variance=True)
    assert about.kernel.diagonal(x[:1])[0] < 0.05
    assert about.noise_variance == pytest.approx(0.02**2, rel=0.3)
    assert centred.kernel.diagonal(x[:1])[0] > 10.0 * about.kernel.diagonal(x[:1])[0]


def test_what_knows_no_mean_says_so() -> None:
    x = np.linspace(-1.0, 1.0, 30)[:, None]
    for options, words in (
        ({"objective": "loo"}, "the objective loo knows no `mean` linear"),
        ({"folds": 3}, "scores by folds knows no `mean` linear"),
        ({"holdout": 0.2}, "scores on a holdout know no `mean` linear"),
        ({"mean": "cubic"}, "`mean` is one of centred, constant, linear; got 'cubic'"),
    ):
        with pytest.raises(InputError, match=words):
            tune(x, np.sin(x), **{"mean": "linear", **options})  # type: ignore[arg-type]
