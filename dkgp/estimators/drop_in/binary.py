"""A Gaussian process classifier of two classes in memory, which that of several is made of."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Self

import numpy as np

from dkgp.errors import InputError, NumericalError
from dkgp.estimators.drop_in.laplace import average_logistic, evidence_gradient, posterior_mode
from dkgp.estimators.drop_in.leaves import tree_of
from dkgp.estimators.drop_in.likelihood import OVERFLOWING, asked_for, search, tree_under
from dkgp.estimators.drop_in.parameters import GIBIBYTE, KERNEL, OPTIMIZER, searched_rows
from dkgp.estimators.drop_in.posterior import finite_predictions
from dkgp.estimators.drop_in.theirs import kernels as sk
from dkgp.estimators.drop_in.tree import Node, Pair, filled
from dkgp.estimators.parameters import Count, RandomState, Restarts
from dkgp.estimators.scikit_learn import (
    BaseEstimator,
    ClassifierMixin,
    TakesSparse,
    check_is_fitted,
    check_random_state,
    clone,
)
from dkgp.models.tuning.dense_algebra import solve_half
from dkgp.operators.base import FloatArray


@dataclass(eq=False, repr=False)
class LaplaceParameters(TakesSparse, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Parameters of classifiers of two classes and of several, which `GaussianProcessClassifier` documents."""

    kernel: Annotated[Any, KERNEL] = None
    _: KW_ONLY
    optimizer: Annotated[Any, OPTIMIZER] = "fmin_l_bfgs_b"
    n_restarts_optimizer: Restarts = 0
    max_iter_predict: Count = 100
    warm_start: bool = False
    copy_X_train: bool = True  # noqa: N815
    random_state: RandomState = None


