"""Products by cells lie within their bounds of dense sums in long double."""

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import Constant, Linear, Matern12, Matern32, Matern52, RationalQuadratic, SquaredExponential
from dkgp.operators.cells.products import CellProducts
from dkgp.operators.cells.terms import terms_of

LD = np.longdouble


def dense(kernel, targets, inputs, V):
    """K(targets, inputs) V in long double from the terms' definitions."""
    terms = terms_of(kernel)
    K = np.full((len(targets), len(inputs)), LD(terms.constant))
    for term in terms.terms:
        s = sum(
            (LD(scale) * (targets[:, None, f].astype(LD) - inputs[None, :, f].astype(LD))) ** 2
            for f, scale in zip(term.features, term.scale, strict=True)
        )
        ln2, name = np.log(LD(2)), term.profile.name
        u = np.sqrt(s)
        v = u * ln2
        values = {
            "power_of_two": lambda s=s: np.exp2(-s),
            "rational_quadratic": lambda s=s, a=term.parameter: np.exp(-LD(a) * np.log1p(s)),
            "matern12": lambda u=u: np.exp2(-u),
            "matern32": lambda u=u, v=v: (1 + v) * np.exp2(-u),
            "matern52": lambda u=u, v=v: (1 + v + v * v / 3) * np.exp2(-u),
        }[name]()
        K += LD(term.amplitude) * values
    return K @ V.astype(LD)


KERNELS = [
    lambda d: SquaredExponential.from_length_scales([0.3] * d),
    lambda d: Matern12.from_length_scales([0.2] * d),
    lambda d: Matern32.from_length_scales([0.1 * (1 + f) for f in range(d)]),
    lambda d: Matern52.from_length_scales([0.2] * d),
    lambda d: RationalQuadratic.from_length_scales([0.2] * d, alpha=0.7),
    lambda d: (
        2.0 * Matern32.from_length_scales([0.3] * d) + SquaredExponential.from_length_scales([0.5] * d) + Constant(0.5)
    ),
]


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("make", KERNELS)
@pytest.mark.parametrize("tolerance", [1e-7])
def test_bound_holds(rng, d, make, tolerance):
    kernel = make(d)
    X, V = rng.uniform(-1.0, 1.0, (600, d)), rng.standard_normal((600, 2))
    products = CellProducts(terms_of(kernel), X, tolerance)
    result, bounds = products.matmat(V)
    error = np.abs(result - dense(kernel, X, X, V)).astype(float)
    assert (error <= bounds).all()
    one = np.abs(V).sum(axis=0)
    assert (bounds <= 2.0 * max(tolerance, 1e-11) * one * terms_of(kernel).magnitude).all()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_targets_apart(rng, d):
    kernel = Matern32.from_length_scales([0.2] * d)
    X, Z, v = rng.uniform(0.0, 1.0, (500, d)), rng.uniform(-0.2, 1.3, (300, d)), rng.standard_normal((500, 1))
    result, bounds = CellProducts(terms_of(kernel), X, 1e-6).cross(Z, v)
    assert (np.abs(result - dense(kernel, Z, X, v)).astype(float) <= bounds).all()


def test_refusals():
    with pytest.raises(InputError, match="at most 3 features"):
        terms_of(Matern32.from_length_scales([1.0] * 4))
    with pytest.raises(InputError, match="dot products"):
        terms_of(Linear(n_features=2))
    with pytest.raises(InputError, match="is not"):
        terms_of(Matern32.from_length_scales([1.0] * 2) * Matern12.from_length_scales([1.0] * 2))
    assert (
        len(terms_of(SquaredExponential(gamma=1.0, n_features=2) * SquaredExponential(gamma=1.0, n_features=2)).terms)
        == 1
    )
