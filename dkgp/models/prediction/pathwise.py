"""Functions drawn from the posterior: a draw from the prior, corrected by the samples (Matheron's rule).

    f(x) = f0(x) + k_x' Kbar^-1 (y - f0(X) - e),        f0 from the prior, e ~ N(0, diag(s2_i)),

is a draw from the posterior. It costs one solve for each function, after which the function can be evaluated anywhere,
and is the same function wherever and whenever it is. Of a mean with coefficients the correction is the whole prediction
from y - f0(X) - e, with h(x)'beta, so that beta is drawn along. Where the prior cannot be drawn as a function, values
at few points are drawn jointly.

A stationary kernel is v E[cos(w'(x - x'))] over its spectral distribution of w (Bochner), so that

    f0(x) = sqrt(v / M) sum_j a_j cos(w_j'x) + b_j sin(w_j'x),      a_j, b_j ~ N(0, 1),

has covariance v mean_j cos(w_j'(x - x')): right at x = x', and elsewhere off by at most about v / sqrt(2 M) (standard
deviation over draws of w; 1.1 % of v with the 4,096 frequencies here). A linear kernel has d features that are exact.

References
----------
A. Rahimi, B. Recht, Random features for large-scale kernel machines (2007).
J. T. Wilson, V. Borovitskiy, A. Terenin, P. Mostowsky, M. P. Deisenroth, Efficiently sampling functions from Gaussian
process posteriors (2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import ModelRecord
from dkgp.errors import ClusterError, InputError, NumericalError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.kernels.spectrum import RandomFeatures
from dkgp.models.noise import Noise
from dkgp.models.solver_choice import factor_for
from dkgp.models.sums import SupportInputs, cross_products, finite_sums
from dkgp.models.trend import Drift, Trend
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import ConjugateGradient, GradientInfNorm, Solver, solve

# Training samples and points at which values are drawn jointly: a dense factor of as many rows.
MOST_JOINT_SAMPLES = 4000
PIECE_ROWS = 512
# M, of each stationary part of a kernel.
FREQUENCIES = 4096
# Functions that are solved together: their search shares directions, and its arrays have this width.
SOLVED_TOGETHER = 256


class PosteriorFunctions:
    """Functions drawn from a model's posterior, without noise; `functions(inputs)` evaluates them.

    `version`: key of the model's data in this process's cache. `count`: number of functions for each target. `seed`:
    the same seed gives the same functions. `tolerance`: tolerance of the solves, max |g|. `executor`: executor of the
    solves; by default this process's threads. The executor is not closed, and not used after the constructor.
    """

    def __init__(
        self,
        model: ModelRecord,
        version: str,
        *,
        count: int,
        seed: int,
        tolerance: float = 1e-4,
        executor: BlockExecutor | None = None,
    ) -> None:
        if count < 1:
            raise InputError(f"the number of samples must be at least 1; got {count}")
        self._model, self._count, self._seed = model, count, seed
        self._kernel, self._noise = Noise.of_model(model).without_white(kernel_from_json(model.kernel))
        source = SupportInputs.of(model, version)
        self._context = BlockContext(version, source, self._kernel, model.n_samples)
        rng = np.random.default_rng(seed)
        self._drift, self._beta = Drift.from_model(model), np.zeros((0, 0))
        self._prior: PriorFunctions | None = draw_prior_functions(
            self._kernel, model.n_features, count * model.n_targets, rng
        )
        if self._prior is not None:
            self._weights = self._solved(rng, tolerance, executor)

    @property
    def is_function(self) -> bool:
        """True if the values of all calls belong to one function; otherwise only the values of one call do."""
        return self._prior is not None

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Values at standardised rows (r, d + c), in the targets' units: (r, p, count).

        Raises `InputError`: too many points for values that have to be drawn jointly. Raises `NumericalError`: values
        that overflow.
        """
        r, p, rows = len(inputs), self._model.n_targets, inputs
        inputs = self._drift.features(rows)
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            if self._prior is None:
                values = self._joint(inputs, rows)
            else:
                values = self._prior(inputs)
                if self._drift.is_fitted:
                    values += self._drift.columns_at(rows) @ self._beta
                for start in range(0, r, PIECE_ROWS):
                    piece = slice(start, start + PIECE_ROWS)
                    values[piece] += cross_products(self._context, inputs[piece], self._weights)
        values, standardisation = finite_sums(values, inputs), self._model.standardisation
        paths = values.reshape(r, p, self._count)
        scaled: FloatArray = paths * standardisation.target_std[:, None] + standardisation.target_mean[:, None]
        return scaled

    def _solved(self, rng: np.random.Generator, tolerance: float, executor: BlockExecutor | None) -> FloatArray:
        """Kbar^-1 (y - f0(X) - e) for each function, targets first: (n, p count)."""
        assert self._prior is not None
        model = self._model
        drawn = np.concatenate([self._prior(model.inputs(start, stop)) for start, stop in model.row_chunks()])
        drawn += (np.sqrt(self._noise.diagonal) * rng.standard_normal(drawn.shape).T).T
        runner = executor or LocalExecutor()
        try:
            source = self._context.source
            with BlockedKernelOperator(self._kernel, self._noise.diagonal, source, runner) as operator:
                solver = self._solver(min(drawn.shape[1], SOLVED_TOGETHER), tolerance, runner)
                for first in range(0, drawn.shape[1], SOLVED_TOGETHER):
                    columns = slice(first, first + SOLVED_TOGETHER)
                    right, stopping = drawn[:, columns], GradientInfNorm(tolerance)
                    drawn[:, columns] = solve(operator, right, solver=solver, stopping=stopping).alpha
        finally:
            if executor is None:
                runner.close()
        weights = np.asarray(np.repeat(model.alpha[:, : model.n_targets], self._count, axis=1) - drawn)
        return self._about_mean(weights) if self._drift.is_fitted else weights

    def _about_mean(self, weights: FloatArray) -> FloatArray:
        """Return the weights Kbar^-1 (y - f0(X) - e) without their part along the mean's columns; beta is kept."""
        model = self._model
        columns = np.concatenate([self._drift.columns_at(model.rows(*rows)) for rows in model.row_chunks()])
        solved = model.alpha[:, model.n_targets :]
        self._beta = np.asarray(np.linalg.solve(columns.T @ solved, columns.T @ weights), dtype=np.float64)
        return np.asarray(weights - solved @ self._beta)

    def _solver(self, together: int, tolerance: float, executor: BlockExecutor) -> Solver | None:
        """All functions in one search; the default, which may mix, where processors' arithmetic differs."""
        try:
            executor.require_one_arithmetic()
        except ClusterError:
            return None
        return ConjugateGradient(
            factor_for(self._model, self._kernel, self._noise, together, tolerance=tolerance, seed=self._seed)
        )

    def _joint(self, inputs: FloatArray, rows: FloatArray) -> FloatArray:
        """Return values at these inputs, drawn from their joint posterior: (r, p count)."""
        model, kernel = self._model, self._kernel
        n, r = model.n_samples, len(inputs)
        if n + r > MOST_JOINT_SAMPLES:
            raise InputError(
                f"functions of this kernel ({_shown(kernel)}) cannot be drawn as such, and joint draws are for at most "
                f"{MOST_JOINT_SAMPLES:,} samples and points together; got {n:,} and {r:,}. Ask for fewer points, or "
                "use a sum of linear kernels and products of stationary ones"
            )
        training = np.concatenate([model.inputs(start, stop) for start, stop in model.row_chunks()])
        covariance = np.asarray(kernel(training, training))
        covariance[np.diag_indices(n)] += self._noise.diagonal
        lower = scipy.linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        cross = np.asarray(kernel(training, inputs))
        half = scipy.linalg.solve_triangular(lower, cross, lower=True, check_finite=False)
        posterior = np.asarray(kernel(inputs, inputs)) - half.T @ half
        means = cross.T @ model.alpha
        trend = Trend.held(model.trend)
        if trend is not None:
            rests = self._drift.columns_at(rows) - means[:, model.n_targets :]
            whitened = rests @ np.array(trend.whitener).T
            posterior += whitened @ whitened.T
            means = means[:, : model.n_targets] + rests @ np.array(trend.coefficients)
        scale = float(np.max(kernel.diagonal(inputs), initial=0.0))
        for jitter in (1e-12, 1e-10, 1e-8, 1e-6):
            posterior[np.diag_indices(r)] += jitter * scale
            try:
                root = np.linalg.cholesky(posterior)
                break
            except np.linalg.LinAlgError:
                continue
        else:
            raise NumericalError("the points' posterior covariance is not positive definite; ask for fewer points")
        draws = root @ np.random.default_rng(self._seed).standard_normal((r, model.n_targets * self._count))
        return np.asarray(np.repeat(means, self._count, axis=1) + draws)


