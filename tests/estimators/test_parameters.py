"""Every parameter of every estimator and function, under values of every sort: a fit, or an error that names it."""

from __future__ import annotations

import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone, is_classifier

import dkgp.estimators
from dkgp import GPRegressor
from dkgp.errors import InputError
from dkgp.estimators import expected_improvement, log_expected_improvement, upper_confidence_bound
from dkgp.models.tuning.subsets import plan_subsets

RNG = np.random.default_rng(5)
X = RNG.normal(size=(16, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=16)
LABELS = np.where(np.arange(16) % 2 == 0, "even", "odd")
# Other parameters, so that a fit takes milliseconds.
QUICK: dict[str, dict[str, Any]] = {
    "ConjugateDirectionsPursuit": {},
    "FixedSizeLSSVC": {"search": "none", "pool": 6, "folds": 2},
    "GPClassifier": {"optimizer": None},
    "GPRegressor": {"optimizer": None},
    "GaussianProcessClassifier": {"optimizer": None},
    "GaussianProcessRegressor": {"optimizer": None, "alpha": 0.1},
    "KernelLogisticClassifier": {"optimizer": None},
    "LSSVC": {"optimizer": None},
    "SparseGPRegressor": {"optimizer": None, "basis_size": 5},
}
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, float("nan"), float("inf"), "text", "tcp://127.0.0.1:1"),
    *(np.int64(5), 5.0, 5.5, [], {}, object()),
)
EACH = [
    (name, parameter) for name, quick in QUICK.items() for parameter in getattr(dkgp.estimators, name)().get_params()
]
# By what they take, beyond None: one of these alone is taken of `VALUES`, and its like in Python does the same.
WHOLE_NUMBERS = {
    *("candidates", "folds", "max_basis", "max_iter_predict", "n_basis", "n_restarts_optimizer", "neighbours"),
    *("per_round", "pool", "score_rows", "screen", "search_samples", "subset_size"),
}
POSITIVE = {"gap", "max_passes", "noise_variance", "regularisation", "target_distance", "tol", "variance_gap"}
SWITCHES = {
    *("certify", "copy_X_train", "exhaustive", "fit_intercept", "isotropic", "joint", "normalize_y", "probability"),
    *("warm_start", "with_variances"),
}
CHOICES = {
    *("cardinality", "choice", "intercept", "likelihood", "link", "method", "multi_class", "noise_model", "optimizer"),
    *("prototypes", "search", "solver", "kernel", "client"),
}


def estimator(name: str) -> Any:
    return getattr(dkgp.estimators, name)(**QUICK[name])


def fit(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, LABELS if is_classifier(model) else Y)


def taken(name: str, parameter: str) -> list[Any]:
    """The values that a fit and a prediction go through with; all others end in an error that names the parameter."""
    values = []
    for value in VALUES:
        model = estimator(name).set_params(**{parameter: value})
        try:
            fit(model).predict(X[:2])
        except InputError as error:
            if parameter not in str(error):
                pytest.fail(f"{value!r}: {error}")
        else:
            values.append(value)
    return values


def test_every_estimator_is_tried() -> None:
    public = [getattr(dkgp.estimators, name) for name in dkgp.estimators.__all__]
    classes = {one.__name__ for one in public if isinstance(one, type) and issubclass(one, BaseEstimator)}
    assert classes == set(QUICK)


