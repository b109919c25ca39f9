"""Rules of every kernel in `table.py`, against formulas, scikit-learn, finite differences and NumPy."""

from __future__ import annotations

import json
import pickle

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.errors import InputError
from dkgp.kernels import Kernel, kernel_from_json
from tests.kernels.table import ALL, CASES, Case, double_loop, features_of
from tests.kernels.tiles.programs import ProgramKernel

every_kernel = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
every_kernel_without_white = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def inputs(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of rows, one of which is in both."""
    d = features_of(case)
    A, B = rng.standard_normal((9, d)), rng.standard_normal((6, d))
    B[4] = A[2]
    return A, B


@every_kernel
def test_values_are_the_formula(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    for left, right in ((A, B), (A, A)):
        expected = double_loop(case, left, right)
        np.testing.assert_allclose(case.kernel(left, right), expected, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(case.kernel.matrix(left, right), expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(case.kernel(left, right), case.kernel(right, left).T)
    np.testing.assert_allclose(case.kernel.diagonal(A), np.diag(double_loop(case, A, A)), rtol=1e-13)


@pytest.mark.parametrize("case", [case for case in ALL if case.sklearn is not None], ids=lambda case: case.name)
def test_values_are_scikit_learns(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    np.testing.assert_allclose(case.kernel(A, B), case.sklearn(A, B), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(case.kernel(A, A), case.sklearn(A), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(case.kernel.diagonal(A), case.sklearn.diag(A), rtol=1e-12)


@every_kernel
def test_gradient_is_the_central_difference(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    values = np.array([parameter.value for parameter in case.kernel.parameters()])
    step = 3e-4
    for left, right in ((A, B), (A, A)):
        weights = rng.standard_normal((len(left), len(right)))
        kept = weights.copy()
        gradient = case.kernel.contract(left, right, weights)
        np.testing.assert_array_equal(weights, kept)

        def objective(logarithms: np.ndarray, rows=(left, right), weights=weights) -> float:
            return float(np.sum(weights * case.kernel.with_parameters(np.exp(logarithms))(*rows)))

        # Fourth order: 8 (f(h) - f(-h)) - (f(2h) - f(-2h)), over 12 h.
        expected = [
            sum(w * objective(np.log(values) + k * step * e) for k, w in ((1, 8), (-1, -8), (2, -1), (-2, 1)))
            / (12.0 * step)
            for e in np.eye(len(values))
        ]
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.spread(8)
@every_kernel
def test_gradient_of_transposed_weights_and_of_parts_of_rows(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    weights = np.asfortranarray(rng.standard_normal((len(A), len(B))))
    whole = case.kernel.contract(A, B, weights)
    np.testing.assert_allclose(case.kernel.contract(B, A, weights.T), whole, rtol=1e-10, atol=1e-11)
    parts = case.kernel.contract(A[:4], B, weights[:4]) + case.kernel.contract(A[4:], B, weights[4:])
    np.testing.assert_allclose(parts, whole, rtol=1e-10, atol=1e-11)
    nothing = case.kernel.contract(A[:0], B, weights[:0])
    np.testing.assert_array_equal(nothing, np.zeros(len(whole)))


@pytest.mark.spread(8)
@every_kernel
def test_gradient_of_many_rows_is_that_of_few_at_a_time(
    case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, B = rng.standard_normal((150, features_of(case))), rng.standard_normal((7, features_of(case)))
    for left, right in ((A, B), (A, A)):
        weights = rng.standard_normal((len(left), len(right)))
        whole = case.kernel.contract(left, right, weights)
        with monkeypatch.context() as context:
            context.setattr("dkgp.kernels.base._CONTRACTED_ENTRIES", 1)
            np.testing.assert_allclose(case.kernel.contract(left, right, weights), whole, rtol=1e-10, atol=1e-9)


@every_kernel
def test_weights_of_another_shape_are_refused(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    with pytest.raises(InputError, match=r"array of shape \(9, 6\); got \(6, 9\)"):
        case.kernel.contract(A, B, np.zeros((6, 9)))


@every_kernel
def test_parameters_go_round(case: Case) -> None:
    parameters = case.kernel.parameters()
    values = [parameter.value for parameter in parameters]
    assert case.kernel.with_parameters(values) == case.kernel
    moved = case.kernel.with_parameters(2.0 * np.array(values))
    assert [parameter.value for parameter in moved.parameters()] == [2.0 * value for value in values]
    assert [(p.name, p.feature) for p in moved.parameters()] == [(p.name, p.feature) for p in parameters]
    assert len({(p.name, p.feature) for p in parameters}) == len(parameters)
    for parameter in parameters:
        assert 0.0 < parameter.lower <= parameter.value <= parameter.upper
        assert parameter.feature is None or 0 <= parameter.feature < features_of(case)
    with pytest.raises(InputError, match=rf"has {len(values)} parameters; got values of shape"):
        case.kernel.with_parameters([*values, 1.0])
    with pytest.raises(InputError, match="must be positive and finite"):
        case.kernel.with_parameters([*values[:-1], -1.0])
    for place, parameter in enumerate(parameters):
        zero = [*values[:place], 0.0, *values[place + 1 :]]
        if parameter.name.endswith("gamma"):
            kept = case.kernel.with_parameters(zero).parameters()
            gone = [item for item in parameters if item not in kept]
            assert kept == tuple(item for item in parameters if item not in gone)
            # With a periodic one goes its period.
            assert parameter in gone
            assert all(item.name.endswith(("gamma", "period")) for item in gone)
        else:
            with pytest.raises(InputError, match="must be positive and finite"):
                case.kernel.with_parameters(zero)


@every_kernel
def test_amplitude_is_a_factor_of_the_whole(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    index = case.kernel.amplitude_index
    assert (index is not None) == case.amplitude
    if index is None:
        return
    values = [parameter.value for parameter in case.kernel.parameters()]
    values[index] *= 3.0
    np.testing.assert_allclose(case.kernel.with_parameters(values)(A, B), 3.0 * case.kernel(A, B), rtol=1e-13)


@every_kernel
def test_json_round_trip_is_exact(case: Case, rng: np.random.Generator) -> None:
    document = json.loads(json.dumps(case.kernel.to_json(), allow_nan=False))
    twin = kernel_from_json(document)
    assert twin == case.kernel
    assert hash(twin) == hash(case.kernel)
    assert twin.to_json() == document


@every_kernel
def test_pickles_and_travels_with_its_function(case: Case) -> None:
    assert pickle.loads(pickle.dumps(case.kernel)) == case.kernel
    assert cloudpickle.loads(cloudpickle.dumps(case.kernel)) == case.kernel


@every_kernel
def test_stationary_is_true_to_its_word(case: Case, rng: np.random.Generator) -> None:
    diagonal = case.kernel.diagonal(3.0 * rng.standard_normal((20, features_of(case))))
    assert case.kernel.stationary == (np.ptp(diagonal) == 0.0)


@every_kernel_without_white
def test_program_is_the_formula(case: Case, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    # The class's own program; a bare squared exponential may have another form of it.
    program = Kernel.tile_program(case.kernel)
    assert all(min(group.scale, default=1.0) > 0.0 for group in program.groups)
    found = ProgramKernel(features_of(case), program)(A, B)
    np.testing.assert_allclose(found, double_loop(case, A, B), rtol=1e-12, atol=1e-14)
    assert hash(program) == hash(Kernel.tile_program(kernel_from_json(case.kernel.to_json())))


@pytest.mark.spread(12)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=15)
@given(data=st.data())
def test_matrices_are_positive_definite(case: Case, data: st.DataObject) -> None:
    d = features_of(case)
    rows = st.lists(st.tuples(*[st.floats(-8.0, 8.0)] * d), min_size=1, max_size=6)
    factors = st.lists(st.floats(0.05, 20.0), min_size=(q := len(case.kernel.parameters())), max_size=q)
    A = np.array(data.draw(rows))
    values = np.array([parameter.value for parameter in case.kernel.parameters()])
    K = case.kernel.with_parameters(values * data.draw(factors))(A, A)
    assert np.linalg.eigvalsh(K).min() >= -1e-12 * len(A) * max(K.diagonal().max(), 1e-300)


@every_kernel
def test_rows_of_another_width_are_refused(case: Case) -> None:
    d = case.kernel.n_features
    if not d:
        return
    for bad in (np.zeros((3, d + 1)), np.zeros(d), np.zeros((1, d, 1))):
        for call in (
            lambda bad: case.kernel(bad, np.zeros((1, d))),
            lambda bad: case.kernel.matrix(np.zeros((1, d)), bad),
            case.kernel.diagonal,
        ):
            with pytest.raises(InputError, match=f"expected rows of {d} features"):
                call(bad)


@every_kernel
@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_extreme_parameters_stay_finite(case: Case, factor: float, rng: np.random.Generator) -> None:
    A, B = inputs(case, rng)
    values = np.array([parameter.value for parameter in case.kernel.parameters()])
    for index in range(len(values)):
        extreme = values.copy()
        extreme[index] *= factor
        kernel = case.kernel.with_parameters(extreme)
        K = kernel(A, B)
        assert np.all(np.isfinite(K))
        scale = np.abs(K).max()
        np.testing.assert_allclose(kernel.matrix(A, B), K, rtol=1e-6, atol=1e-6 * scale)
        assert np.all(np.isfinite(kernel.contract(A, B, rng.standard_normal(K.shape))))
