"""The solver "auto" for a problem: draw a subset, probe it, choose by the probe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkgp.data import Dataset, ModelRecord
from dkgp.data.types import FloatArray
from dkgp.kernels import Kernel
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers.auto import Choice, choose_by, choose_solver, probed_samples
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning, factor_bytes_allowed
from dkgp.solvers.conjugate.probe import Probe


def choose_solver_for(
    problem: Problem,
    *,
    columns: int | None = None,
    tolerance: float = 1e-4,
    double: bool = False,
    product_error: ProductError = EVERY_ENTRY,
    memory_bytes: int | None = None,
    one_arithmetic: bool = True,
    seed: int = 0,
    probe: Probe | None = None,
) -> Choice:
    """Choose a solver for a problem by at most `PROBE_SAMPLES` of its rows; see `dkgp.solvers.choose_solver`.

    Parameters
    ----------
    columns : int, optional
        Right-hand sides; by default the problem's.
    tolerance, double, one_arithmetic, product_error, seed
        As for `choose_solver`.
    memory_bytes : int, optional
        Memory limit of the run; a factor may take a third of it, and `factor_bytes_allowed` at most.
    probe : Probe, optional
        Probe of the problem with these columns, tolerance and seed.
    """
    share = factor_bytes_allowed(problem.dataset.n_samples)
    if memory_bytes is not None:
        share = min(share, memory_bytes // 3)
    return choose_by(
        probe or probe_of(problem, columns=columns, tolerance=tolerance, seed=seed),
        double=double,
        memory_bytes=max(1, share),
        one_arithmetic=one_arithmetic,
        product_error=product_error,
    )


def probe_of(problem: Problem, *, columns: int | None = None, tolerance: float = 1e-4, seed: int = 0) -> Probe:
    """Probe a problem as the choice does; `Method.expected` projects a named solver's iterations from it."""
    n, t = problem.dataset.n_samples, problem.columns if columns is None else columns
    noise = problem.noise.checked(n).typical
    return Probe(problem.kernel, noise, _probed(problem.dataset, seed), n, t, tolerance=tolerance, seed=seed)


def factor_for(
    samples: Dataset | ModelRecord,
    kernel: Kernel,
    noise: Noise,
    t: int,
    *,
    tolerance: float = 1e-4,
    memory_bytes: int | None = None,
    seed: int = 0,
) -> FactorPreconditioning:
    """Choose the factor for t right-hand sides at once: that of "auto", or its own sizes where auto takes no factor.

    `memory_bytes` limits the factor; the others are as for `choose_solver`.
    """
    factor = FactorPreconditioning(memory_bytes=memory_bytes, seed=seed)
    kernel, noise = noise.without_white(kernel)
    choice = choose_solver(
        kernel,
        noise.typical,
        _probed(samples, seed),
        samples.n_samples,
        t,
        tolerance=tolerance,
        memory_bytes=memory_bytes,
        seed=seed,
    )
    return replace(factor, **choice.options) if choice.solver == "pcg" else factor


def _probed(samples: Dataset | ModelRecord, seed: int) -> FloatArray:
    n = samples.n_samples
    return samples.input_rows(draw_subset(n, probed_samples(n), seed) if n > 1 else np.zeros(1, np.int64))
