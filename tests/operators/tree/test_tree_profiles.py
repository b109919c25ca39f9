"""Pruned sums of other kernels than the squared exponential: their bounds, what they save, and who is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Multiply, Profile, Scale, TileProgram
from dkgp.kernels.stationary import EXP2, MATERN12, MATERN32, MATERN52, RATIONAL_QUADRATIC
from dkgp.kernels.user import USER
from dkgp.operators import ArrayInputs
from dkgp.operators.tree.operator import TreeKernelOperator
from tests.kernels.tiles.programs import ProgramKernel

NOISE_VARIANCE = 0.05
EXECUTOR = LocalExecutor(2)

RADIAL_LEAVES = {
    "matern12": (MATERN12, ()),
    "matern32": (MATERN32, ()),
    "matern52": (MATERN52, ()),
    "rational quadratic": (RATIONAL_QUADRATIC, (1.4,)),
    "steep rational quadratic": (RATIONAL_QUADRATIC, (1e4,)),
    "flat rational quadratic": (RATIONAL_QUADRATIC, (0.1,)),
}


class WithDiagonal(ProgramKernel):
    def diagonal(self, A: Any) -> np.ndarray:
        return self(np.zeros((1, self.n_features)), np.zeros((1, self.n_features)))[0].repeat(len(A))


@pytest.mark.parametrize("name", RADIAL_LEAVES)
@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.floats(-9.0, -2.0),
    reach=st.floats(-1.5, 2.5),
    precision=st.sampled_from(["single", "double"]),
)
@settings(max_examples=25)
def test_other_profiles_keep_to_their_bound(
    name: str, seed: int, exponent: float, reach: float, precision: str
) -> None:
    rng, (profile, parameters) = np.random.default_rng(seed), RADIAL_LEAVES[name]
    n, d = int(rng.integers(1, 500)), int(rng.integers(1, 4))
    X = rng.standard_normal((8, d))[rng.integers(0, 8, n)] + 10.0 ** rng.uniform(-4.0, 0.0) * rng.standard_normal(
        (n, d)
    )
    V = rng.standard_normal((n, 2)) * 10.0 ** rng.uniform(-8.0, 3.0, 2)
    scale = tuple(10.0**reach * rng.uniform(0.3, 1.0, d))
    steps = (Leaf(0, profile, parameters), Scale(0.8))
    kernel = WithDiagonal(d, TileProgram((InputGroup(tuple(range(d)), scale),), steps, 1.5))
    error = 10.0**exponent
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), EXECUTOR, error=error) as operator:
        found = operator.matmat(V, precision)
        bound = operator.error_bound
    off = np.abs(found - (kernel(X, X) @ V + NOISE_VARIANCE * V)).max(axis=0)
    total = 1.2 * np.abs(V).sum(axis=0)
    # The reference's own: inputs that cancel, times the slope, which grows with the reach and with the power.
    steepness = 10.0**reach * max(1.0, float(np.sqrt(parameters[0])) if parameters else 1.0)
    assert (off <= bound + 1e-14 * total * (1.0 + steepness * np.abs(X).max())).all()
    asked = error * np.minimum(1.0, np.abs(V).max(axis=0))
    rounding = (1e-12 if precision == "double" else 3e-5) * total * (1.0 + 0.1 * steepness)
    assert (off <= asked + rounding).all()


@pytest.mark.parametrize(
    ("profile", "parameters", "scale"),
    [(MATERN32, (), 200.0), (MATERN52, (), 200.0), (RATIONAL_QUADRATIC, (30.0,), 40.0)],
)
def test_other_profiles_are_pruned_too(
    two_threads: LocalExecutor, rng: np.random.Generator, profile: Profile, parameters: Any, scale: float
) -> None:
    X, V = rng.uniform(size=(2000, 2)), rng.uniform(-1.0, 1.0, (2000, 1))
    kernel = WithDiagonal(2, TileProgram((InputGroup((0, 1), (scale, scale)),), (Leaf(0, profile, parameters),)))
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=1e-4) as operator:
        found = operator.matmat(V)
        assert operator.kernel_evaluations < 0.5 * 2000**2
        assert 1e-6 < operator.error_bound <= 1.001e-4
    assert np.abs(found - (kernel(X, X) @ V + NOISE_VARIANCE * V)).max() <= 1e-4


def test_periodic_inputs_lie_on_a_circle(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 50.0, (2000, 2))
    V = rng.uniform(-1.0, 1.0, (2000, 1))
    group = InputGroup((0, 1), (6.0, 6.0), (7.0, 11.0))
    kernel = WithDiagonal(2, TileProgram((group,), (Leaf(0, EXP2),), 2.0))
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=1e-6) as operator:
        found = operator.matmat(V)
        assert operator.kernel_evaluations < 0.8 * 2000**2
        bound = operator.error_bound
    assert np.abs(found - (kernel(X, X) @ V + NOISE_VARIANCE * V)).max() <= bound + 1e-11


def test_a_kernel_that_looks_at_nothing_sums_the_weights(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    V = rng.standard_normal((300, 1))
    with TreeKernelOperator(
        SquaredExponential((0.0, 0.0), 1.5), NOISE_VARIANCE, ArrayInputs(np.ones((300, 2))), two_threads
    ) as operator:
        np.testing.assert_allclose(operator.matmat(V), 1.5 * V.sum() + NOISE_VARIANCE * V, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("groups", "steps"),
    [
        ([(0,), (1,)], (Leaf(0, EXP2), Leaf(1, MATERN32), Add())),
        ([(0,), (1,)], (Leaf(0, MATERN32), Leaf(1, MATERN32), Multiply())),
        ([(0,)], (Leaf(0, EXP2), Constant(1.0), Add())),
        ([(0,)], (Leaf(0, USER, (), lambda s: 1.0 / (1.0 + s)),)),
    ],
)
def test_kernels_without_one_falling_profile_are_refused(two_threads: LocalExecutor, groups: Any, steps: Any) -> None:
    program = TileProgram(tuple(InputGroup(features, (1.0,) * len(features)) for features in groups), steps)
    with pytest.raises(
        InputError, match=r"one kernel that falls with the distance.*of type 'program'. Use the blocked"
    ):
        TreeKernelOperator(WithDiagonal(2, program), NOISE_VARIANCE, ArrayInputs(np.ones((5, 2))), two_threads)
