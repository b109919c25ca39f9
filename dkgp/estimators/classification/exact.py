"""`LSSVC`: the exact least-squares support vector machine on scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dkgp.estimators.classification.base import CalibratedClassifier, CertifiedClassifier
from dkgp.estimators.classification.labels import LabelledSet
from dkgp.estimators.fitted import Fitted
from dkgp.estimators.parameters import CheckedElsewhere, PositiveOrNone
from dkgp.estimators.settings import checked_solver
from dkgp.models import Hyperparameters
from dkgp.models.classification.certificate import DecisionCertificate
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.operators.product_error import ProductError
from dkgp.solvers import MaxPasses
from dkgp.solvers.registry import AUTO, build_solver


@dataclass(eq=False, repr=False, kw_only=True)
class LSSVC(CalibratedClassifier, CertifiedClassifier):
    """Exact least-squares support vector machine, with certified labels.

    All samples are support vectors: the decision f(x) = sum_i alpha_i k(x, x_i) + b solves the LS-SVM's linear system
    (Karsmakers, Pelckmans, De Brabanter, Van Hamme and Suykens, *Sparse conjugate directions pursuit with application
    to fixed-size kernel models*, 2011, equations 21 to 23) by dkgp's own solvers, C + 1 right-hand sides in one solve,
    out of core where the samples are. Each decision comes with a proven bound on its distance from the exact one's; a
    label whose decision exceeds its bound is *certified* to be the exact machine's.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear", whose values are tuned; or a kernel of the standardised
        features, or hyperparameters, whose values are taken as they are.
    noise_variance : float, optional
        s2 = 1 / gamma_K of the paper: the larger, the smoother. Tuned along with the kernel where it is not given; a
        `Kernel` needs it.
    optimizer : {"marginal_likelihood"} or None, default "marginal_likelihood"
        Tunes a kernel given as text, on a subset of the labels as numbers -1 and 1; with None its starting values stay.
    subset_size : int, default 2000
        Samples to tune on.
    fit_intercept : bool, default True
    class_weight : dict or "balanced", optional
        Weight of each class in the sum of squared errors, by label; "balanced" has all classes count the same.
    probability : bool, default True
        Whether `predict_proba` is wanted: a sigmoid of decisions at samples of a subset, each left out (Platt).
    tol : float, default 1e-3
        Decisions are within about so much of the exact ones when the solver stops.
    solver : str or solver, default "auto"
        A name, or one of `dkgp.solvers`.
    max_passes : float, optional
        Passes over the kernel matrix at most.
    client : distributed.Client, optional
        Workers to compute with.
    store : str, optional
        Folder or URL that all workers can read, for what has to be stored; by default a temporary folder.
    random_state : int, RandomState or None, default 0
    product_error : float or {"auto", "none"}, default "auto"
        Allowed error of an entry of a product with the kernel matrix, of a model of all samples: as of `GPRegressor`.

    Attributes
    ----------
    classes_ : (C,) ndarray
    kernel_, noise_variance_, hyperparameters_, solution_, history_, n_features_in_, feature_names_in_
        As of `GPRegressor`.
    intercept_ : (t,) ndarray
        One column for two classes, otherwise one for each.
    certificate_ : dkgp.models.classification.certificate.DecisionCertificate
    calibration_ : dkgp.models.classification.calibration.Calibration or None

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    >>> machine = LSSVC().fit(X, y)
    >>> label, certified = machine.predict([[1.0, 1.0], [1.0, -1.0]], return_certified=True)
    >>> label.tolist(), certified.tolist()
    (['same', 'other'], [True, True])
    """

    noise_variance: PositiveOrNone = None
    optimizer: Literal["marginal_likelihood"] | None = "marginal_likelihood"
    fit_intercept: bool = True
    solver: CheckedElsewhere = AUTO

    _form = "exact"
    _holds = "The error bounds of decisions are those of the solution as it stands, wider than asked for, and hold"

    def _check_settings(self, seed: int) -> None:
        checked_solver(self.solver, ProductError.of(self.product_error))

    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> Hyperparameters:
        return self._tuned(training_set, seed, self.noise_variance, None)

    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier:
        assert hyperparameters is not None
        solver = checked_solver(self.solver)
        built = None if solver == AUTO else build_solver(solver, seed=seed) if isinstance(solver, str) else solver
        settings = ExactSettings(
            solver=built,
            tolerance=self.tol,
            limits=None if self.max_passes is None else MaxPasses(self.max_passes),
            fit_intercept=self.fit_intercept,
            calibrate=self.probability,
            calibration_subset=self.subset_size,
            seed=seed,
        )
        return train_exact(data, hyperparameters, context, settings)

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        self.certificate_ = DecisionCertificate.from_json(dict(fitted.record.certificate))
