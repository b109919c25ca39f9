"""The value class `ProductError`: values that it takes, old names that it reads, and the operators it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import Linear, SquaredExponential
from dkgp.operators import ArrayInputs, ProductError
from dkgp.operators.cells.operator import CellKernelOperator, Forecast
from dkgp.operators.product_error import read_product_error, renamed

KERNEL = SquaredExponential((40.0, 40.0))


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), (" Auto", "auto"), ("none", "none"), ("nan", np.nan)])
def test_text_is_read(text: str, value: Any) -> None:
    np.testing.assert_equal(read_product_error(text), value)


def test_text_that_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="'small' is no number; expected a positive finite number, auto or none"):
        read_product_error("small")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, True, "small"])
def test_values_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="`product_error` must be a positive finite number, auto or none; got"):
        ProductError.of(value)


def test_an_identity_has_what_changes_results() -> None:
    assert ProductError.of(1e-5).record(KERNEL, 100) == {"product_error": 1e-5}
    for word in ("none", None, "auto"):
        assert ProductError.of(word).record(KERNEL, 100) == {}
    # By a forecast from counts alone.
    assert ProductError.of("auto").record(KERNEL, 10**6) == {"product_error": "auto"}
    assert ProductError.of("none").record(KERNEL, 10**6) == {}
    assert ProductError.of("auto").record(SquaredExponential((1.0,) * 4), 10**6) == {}
    assert ProductError.of(ProductError(2.0)).number == 2.0
    assert [ProductError.of(each).to_json() for each in (None, "auto", 1e-5)] == ["none", "auto", 1e-5]


def test_options_of_earlier_versions_are_read() -> None:
    assert renamed({"solver": "cg", "tree_error": 1e-6}) == {"solver": "cg", "product_error": 1e-6}
    assert renamed({"tree_error": None, "out": "/m"}) == {"out": "/m"}
    assert renamed({"tree_error": 1e-6, "product_error": "none"}) == {"product_error": "none"}


@pytest.mark.parametrize("value", ["none", "auto", 1e-6])
def test_the_operator_keeps_to_its_error(value: Any, rng: np.random.Generator) -> None:
    X, V = rng.uniform(size=(400, 2)), rng.standard_normal((400, 3))
    exact = KERNEL(X, X) @ V + 0.1 * V
    executor = LocalExecutor(1)
    with ProductError.of(value).operator(KERNEL, 0.1, ArrayInputs(X), executor, tolerance=1e-4) as operator:
        product = operator.matmat(V)
        off = np.abs(product - exact).max()
        assert off <= operator.error_bound + 1e-11
        assert operator.error_bound <= (1.01e-6 if value == 1e-6 else 0.0)
    executor.close()


def test_auto_limits_the_length_of_errors_where_proofs_take_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.operators.product_error.choose", lambda *_: Forecast(True, "many samples"))
    executor, source = LocalExecutor(1), ArrayInputs(np.zeros((5, 2)))
    limits = []
    for by_length in (False, True):
        options = {"tolerance": 1e-4, "by_length": by_length}
        with ProductError("auto").operator(KERNEL, 0.1, source, executor, **options) as operator:
            assert isinstance(operator, CellKernelOperator)
            limits.append((operator.error, operator.mean_error))
    executor.close()
    np.testing.assert_allclose(limits, [(1e-5, 1e-5), (5e-5, 1e-5)])


def test_a_kernel_without_a_bound_is_refused_for_a_number_alone() -> None:
    for word in ("auto", "none"):
        ProductError.of(word).require_kernel(Linear((1.0, 1.0)))
        memory = ProductError.of(word).memory(Linear((1.0, 1.0)), 10**9, 1, 1)
        assert memory is not None
        assert memory.kept_bytes == 0
    with pytest.raises(InputError, match="a part of dot products. Take `product_error` auto or none"):
        ProductError(1e-4).require_kernel(Linear((1.0, 1.0)))


def test_memory_beyond_a_workers_cache_is_refused() -> None:
    memory = ProductError(1e-4).memory(KERNEL, 10_000, 1, 2**30)
    assert memory is not None
    assert memory.kept_bytes > 10_000 * 2 * 8
    more = ProductError(1e-4).memory(KERNEL, 10_000, 5, 2**30)
    assert more is not None
    assert more.work_bytes > 4 * memory.work_bytes
    assert ProductError("auto").memory(KERNEL, 10**6, 1, 2**20) is None
    with pytest.raises(MemoryBudgetError, match=r"`product_error` 0.0001 over 10,000 samples take .*none"):
        ProductError(1e-4).memory(KERNEL, 10_000, 1, memory.kept_bytes - 1)


@pytest.mark.parametrize("amplitude", [1.0, 1e-3])
def test_a_number_below_all_roundings_is_refused(amplitude: float) -> None:
    kernel = SquaredExponential((40.0, 40.0), amplitude)
    words = (
        r"`product_error` 1e-20 is below the roundings .* leaves 4\.4e-1[69].* Give a larger number, or auto or none"
    )
    with pytest.raises(InputError, match=words):
        ProductError(1e-20).require_kernel(kernel)
    ProductError(1e-15).require_kernel(kernel)


@pytest.mark.parametrize("error", [1e-15, 1e-12])
def test_weights_that_are_too_large_for_a_number_take_every_entry_and_a_line(
    error: float, rng: np.random.Generator
) -> None:
    X, V = rng.uniform(size=(400, 2)), 1e4 * rng.standard_normal((400, 1))
    exact = KERNEL(X, X) @ V + 0.1 * V
    executor = LocalExecutor(1)
    notes: list[str] = []
    product = ProductError(error)
    with product.operator(KERNEL, 0.1, ArrayInputs(X), executor, note=notes.append) as operator:
        for _ in range(2):
            assert np.abs(operator.matmat(V) - exact).max() <= 1e-8
            assert operator.error_bound == 0.0
        assert "roundings" in operator.products["every entry"]
        assert operator.products["reached"] > error
    executor.close()
    assert len(notes) == 1
    assert "evaluate every kernel entry" in notes[0]
    assert f"the error that is asked for, {error:.2g}; weights whose magnitudes add up to" in notes[0]
