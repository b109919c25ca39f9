"""`GaussianProcessClassifier`: scikit-learn's class, name for name, over dkgp's dense algebra."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from dkgp.errors import InputError, NumericalError
from dkgp.estimators.drop_in.dense import (
    OVERFLOWING,
    asked_for,
    average_logistic,
    evidence_gradient,
    finite_predictions,
    posterior_mode,
    search,
    searched_rows,
    tree_under,
)
from dkgp.estimators.drop_in.parameters import (
    GIBIBYTE,
    KERNEL,
    OPTIMIZER,
    OneVsOneClassifier,
    OneVsRestClassifier,
    inputs_to_predict,
    require_dense,
    solve_bytes,
    training_samples,
)
from dkgp.estimators.drop_in.parameters import kernels as sk
from dkgp.estimators.drop_in.tree import Node, Pair, filled, tree_of
from dkgp.estimators.inputs import label_values, require_same_order, weights_of_score
from dkgp.estimators.parameters import Count, RandomState, Restarts, check_parameters
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
        """Set `kernel_` to the values of the highest evidence, and return that evidence."""
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
        """log Z and its gradient (q,), which is zero unless `gradient` asks for it."""
        if not gradient:
            return self._mode(self._matrix(tree, pair), labels).evidence, np.zeros(tree.size)
        dense, pull = tree.linearised(pair)
        K = np.array(np.broadcast_to(dense, pair.shape), order="C")
        K.reshape(-1)[:: len(K) + 1] += tree.noise(pair.left)
        mode = self._mode(K, labels)
        return mode.evidence, evidence_gradient(tree, pair, pull, K, labels, mode)

    def _matrix(self, tree: Node, pair: Pair) -> FloatArray:
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
        """K(X*, X), (r, n), in C order."""
        return np.ascontiguousarray(tree_of(self.kernel_).matrix(Pair(X, self.X_train_)))

    def _mean(self, columns: FloatArray) -> FloatArray:
        return finite_predictions(columns @ (self.y_train_ - self.pi_))

    @OVERFLOWING
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        """Return the likelihood; see `GaussianProcessClassifier`."""
        values = asked_for(self, theta, eval_gradient)
        if values is None:
            return self.log_marginal_likelihood_value_
        tree = tree_under(self.kernel_, values, clone=clone_kernel)
        pair, labels = Pair(self.X_train_, self.X_train_), self.y_train_.astype(np.float64)
        value, gradient = self._evidence(tree, pair, labels, gradient=bool(eval_gradient))
        return (np.float64(value), gradient) if eval_gradient else np.float64(value)


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianProcessClassifier(LaplaceParameters):
    """Gaussian process classification with the parameters and meanings of scikit-learn's class of this name.

    The class uses Laplace's approximation with the logistic likelihood, in memory. If the kernel matrix does not fit
    into `dense_bytes`, use `dkgp.GPClassifier`, which finds the same mode without the matrix.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        By default 1.0 * RBF(1.0), which does not change.
    optimizer, n_restarts_optimizer, copy_X_train, random_state
        See `GaussianProcessRegressor`.
    max_iter_predict : int, default 100
        Largest number of Newton steps.
    warm_start : bool, default False
        Start Newton's method at its last result.
    multi_class : {"one_vs_rest", "one_vs_one"}, default "one_vs_rest"
        Treatment of three or more classes. "one_vs_one" has no probabilities.
    n_jobs : int, optional
        Number of processes for three or more classes, as in joblib.

    Attributes
    ----------
    classes_, n_classes_, n_features_in_, feature_names_in_
    base_estimator_
        The classifier for two classes, else scikit-learn's `OneVsRestClassifier` or `OneVsOneClassifier`.
    kernel_ : sklearn.gaussian_process.kernels.Kernel
        The tuned kernel; for three or more classes a `CompoundKernel`.
    log_marginal_likelihood_value_ : float
        Value for `kernel_`; for three or more classes the mean over the classes.
    dense_bytes : int
        Attribute of the class: memory limit of dense algebra, 2 GiB, which is enough for 9,400 samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> model = GaussianProcessClassifier().fit(X, X[:, 0] * X[:, 1] > 0.0)
    >>> near, far = model.predict_proba([[1.0, 1.0], [40.0, 40.0]])[:, 1]
    >>> bool(near > 0.7), bool(abs(far - 0.5) < 0.01)
    (True, True)
    """

    multi_class: Literal["one_vs_rest", "one_vs_one"] = "one_vs_rest"
    n_jobs: int | None = None

    dense_bytes: ClassVar[int] = 2 * GIBIBYTE

    def fit(self, X: Any, y: Any) -> Self:
        """Search the kernel's numbers, and train.

        Parameters
        ----------
        X : (n, d) array_like, or a list of objects that the kernel takes
        y : (n,) array_like
            Labels of two classes or more.

        Returns
        -------
        GaussianProcessClassifier
            This one.

        Raises
        ------
        InputError
            A `ValueError`: parameters or data that cannot be worked with.
        MemoryBudgetError
            More samples than `dense_bytes` allows.
        """
        check_parameters(self)
        if isinstance(self.kernel, sk.CompoundKernel):
            raise InputError("kernel cannot be a CompoundKernel: give one kernel, which every class gets a copy of")
        X, y = training_samples(self, X, label_values(y), multi_output=False)
        instead = "Use dkgp.GPClassifier, which solves for the same mode without the matrix, or raise it"
        require_dense("the classifier", len(y), solve_bytes(len(y)), self.dense_bytes, instead)
        self.classes_ = np.unique(y)
        self.n_classes_ = self.classes_.size
        if self.n_classes_ == 1:
            raise InputError(
                "GaussianProcessClassifier requires 2 or more distinct classes; got 1 class (only class "
                f"{self.classes_[0]} is present)"
            )
        binary: Any = BinaryGaussianProcessClassifier(
            **{each.name: getattr(self, each.name) for each in fields(LaplaceParameters)}, dense_bytes=self.dense_bytes
        )
        if self.n_classes_ > 2:
            several = OneVsRestClassifier if self.multi_class == "one_vs_rest" else OneVsOneClassifier
            binary = several(binary, n_jobs=self.n_jobs)
        self.base_estimator_ = binary.fit(X, y)
        self.log_marginal_likelihood_value_ = np.mean([part.log_marginal_likelihood() for part in self._parts()])
        return self

    def _parts(self) -> list[Any]:
        """The binary classifiers."""
        return [self.base_estimator_] if self.n_classes_ == 2 else list(self.base_estimator_.estimators_)

    @property
    def kernel_(self) -> Any:
        """The kernel with the numbers that were found, or a `CompoundKernel` of those of all classes."""
        if not hasattr(self, "base_estimator_"):
            raise AttributeError("kernel_ is there once the estimator is fitted")
        kernels = [part.kernel_ for part in self._parts()]
        return kernels[0] if self.n_classes_ == 2 else sk.CompoundKernel(kernels)

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(self, X: Any) -> Any:
        """Predict labels, (r,), of (r, d) inputs or a list of objects that the kernel takes."""
        check_is_fitted(self)
        return self.base_estimator_.predict(inputs_to_predict(self, X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right labels.

        Parameters
        ----------
        sample_weight : (r,) array_like, optional
        """
        require_same_order(X, y=y)
        return float(super().score(X, label_values(y), weights_of_score(X, sample_weight)))

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the classes, (r, C), in the order of `classes_`.

        By scikit-learn's approximation of the average, within 5e-4 of it. `dkgp.GPClassifier` proves its own.

        Raises
        ------
        InputError
            Classes one against one, which have none.
        """
        check_is_fitted(self)
        if self.n_classes_ > 2 and self.multi_class == "one_vs_one":
            raise InputError(
                "one_vs_one multi-class mode does not support predicting probability estimates. Use one_vs_rest mode "
                "instead."
            )
        return np.asarray(self.base_estimator_.predict_proba(inputs_to_predict(self, X)))

    def latent_mean_and_variance(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the latent function of two classes, (r,) each.

        Raises
        ------
        InputError
            More than two classes.
        """
        check_is_fitted(self)
        if self.n_classes_ > 2:
            raise InputError(
                "Returning the mean and variance of the latent function f is only supported for binary classification, "
                f"received {self.n_classes_} classes."
            )
        mean, variance = self.base_estimator_.latent_mean_and_variance(inputs_to_predict(self, X))
        return mean, variance

    # ------------------------------------------------------------------------------------------------------ likelihood

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        """Approximate log marginal likelihood under other numbers of the kernel; of several classes, the mean.

        Parameters
        ----------
        theta : (q,) array_like, optional
            Logarithms, as `kernel_.theta`; of several classes q for all of them, or q for each. By default the value
            for `kernel_` is returned as it was found.
        eval_gradient : bool
            Also the gradient (q,); of two classes.
        clone_kernel : bool
            If False, the classifiers' kernels themselves take these numbers.
        """
        values, parts = asked_for(self, theta, eval_gradient), self._parts()
        if values is None:
            return self.log_marginal_likelihood_value_
        if self.n_classes_ == 2:
            return parts[0].log_marginal_likelihood(values, eval_gradient, clone_kernel=clone_kernel)
        if eval_gradient:
            raise NotImplementedError("Gradient of log-marginal-likelihood not implemented for multi-class GPC.")
        q = parts[0].kernel_.n_dims
        if len(values) not in (q, q * len(parts)):
            raise InputError(
                f"Shape of theta must be either {q} or {q * len(parts)}. Obtained theta with shape {len(values)}."
            )
        by_part = [values] * len(parts) if len(values) == q else np.split(values, len(parts))
        return np.mean(
            [
                part.log_marginal_likelihood(own, clone_kernel=clone_kernel)
                for part, own in zip(parts, by_part, strict=True)
            ]
        )
