"""Parameters, inputs and memory limit of the drop-in estimators, and the classes of scikit-learn that they need."""

from __future__ import annotations

from typing import Any

from dkgp.errors import MemoryBudgetError, MissingExtraError
from dkgp.estimators.inputs import require_same_order
from dkgp.estimators.parameters import Takes
from dkgp.estimators.scikit_learn import validate_data
from dkgp.models.memory import mib

try:
    from sklearn.gaussian_process import kernels as kernels
    from sklearn.multiclass import OneVsOneClassifier as OneVsOneClassifier
    from sklearn.multiclass import OneVsRestClassifier as OneVsRestClassifier
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn", "an estimator such as GaussianProcessRegressor") from error

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
    """Peak memory of a Cholesky factor and its matrix."""
    return 8 * n * n * _SOLVE_ARRAYS


def require_dense(what: str, n: int, needed: int, dense_bytes: int, instead: str) -> None:
    """Refuse work that takes more memory than the limit of dense algebra, in numbers: `MemoryBudgetError`."""
    if needed > dense_bytes:
        raise MemoryBudgetError(
            f"{what} of {n:,} samples takes {mib(needed)}; the class attribute `dense_bytes` allows "
            f"{mib(dense_bytes)}. {instead}"
        )
