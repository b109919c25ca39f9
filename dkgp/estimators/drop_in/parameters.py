"""Inputs and memory of both estimators of this room, checked, and what their parameters take."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from dkgp.errors import MemoryBudgetError
from dkgp.estimators.drop_in.theirs import kernels
from dkgp.estimators.drop_in.tree import Node
from dkgp.estimators.parameters import Takes
from dkgp.estimators.scikit_learn import validate_data
from dkgp.estimators.values import require_same_order
from dkgp.models.memory import mib
from dkgp.models.tuning.tune import DEFAULT_SUBSET

GIBIBYTE = 2**30
# The kernel matrix, that its factor takes the place of, distances, and a part of a sum at a time.
_SOLVE_ARRAYS = 3


KERNEL = Takes(
    "a kernel of sklearn.gaussian_process.kernels or None",
    lambda value: value is None or isinstance(value, kernels.Kernel),
    ". Expressions and dkgp's kernels are for dkgp.GPRegressor and dkgp.GPClassifier; "
    "dkgp.estimators.drop_in.translation.to_scikit_learn makes one of the other",
)
OPTIMIZER = Takes(
    "'fmin_l_bfgs_b', a function or None",
    lambda value: value is None or callable(value) or (isinstance(value, str) and value == "fmin_l_bfgs_b"),
)


def takes_vectors(kernel: Any) -> bool:
    """True if a kernel's inputs are rows of numbers."""
    return kernel is None or bool(kernel.requires_vector_input)


def inputs_to_predict(estimator: Any, X: Any) -> Any:
    """Inputs of `predict`, checked as scikit-learn has it; of a kernel of other things as they are."""
    if takes_vectors(estimator.kernel):
        return validate_data(estimator, X, ensure_2d=True, dtype="numeric", reset=False)
    return validate_data(estimator, X, ensure_2d=False, dtype=None, reset=False)


def training_samples(estimator: Any, X: Any, y: Any, **how: Any) -> tuple[Any, Any]:
    """Inputs and targets of `fit`, checked as scikit-learn has it."""
    require_same_order(X, y=y)
    vectors = takes_vectors(estimator.kernel)
    dtype = "numeric" if vectors else None
    pair: tuple[Any, Any] = validate_data(estimator, X, y, ensure_2d=vectors, dtype=dtype, **how)
    return pair


def solve_bytes(n: int) -> int:
    """Peak memory of a Cholesky factor and what it is made from."""
    return 8 * n * n * _SOLVE_ARRAYS


def search_bytes(n: int, tree: Node) -> int:
    """Peak memory of an evaluation of the likelihood with its gradient: what the kernel holds, and two matrices."""
    return 8 * n * n * (tree.arrays + 2)


def searched_rows(n: int, tree: Node, dense_bytes: int, rng: Any) -> Any:
    """Rows of the samples that hyperparameters are searched on: None for all, where they fit, else drawn.

    Warns of a subset with a `UserWarning` that says why.
    """
    needed = search_bytes(n, tree)
    if needed <= dense_bytes:
        return None
    count = max(2, min(DEFAULT_SUBSET, math.isqrt(dense_bytes * n * n // needed)))
    warnings.warn(
        f"hyperparameters are searched on {count:,} of {n:,} samples, drawn by `random_state`; on all of them an "
        f"evaluation would take {mib(needed)}, and the class attribute `dense_bytes` allows {mib(dense_bytes)}",
        stacklevel=4,
    )
    return np.sort(rng.choice(n, size=count, replace=False))


def require_dense(what: str, n: int, needed: int, dense_bytes: int, instead: str) -> None:
    """Refuse with numbers what would take more memory than is meant for dense algebra: `MemoryBudgetError`."""
    if needed > dense_bytes:
        raise MemoryBudgetError(
            f"{what} of {n:,} samples takes {mib(needed)}; the class attribute `dense_bytes` allows "
            f"{mib(dense_bytes)}. {instead}"
        )
