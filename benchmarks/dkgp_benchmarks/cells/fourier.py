"""Sums over kernels by nonequispaced Fourier transforms: fast summation with near-field correction, and EFGP.

Both are contenders of `dkgp bench cells`, as `python -m dkgp_benchmarks.cells.fourier`. Neither proves an
error; tolerances set parameters, and the errors are measured.

References
----------
D. Potts and G. Steidl (2003), Fast summation at nonequispaced knots by NFFTs.
P. Greengard, M. Rachh and A. Barnett (2023), Equispaced Fourier representations for efficient Gaussian process
regression from a billion data points.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from scipy.special import erfc, gammaln

from dkgp.commands.reporting.outputs import dump
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.kernels.program import numpy_functions
from dkgp.kernels.terms import terms_of
from dkgp_benchmarks.cells.comparison import Problem, checked, kernel_of, read_problem, timed

FloatArray = NDArray[np.float64]
# Fourier coefficients at most: their transforms take some GiB.
MOST_MODES = 2**22
# Near points of each point, whose terms are summed one by one.
NEAR = 60.0
# Modes for each radius of the near field in a period, and for each derivative that the smoothed kernel keeps there: the
# fewest with which the errors of Matern kernels are below the tolerance.
MODES_A_DERIVATIVE = 0.5
# Distance over which the kernel is faded out beyond all pairs of points.
FADE = 0.35


def radial(kernel: Kernel) -> Callable[[Any], Any]:
    """Return k as a function of r^2, real or complex, for one length scale."""
    (term,) = terms_of(kernel).terms
    functions, scale = numpy_functions(np.float64), term.scale[0]

    def values(squares: Any) -> Any:
        assert term.profile.formula is not None
        s = squares * scale**2
        result = term.amplitude * term.profile.formula(s, term.parameter, functions)
        return result if np.iscomplexobj(s) else np.where(s < term.profile.support**2, result, 0.0)

    return values


def reach(kernel: Kernel, tolerance: float, dimension: int) -> float:
    """Distance beyond which k is below a tenth of the tolerance, or that of the farthest points."""
    r = np.linspace(0.0, math.sqrt(dimension), 2000)
    above = r[radial(kernel)(r * r) > 0.1 * tolerance]
    return float(above[-1])


class FourierSums:
    """v -> type-1 transform, factors, type-2 transform, on one thread."""

    def __init__(self, X: FloatArray, period: float, factors: FloatArray, tolerance: float) -> None:
        import finufft

        d, modes = X.shape[1], factors.shape
        angles = [np.ascontiguousarray((X[:, l] - 0.5) * (2.0 * math.pi / period)) for l in range(d)]
        options: dict[str, Any] = {"eps": max(0.1 * tolerance, 1e-13), "nthreads": 1}
        self._there = finufft.Plan(1, modes, isign=-1, **options)
        self._there.setpts(*angles)
        self._back = finufft.Plan(2, modes, isign=1, **options)
        self._back.setpts(*angles)
        self._factors = factors

    def __call__(self, v: FloatArray) -> FloatArray:
        """Sum the trigonometric polynomial over all points, at all points."""
        coefficients = self._there.execute(v.astype(np.complex128))
        return np.ascontiguousarray(self._back.execute(coefficients * self._factors).real)


# ------------------------------------------------------------------------------------------------------ fast summation


class FastSum:
    """Fast summation: a smoothed and faded kernel by Fourier series, and the difference for near pairs.

    Within a radius the kernel is replaced by its Taylor polynomial in r^2 about the radius, so it is smooth there.
    """

    def __init__(self, kernel: Kernel, X: FloatArray, tolerance: float) -> None:
        n, d = X.shape
        k, far = radial(kernel), reach(kernel, tolerance, d)
        self.period = 1.0 + far + FADE
        most = int(MOST_MODES ** (1.0 / d)) // 2 * 2
        volume = {2: math.pi, 3: 4.0 / 3.0 * math.pi}[d]
        radius = (NEAR / (n * volume)) ** (1.0 / d)
        derivatives = max(3, math.ceil(-math.log10(tolerance)) - 1)
        wanted = MODES_A_DERIVATIVE * derivatives * self.period / radius
        modes = int(min(max(64.0, wanted), most)) // 2 * 2
        self.radius = max(radius, MODES_A_DERIVATIVE * derivatives * self.period / modes)
        self._taylor = self._polynomial(k, derivatives)
        self._k = k
        grid = np.fft.fftfreq(modes, 1.0 / self.period)  # 0, 1, ..., -1 times the step
        squares = sum(each**2 for each in np.meshgrid(*[grid] * d, indexing="ij", sparse=True))
        fading = 0.5 * erfc(math.sqrt(math.log(1.0 / tolerance)) * (2.0 * (np.sqrt(squares) - far) / FADE - 1.0))
        values = self._smooth(squares) * fading
        factors = np.fft.fftshift(np.fft.fftn(values).real) / modes**d
        self.modes = modes
        self._far = FourierSums(X, self.period, factors, tolerance)
        pairs = cKDTree(X).query_pairs(self.radius, output_type="ndarray")
        squared = ((X[pairs[:, 0]] - X[pairs[:, 1]]) ** 2).sum(axis=1)
        off = k(squared) - self._smooth(squared)
        self._near = csr_array((off, (pairs[:, 0], pairs[:, 1])), shape=(n, n))
        self._above = csr_array((off, (pairs[:, 1], pairs[:, 0])), shape=(n, n))
        self._diagonal = float(k(np.zeros(1))[0] - self._smooth(np.zeros(1))[0])
        self.nbytes = float(2 * (self._near.data.nbytes + self._near.indices.nbytes) + factors.nbytes)

    def _polynomial(self, k: Callable[[Any], Any], count: int) -> FloatArray:
        """Taylor coefficients of k in (r^2 / radius^2 - 1), by Cauchy's integral."""
        angles = 2.0 * math.pi * np.arange(128) / 128
        values = k(self.radius**2 * (1.0 + 0.5 * np.exp(1j * angles)))
        return np.asarray(np.fft.fft(values).real[:count] / 128 / 0.5 ** np.arange(count))

    def _smooth(self, squares: FloatArray) -> FloatArray:
        inside = np.polynomial.polynomial.polyval(np.minimum(squares / self.radius**2, 1.0) - 1.0, self._taylor)
        return np.asarray(np.where(squares < self.radius**2, inside, self._k(squares)))

    def __call__(self, v: FloatArray) -> FloatArray:
        """K v."""
        return np.asarray(self._far(v) + self._near @ v + self._above @ v + self._diagonal * v)