@pytest.mark.spread(60)
@pytest.mark.parametrize(("name", "parameter"), EACH)
def test_a_parameter_is_taken_or_named(
    name: str, parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "text" is a folder for `store`
    others = [value for value in taken(name, parameter) if value is not None]
    if parameter in WHOLE_NUMBERS:
        assert [value for value in others if value != 0] in ([5], []), others
        assert all(type(value) in (int, np.int64) for value in others)
    elif parameter in POSITIVE:
        assert others in ([5, 5.0, 5.5], [0, 5, 5.0, 5.5], []), others
    elif parameter in SWITCHES:
        assert others in ([True], []), others
    elif parameter == "mean":
        assert others == [-1, 0, 5, 5.0, 5.5], others  # known means
    elif parameter == "covariates":
        assert others == [[]], others
    elif parameter in CHOICES:
        assert others == [], others
    else:
        assert not any(isinstance(value, list) for value in others), others


def test_a_range_is_told() -> None:
    for settings, words in (
        ({"subset_size": 50.0}, r"^subset_size= takes a whole number from 2; got 50\.0$"),
        ({"subset_size": 1}, r"^subset_size= takes a whole number from 2; got 1$"),
        ({"tol": None}, r"^tol= takes a finite number above 0; got None$"),
        ({"max_passes": 0}, r"^max_passes= takes a finite number above 0 or None; got 0$"),
        ({"client": "tcp://127.0.0.1:8786"}, r"^client= takes a distributed.Client, as by distributed.Client\('tcp"),
        (
            {"random_state": -1},
            r"^random_state= takes a whole number from 0, a numpy.random.RandomState or None; got -1",
        ),
        ({"with_variances": "no"}, r"^with_variances= takes True or False; got 'no'$"),
        ({"noise_model": "cubic"}, r"^noise_model= takes 'none', 'linear', 'gp' or 'auto'; got 'cubic'$"),
        ({"kernel": 3}, r"^kernel= takes an expression such as 'rbf', a dkgp.kernels.Kernel or .*; got 3$"),
        ({"store": b"here"}, r"^store= takes a folder or URL, or None; got b'here'$"),
        ({"solver": "x" * 200}, r"solver= takes one of"),
    ):
        with pytest.raises(InputError, match=words):
            estimator("GPRegressor").set_params(**settings).fit(X, Y)


@pytest.mark.parametrize(
    "name",
    [pytest.param("FixedSizeLSSVC", marks=pytest.mark.long), "GPClassifier", "KernelLogisticClassifier", "LSSVC"],
)
def test_weights_of_classes_are_numbers(name: str) -> None:
    for weight in ("much", None, [1.0], -1.0, 0, float("nan"), object()):
        with pytest.raises(InputError, match=r"class_weight\['even'\]= takes a finite number above 0; got"):
            fit(estimator(name).set_params(class_weight={"even": weight}))
    fit(estimator(name).set_params(class_weight={"even": np.float32(2.0)}))


def test_values_that_mean_nothing_in_a_fit_are_refused_all_the_same() -> None:
    # A subset is drawn by a search alone, a limit of passes by some solvers alone.
    for name, settings in (("LSSVC", {"subset_size": "many"}), ("SparseGPRegressor", {"largest_basis": 0.5})):
        with pytest.raises(InputError, match=f"{next(iter(settings))}= takes a whole number"):
            fit(estimator(name).set_params(**settings))


def test_numbers_of_numpy_are_numbers() -> None:
    ours = GPRegressor("rbf", subset_size=14, n_restarts_optimizer=1, tol=0.001, random_state=3)
    theirs = GPRegressor(
        "rbf",
        subset_size=np.int64(14),
        n_restarts_optimizer=np.uint8(1),
        tol=np.float64(0.001),
        random_state=np.int32(3),
        with_variances=np.bool_(False),
    )
    np.testing.assert_array_equal(fit(theirs).predict(X), fit(ours).predict(X))
    assert theirs.hyperparameters_.subset_size == ours.hyperparameters_.subset_size == 14
    copies = clone(theirs), pickle.loads(pickle.dumps(theirs))
    assert all(copy.get_params() == ours.get_params() for copy in copies)


def test_numbers_of_numpy_are_kept(tmp_path: Path) -> None:
    model = fit(GPRegressor(subset_size=np.int64(14), tol=np.float32(0.5), random_state=np.int64(3)))
    model.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    assert (loaded.subset_size, loaded.tol, loaded.random_state) == (14, 0.5, 3)
    assert type(loaded.subset_size) is int


def test_parameters_of_methods() -> None:
    model, prior = fit(estimator("GPRegressor")), estimator("GaussianProcessRegressor")
    for n_samples in (None, 0, -1, 2.0, "two", True):
        for one in (model, prior):
            with pytest.raises(InputError, match="n_samples= takes a whole number from 1; got"):
                one.sample_y(X[:2], n_samples=n_samples)
    for random_state in ("seed", -1, 1.5, np.random.default_rng(0)):
        for one in (model, prior):
            with pytest.raises(InputError, match="random_state= takes a whole number from 0"):
                one.sample_y(X[:2], random_state=random_state)
    for url in (None, 5, object(), ""):
        with pytest.raises(InputError, match="url= takes a path or URL; got"):
            model.save(url)
        with pytest.raises(InputError, match="url= takes a path or URL; got"):
            GPRegressor.load(url)
    with pytest.raises(InputError, match="client= takes a distributed.Client"):
        GPRegressor.load("nowhere.zarr", client="tcp://127.0.0.1:1")
    for parameter, value in (("variance_gap", "wide"), ("client", "tcp://127.0.0.1:1"), ("with_variances", 1)):
        with pytest.raises(InputError, match=f"{parameter}= takes"):
            clone_of(model).set_params(**{parameter: value}).predict(X[:2], return_std=True)
    with pytest.raises(InputError, match="max_passes= takes"):
        clone_of(model).set_params(max_passes="all").update(X, Y)
    pursuit = fit(estimator("ConjugateDirectionsPursuit"))
    for k in (-1, 1.0, "all", None):
        with pytest.raises(InputError, match="k= takes a whole number from 0; got"):
            pursuit.coef_at(k)


def clone_of(model: Any) -> Any:
    """A fitted copy."""
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("function", [expected_improvement, log_expected_improvement, upper_confidence_bound])
def test_parameters_of_functions(function: Any) -> None:
    predicted = fit(estimator("GPRegressor")).predict_gradients(X[:3], return_std=True)
    number = list(inspect.signature(function).parameters)[1]
    for value in VALUES:
        if isinstance(value, int | float) and np.isfinite(value) and not isinstance(value, bool):
            continue
        if value is None or not isinstance(value, np.integer):
            with pytest.raises(InputError, match=f"{number}= takes a finite number"):
                function(predicted, value)
        with pytest.raises(InputError, match="predicted= takes the result of predict_gradients"):
            function(value, 1.0)
    assert np.isfinite(function(predicted, np.float32(1.0)).value).all()


@pytest.mark.parametrize(("subset", "subsets"), [(50.0, 1), ("50", 1), (50, 2.0), (None, 1)])
def test_subsets_are_whole_numbers(subset: Any, subsets: Any) -> None:
    with pytest.raises(InputError, match="subset and subsets must be whole numbers; got"):
        plan_subsets(100, subset, subsets=subsets)
