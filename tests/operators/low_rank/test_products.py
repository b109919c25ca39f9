"""Products of a float32 factor with float64 vectors, against NumPy's on a float64 copy."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.operators.low_rank.products import FEW_VECTORS, PIECE_COLUMNS, FactorRows

SHAPES = [(1, 1), (1, 40), (3, 16), (4, 17), (5, 15), (1027, 33), (130, 129)]


def problem(rows: int, rank: int, vectors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rows, rank, vectors])
    factor = rng.standard_normal((rows, rank)).astype(np.float32)
    return factor, rng.standard_normal((rank, vectors)), rng.standard_normal((rows, vectors))


@pytest.mark.parametrize("vectors", [1, 2, FEW_VECTORS, FEW_VECTORS + 1])
@pytest.mark.parametrize(("rows", "rank"), SHAPES)
def test_against_a_double_copy(rows: int, rank: int, vectors: int) -> None:
    factor, weights, left = problem(rows, rank, vectors)
    copy = factor.astype(np.float64)
    scale = np.abs(copy).sum()
    found = FactorRows(factor)
    np.testing.assert_allclose(found.expand(weights), copy @ weights, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(found.project(left), copy.T @ left, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(found.gram(), copy.T @ copy, rtol=0, atol=1e-15 * scale**2)


def test_products_are_summed_in_double() -> None:
    # In float32 the small terms would vanish beside the first.
    factor = np.ones((1, 1001), np.float32)
    weights = np.full((1001, 1), 1e-9)
    weights[0] = 1.0
    assert FactorRows(factor).expand(weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)
    assert FactorRows(factor.T.copy()).project(weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    factor, weights, _ = problem(41, 70, 2)
    whole = FactorRows(factor).expand(weights)
    for start in (0, 1, 2, 3, 38):
        np.testing.assert_array_equal(FactorRows(factor[start:]).expand(weights), whole[start:])


@pytest.mark.parametrize("precision", ["single", "double"])
def test_threads_change_nothing_and_precision_the_last_digits(precision: str) -> None:
    factor, weights, left = problem(2100, PIECE_COLUMNS + 30, FEW_VECTORS + 1)
    copy = factor.astype(np.float64)
    one, three = (FactorRows(factor, precision, threads) for threads in (1, 3))  # type: ignore[arg-type]
    eps = float(np.finfo(np.float32 if precision == "single" else np.float64).eps)
    for name, argument, expected in (
        ("expand", (weights,), copy @ weights),
        ("project", (left,), copy.T @ left),
        ("gram", (), copy.T @ copy),
    ):
        found = getattr(one, name)(*argument)
        assert found.dtype == np.float64
        assert found.tobytes() == getattr(three, name)(*argument).tobytes()
        np.testing.assert_allclose(found, expected, rtol=0, atol=100 * eps * np.sqrt(np.mean(expected**2)) * 50)
    # Few vectors are multiplied in float64 either way, whatever type they come in.
    few = FactorRows(factor, precision).expand(weights[:, :2].astype(np.float32))  # type: ignore[arg-type]
    np.testing.assert_allclose(few, copy @ weights[:, :2].astype(np.float32), rtol=0, atol=1e-9)


def test_a_product_with_itself_is_whole() -> None:
    """Both triangles, to the last bit: the upper one is what a factorisation that fails goes back to."""
    gram = FactorRows(problem(300, 2 * PIECE_COLUMNS + 5, 1)[0], "single").gram()
    assert np.array_equal(gram, gram.T)
    assert (gram.diagonal() > 0.0).all()