# ----------------------------------------------------------------------------------------------------------------- EFGP


def spectral_density(kernel: Kernel, dimension: int) -> Callable[[FloatArray], FloatArray]:
    """Return the Fourier transform of a kernel of one length scale, as a function of |frequency|^2."""
    (gamma,), name = set(kernel.gamma), kernel.type_name  # type: ignore[attr-defined]
    scale, d = 1.0 / math.sqrt(2.0 * gamma), dimension
    if name == "rbf":
        return lambda w: (2.0 * math.pi * scale**2) ** (d / 2) * np.exp(-2.0 * math.pi**2 * scale**2 * w)
    nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}.get(name)
    if nu is None:
        raise InputError(f"EFGP needs a kernel's Fourier transform; none is known here of {name!r}")
    constant = d * math.log(2.0) + d / 2 * math.log(math.pi) + gammaln(nu + d / 2) - gammaln(nu)
    inner = 2.0 * nu / scale**2
    return lambda w: np.exp(constant + nu * math.log(inner) - (nu + d / 2) * np.log(inner + 4.0 * math.pi**2 * w))


class EquispacedFourier:
    """EFGP's kernel: a trapezoidal rule for its Fourier integral, up to a frequency at which the tolerance is met.

    The number of modes is limited: a Matern 1/2 kernel would take more than any memory has.
    """

    def __init__(self, kernel: Kernel, X: FloatArray, tolerance: float) -> None:
        d = X.shape[1]
        density = spectral_density(kernel, d)
        period = 1.0 + reach(kernel, tolerance, d)
        half = 16
        while True:
            grid = np.arange(-half, half + 1) / period
            squares = sum(each**2 for each in np.meshgrid(*[grid] * d, indexing="ij", sparse=True))
            factors = density(np.asarray(squares)) / period**d
            if abs(1.0 - factors.sum()) <= tolerance or (2 * int(1.4 * half) + 1) ** d > MOST_MODES:
                break
            half = int(1.4 * half)
        self.modes = 2 * half + 1
        self._sums = FourierSums(X, period, factors, tolerance)
        self.nbytes = float(factors.nbytes)

    def __call__(self, v: FloatArray) -> FloatArray:
        """K v, nearly."""
        return self._sums(v)


def run(problem: Problem, kernel: Kernel, X: FloatArray, v: FloatArray) -> tuple[FloatArray, dict[str, Any]]:
    """Plan and measure one contender."""
    began = time.perf_counter()
    kind: type[FastSum | EquispacedFourier] = FastSum if problem.contender == "nfft" else EquispacedFourier
    sums = kind(kernel, X, problem.tolerance)
    plan_seconds = time.perf_counter() - began
    result, figures = timed(lambda: sums(v), problem.repeats)
    return result, {**figures, "plan_seconds": plan_seconds, "plan_bytes": sums.nbytes, "modes": float(sums.modes)}


def main() -> None:
    """Read a description, run it, print the figures."""
    problem = read_problem()
    X, v = problem.inputs(), problem.weights()
    kernel = kernel_of(problem.kernel, problem.length_scale, problem.dimension)
    result, figures = run(problem, kernel, X, v)
    print(dump(checked(problem, X, v, result, figures)))


if __name__ == "__main__":
    main()