def _shown(kernel: Kernel) -> str:
    text = kernel.type_name
    return f"{text} of {', '.join(part.type_name for part in kernel.children)}" if kernel.children else text


@dataclass(frozen=True)
class PriorFunctions:
    """Independent functions; `functions(inputs)` evaluates them."""

    parts: tuple[RandomFeatures, ...]
    coefficients: tuple[FloatArray, ...]

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Values at standardised inputs (r, d): (r, count)."""
        values = np.zeros((len(inputs), self.coefficients[0].shape[1]))
        for start in range(0, len(inputs), PIECE_ROWS):
            rows = slice(start, start + PIECE_ROWS)
            for part, coefficients in zip(self.parts, self.coefficients, strict=True):
                values[rows] += part.features(inputs[rows]) @ coefficients
        return values


def draw_prior_functions(
    kernel: Kernel, n_features: int, count: int, rng: np.random.Generator, frequencies: int = FREQUENCIES
) -> PriorFunctions | None:
    """Draw functions from the prior of a kernel, without white noise.

    Parameters
    ----------
    n_features : int
        d.
    count : int
        How many functions.
    frequencies : int
        M, for each stationary part.

    Returns
    -------
    PriorFunctions or None
        None for a kernel that is not a sum of linear kernels and of products of stationary ones with known spectra.
    """
    parts = kernel.random_features(n_features, frequencies, rng)
    if parts is None:
        return None
    return PriorFunctions(tuple(parts), tuple(rng.standard_normal((part.count, count)) for part in parts))
