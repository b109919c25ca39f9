"""Fourier methods as contenders of products by cells: they come to the kernel's sums."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp_benchmarks.cells.comparison import Problem, exact_rows, kernel_of
from dkgp_benchmarks.cells.fourier import EquispacedFourier, FastSum, radial, reach, run, spectral_density


def test_spectral_densities_are_the_kernels_transforms() -> None:
    """Summed over a fine lattice of frequencies, they come to k(0) = 1 and to k elsewhere."""
    for name in ("rbf", "matern32", "matern52"):
        kernel = kernel_of(name, 0.3, 2)
        grid = np.arange(-400, 401) / 4.0
        squares = grid[:, None] ** 2 + grid[None] ** 2
        density = spectral_density(kernel, 2)(squares) / 16.0
        assert density.sum() == pytest.approx(1.0, abs=2e-4)
        at = float((density * np.cos(2.0 * np.pi * 0.25 * grid)[:, None]).sum())
        assert at == pytest.approx(float(kernel([[0.25, 0.0]], [[0.0, 0.0]])[0, 0]), abs=2e-4)
    with pytest.raises(InputError, match="needs a kernel's Fourier transform; none is known here of 'spherical'"):
        spectral_density(kernel_of("spherical", 0.3, 2), 2)


def test_a_kernel_of_squares_and_its_reach() -> None:
    kernel = kernel_of("spherical", 0.3, 2)
    assert radial(kernel)(np.array([0.0, 0.04, 0.09, 1.0])).tolist() == pytest.approx([1.0, 4.0 / 27.0, 0.0, 0.0])
    assert 0.29 < reach(kernel, 1e-8, 2) <= 0.3
    assert reach(kernel_of("matern12", 0.5, 2), 1e-8, 2) == pytest.approx(np.sqrt(2.0))


@pytest.mark.parametrize("contender", ["nfft", "efgp"])
@pytest.mark.parametrize(("name", "d", "tolerance"), [("matern32", 2, 1e-6), ("rbf", 3, 1e-5)])
def test_sums_are_near_the_exact_ones(contender: str, name: str, d: int, tolerance: float) -> None:
    pytest.importorskip("finufft")
    problem = Problem(contender, name, 0.2, 1500, d, tolerance, 30, 1, 0)
    X, v, kernel = problem.inputs(), problem.weights(), kernel_of(name, 0.2, d)
    result, figures = run(problem, kernel, X, v)
    exact = exact_rows(kernel, X, v, problem.rows())
    assert np.abs(result[problem.rows()] - exact).max() <= tolerance * np.abs(v).sum()
    assert figures["modes"] > 8
    assert figures["plan_bytes"] > 0.0
    assert {"nfft": FastSum, "efgp": EquispacedFourier}[contender](kernel, X, tolerance)(v).shape == (1500,)