@dataclass(eq=False, repr=False, kw_only=True)
class BinaryGaussianProcessClassifier(LaplaceParameters):
    """Two classes by Laplace's approximation; parameters and attributes as of `GaussianProcessClassifier`.

    Attributes
    ----------
    y_train_ : (n,) ndarray
        0 or 1, places in `classes_`.
    pi_, W_sr_ : (n,) ndarray
        Probabilities at the mode, and the square roots of their variances.
    L_ : (n, n) ndarray
        Lower Cholesky factor of I + W^1/2 K W^1/2.
    """

    dense_bytes: int = 2 * GIBIBYTE

    @OVERFLOWING
    def fit(self, X: Any, y: Any) -> Self:
        """Search the kernel's numbers, and find the mode; inputs and labels are checked already."""
        # A constant of one and a length scale of one, which nothing is to be searched of.
        default = sk.ConstantKernel(1.0, "fixed") * sk.RBF(1.0, "fixed")
        self.kernel_ = default if self.kernel is None else clone(self.kernel)
        rng = check_random_state(self.random_state)
        self.X_train_ = np.copy(X) if self.copy_X_train else X
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise InputError(f"expected labels of 2 classes; got {len(self.classes_)}: {self.classes_.tolist()}")
        self.y_train_ = codes
        if self.optimizer is not None and self.kernel_.n_dims > 0:
            self.log_marginal_likelihood_value_ = np.float64(self._search(rng))
        pair = Pair(self.X_train_, self.X_train_)
        mode = self._mode(self._matrix(tree_of(self.kernel_), pair), codes.astype(np.float64))
        self.pi_, self.W_sr_, self._factor = mode.probabilities, mode.root, mode.factor
        if self.optimizer is None or self.kernel_.n_dims == 0:
            self.log_marginal_likelihood_value_ = np.float64(mode.evidence)
        return self

    def _search(self, rng: Any) -> float:
        """Give `kernel_` the numbers of the highest evidence, and return that."""
        tree, n, X, y = tree_of(self.kernel_), len(self.y_train_), self.X_train_, self.y_train_
        rows = searched_rows(n, tree, self.dense_bytes, rng)
        if rows is not None:
            rows = np.union1d(rows, [int(np.argmax(y)), int(np.argmin(y))])  # both classes
            X, y = np.asarray(X)[rows], y[rows]
        pair, labels = Pair(X, X), y.astype(np.float64)

        def evidence(tree: Node, *, gradient: bool) -> tuple[float, FloatArray]:
            try:
                return self._evidence(tree, pair, labels, gradient=gradient)
            except NumericalError:  # a step too far: nowhere to go to
                return -math.inf, np.zeros(tree.size)

        return search(self, tree, evidence, rng)

    def _evidence(self, tree: Node, pair: Pair, labels: FloatArray, *, gradient: bool) -> tuple[float, FloatArray]:
        """log Z, and its gradient (q,), of zeros where none is asked for."""
        if not gradient:
            return self._mode(self._matrix(tree, pair), labels).evidence, np.zeros(tree.size)
        dense, pull = tree.linearised(pair)
        K = np.array(np.broadcast_to(dense, pair.shape), order="C")
        K.reshape(-1)[:: len(K) + 1] += tree.noise(pair.left)
        mode = self._mode(K, labels)
        return mode.evidence, evidence_gradient(tree, pair, pull, K, labels, mode)

    def _matrix(self, tree: Node, pair: Pair) -> FloatArray:
        """K with the kernel's own noise."""
        K = tree.matrix(pair)
        K.reshape(-1)[:: len(K) + 1] += tree.noise(pair.left)
        return K

    def _mode(self, K: FloatArray, labels: FloatArray) -> Any:
        cached = getattr(self, "_latent", None) if self.warm_start else None
        start = cached if cached is not None and cached.shape == labels.shape else np.zeros(len(labels))
        mode = posterior_mode(K, labels, start, self.max_iter_predict)
        self._latent = mode.latent
        return mode

    @property
    def L_(self) -> FloatArray:  # noqa: N802  scikit-learn's name
        """Lower Cholesky factor of B, (n, n)."""
        if not hasattr(self, "_factor"):
            raise AttributeError("L_ is there once the estimator is fitted")
        return np.tril(self._factor)

    @OVERFLOWING
    def predict(self, X: Any) -> Any:
        """The class on whose side of zero the latent mean lies, (r,)."""
        check_is_fitted(self)
        return np.where(self._mean(self._columns(X)) > 0.0, self.classes_[1], self.classes_[0])

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of both classes, averaged over the latent posterior: (r, 2)."""
        second = average_logistic(*self.latent_mean_and_variance(X))
        return np.column_stack([1.0 - second, second])

    @OVERFLOWING
    def latent_mean_and_variance(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the latent function's approximate posterior, (r,) each (algorithm 3.2)."""
        check_is_fitted(self)
        tree, columns = tree_of(self.kernel_), self._columns(X)
        mean = self._mean(columns)
        columns *= self.W_sr_
        solve_half(self._factor, columns.T)
        prior = filled(tree.diagonal(X) + tree.noise(X), (len(X),))
        return mean, finite_predictions(prior - np.einsum("ij,ij->i", columns, columns))

    def _columns(self, X: Any) -> FloatArray:
        """K(X*, X), (r, n), row by row."""
        return np.ascontiguousarray(tree_of(self.kernel_).matrix(Pair(X, self.X_train_)))

    def _mean(self, columns: FloatArray) -> FloatArray:
        return finite_predictions(columns @ (self.y_train_ - self.pi_))

    @OVERFLOWING
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        """As of `GaussianProcessClassifier`."""
        values = asked_for(self, theta, eval_gradient)
        if values is None:
            return self.log_marginal_likelihood_value_
        tree = tree_under(self.kernel_, values, clone=clone_kernel)
        pair, labels = Pair(self.X_train_, self.X_train_), self.y_train_.astype(np.float64)
        value, gradient = self._evidence(tree, pair, labels, gradient=bool(eval_gradient))
        return (np.float64(value), gradient) if eval_gradient else np.float64(value)
