"""Hashes of a factor's order and products, and of a solve with it, printed for `test_processors`."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, GradientInfNorm, solve

N, D, KERNEL = 700, 5, SquaredExponential((0.3,) * 5)


def report() -> dict[str, object]:
    """Return the bits for little noise, and for less noise, which takes float64."""
    rng = np.random.default_rng(0)
    X, y, r = rng.standard_normal((N, D)), rng.standard_normal((N, 1)), rng.standard_normal((N, 20))
    executor, hashes, largest = LocalExecutor(2), {}, 0.0
    for noise in (0.05, 1e-6):
        operator = BlockedKernelOperator(KERNEL, noise, ArrayInputs(X), executor)
        factor = VecchiaFactor(operator, 80, 40, np.arange(0, N, 50))
        solution = solve(
            operator, y, solver=ConjugateGradient(FactorPreconditioning(80, 40, 14)), stopping=GradientInfNorm(1e-4)
        )
        true = (KERNEL(X, X) + noise * np.eye(N)) @ solution.alpha - y
        largest = max(largest, float(np.abs(true).max()))
        points = factor.recipe.leaves.points()
        halos = np.concatenate([points.halo(leaf, 80) for leaf in range(factor.recipe.leaves.n_leaves)])
        points._searched = 3  # leaves: too few to be sure
        limited = np.concatenate([points.halo(leaf, 80) for leaf in range(factor.recipe.leaves.n_leaves)])
        arrays = {
            "order": points.order,
            "halos": halos,
            "limited": limited,
            "few": factor.apply(r[:, :2]),
            "many": factor.apply(r),
        }
        for name, array in {**arrays, "alpha": solution.alpha}.items():
            hashes[f"{name} {noise}"] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    executor.close()
    return {"arithmetic": process_arithmetic().to_json(), "hashes": hashes, "gradient": largest}


if __name__ == "__main__":
    print(json.dumps(report()))
