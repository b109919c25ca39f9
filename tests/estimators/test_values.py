"""Inputs, targets, labels and weights of every container: numbers, or words on why they are none, and in one order."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.gaussian_process.kernels import RBF

import dkgp.estimators
from dkgp.errors import InputError, InputTypeError
from dkgp.kernels import SquaredExponential

N = 24
KERNEL = SquaredExponential((0.8, 0.3))
SETTINGS: dict[str, dict[str, Any]] = {
    "ConjugateDirectionsPursuit": {"n_nonzero_coefs": 1},
    "FixedSizeLSSVC": {"kernel": KERNEL, "noise_variance": 0.1, "pool": 8, "folds": 2, "search": "none"},
    "GPClassifier": {"kernel": KERNEL},
    "GPRegressor": {"kernel": KERNEL, "noise_variance": 0.01},
    "GaussianProcessClassifier": {"kernel": RBF(1.0, "fixed")},
    "GaussianProcessRegressor": {"kernel": RBF(1.0, "fixed"), "alpha": 0.01},
    "KernelLogisticClassifier": {"kernel": KERNEL},
    "LSSVC": {"kernel": KERNEL, "noise_variance": 0.1},
    "SparseGPRegressor": {"kernel": KERNEL, "noise_variance": 0.01, "basis_size": 8},
}
DROP_IN = ("GaussianProcessClassifier", "GaussianProcessRegressor")
REGRESSORS = ("ConjugateDirectionsPursuit", "GPRegressor", "GaussianProcessRegressor", "SparseGPRegressor")
CLASSIFIERS = tuple(sorted(SETTINGS.keys() - set(REGRESSORS)))
WEIGHTED = tuple(sorted(SETTINGS.keys() - {*DROP_IN, "ConjugateDirectionsPursuit"}))

RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=N)
LABELS = np.where(np.arange(N) % 2 == 0, "even", "odd")
DAYS = np.datetime64("2024-02-28") + np.arange(N) * np.timedelta64(1, "D")
HOURS = np.arange(N) * np.timedelta64(5, "h")
FRAME = pd.DataFrame(X, columns=["a", "b"])


def estimator(name: str) -> Any:
    return getattr(dkgp.estimators, name)(**SETTINGS[name])


def targets(name: str) -> Any:
    return LABELS if name in CLASSIFIERS else Y


@pytest.fixture(scope="module")
def fitted() -> Callable[[str], Any]:
    """The estimator of a name, fitted once on two features; not to be changed by a test."""
    models: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in models:
            models[name] = estimator(name).fit(X, targets(name))
        return models[name]

    return of


def test_every_estimator_is_tried() -> None:
    public = [getattr(dkgp.estimators, name) for name in dkgp.estimators.__all__]
    classes = {one.__name__ for one in public if isinstance(one, type) and issubclass(one, BaseEstimator)}
    assert classes == set(SETTINGS)
    assert {name for name in classes if is_classifier(estimator(name))} == set(CLASSIFIERS)


# ----------------------------------------------------------------------------------------------------------- no numbers

# Inputs that are no numbers, the words on them, and the column that is named.
REFUSED: dict[str, tuple[Any, str]] = {
    "days": (np.stack([DAYS, DAYS], axis=1), r"X holds dates \(datetime64\[D\]\)"),
    "nanoseconds": (np.stack([DAYS, DAYS], axis=1).astype("M8[ns]"), r"X holds dates \(datetime64\[ns\]\)"),
    "hours": (np.stack([HOURS, HOURS], axis=1), r"X holds durations \(timedelta64\[h\]\)"),
    "no time": (np.full((N, 2), np.datetime64("NaT")), "X holds dates"),
    "list of dates": ([[day, day] for day in DAYS], "X holds dates"),
    "objects": ([[datetime.datetime(2024, 2, 28), 1.0]] * N, r"column 0 of X holds at sample 0 dates \(datetime\)"),
    "durations as objects": (
        [[1.0, datetime.timedelta(1)]] * N,
        r"column 1 of X holds at sample 0 durations \(timedelta\)",
    ),
    "frame": (FRAME.assign(b=DAYS), r"the column 'b' of X holds dates \(datetime64\[s\]\)"),
    "frame of dates": (pd.DataFrame({"a": DAYS, "b": DAYS}), "the column 'a' of X holds dates"),
    "frame with zones": (
        FRAME.assign(b=pd.Series(DAYS).dt.tz_localize("UTC")),
        "the column 'b' of X holds dates .datetime64.s, UTC",
    ),
    "frame of durations": (FRAME.assign(b=HOURS), "the column 'b' of X holds durations"),
    "frame of periods": (
        FRAME.assign(b=pd.period_range("2024", periods=N, freq="D")),
        r"the column 'b' of X holds at sample 0 dates \(Period\)",
    ),
    "frame of python's dates": (FRAME.assign(b=[datetime.date(2024, 1, 1)] * N), r"'b' of X holds at sample 0 dates"),
    "categories of dates": (FRAME.assign(b=pd.Categorical(DAYS)), "the column 'b' of X holds dates"),
    "frame with text": (FRAME.assign(b="red"), "the column 'b' of X holds text where a number belongs, such as 'red'"),
    "categories": (FRAME.assign(b=pd.Categorical(LABELS)), "the column 'b' of X holds text .*such as 'even'"),
    "complex": (X + 1j, "Complex data not supported: X holds complex numbers"),
    "complex column": (FRAME.assign(b=1j), "the column 'b' of X holds complex numbers"),
    "records": (np.zeros(N, dtype=[("a", float), ("b", float)]), "X holds records"),
    "DataArray": (xr.DataArray(np.stack([DAYS, DAYS], axis=1).astype("M8[ns]"), dims=("s", "f")), "X holds dates"),
    "Dataset": (
        xr.Dataset({"a": ("s", X[:, 0]), "b": ("s", DAYS.astype("M8[ns]"))}),
        "the variable 'b' of X holds dates",
    ),
    "Dataset with text": (xr.Dataset({"a": ("s", X[:, 0]), "b": ("s", LABELS)}), "variable 'b' of X holds text"),
    "complex DataArray": (xr.DataArray(X + 1j, dims=("s", "f")), "X holds complex numbers"),
    "dask array": (da.from_array(np.stack([DAYS, DAYS], axis=1), chunks=(8, 2)), "X holds dates"),
    "complex dask array": (da.from_array(X + 1j, chunks=(8, 2)), "X holds complex numbers"),
    "dask frame": (dd.from_pandas(FRAME.assign(b=DAYS), npartitions=2), "the column 'b' of X holds dates"),
    "dask frame with text": (dd.from_pandas(FRAME.assign(b="red"), npartitions=2), "the column 'b' of X .* string"),
    "complex dask frame": (dd.from_pandas(FRAME.assign(b=1j), npartitions=2), "the column 'b' of X holds complex"),
}
# The drop-ins bring lazy frames into memory, where text has pandas' words.
LAZY_TEXT = "dask frame with text"


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", REFUSED)
def test_inputs_that_are_no_numbers(name: str, kind: str, fitted: Callable[[str], Any]) -> None:
    inputs, words = REFUSED[kind]
    if name in DROP_IN and kind == LAZY_TEXT:
        words = "the column 'b' of X holds text"
    with pytest.raises(InputError, match=words):
        estimator(name).fit(inputs, targets(name))
    with pytest.raises(InputError, match=words):
        fitted(name).predict(inputs)


@pytest.mark.parametrize("name", SETTINGS)
def test_other_objects_and_shapes(name: str, fitted: Callable[[str], Any]) -> None:
    for inputs in (object(), {"a": 1.0}, [[object(), 1.0]] * N):
        with pytest.raises(
            InputTypeError, match="X holds an object of type (object|dict): .* must be a string or a real"
        ):
            fitted(name).predict(inputs)
    for inputs in (da.from_array(X[:, 0], chunks=8), X[:, 0], 3.0, [[1.0], [1.0, 2.0]], "text"):
        for call in (fitted(name).predict, lambda X: estimator(name).fit(X, targets(name))):
            with pytest.raises(ValueError, match="array|shape|text|dataset|dim|store"):
                call(inputs)
    if name not in DROP_IN:
        with pytest.raises(InputError, match=r"X is a dask array of shape \(24,\); expected \(n, d\)"):
            estimator(name).fit(da.from_array(X[:, 0], chunks=8), targets(name))


# Targets that are no numbers, and the words on them.
NO_TARGETS: dict[str, tuple[Any, str]] = {
    "dates": (DAYS, "y holds dates"),
    "durations": (HOURS, "y holds durations"),
    "series": (pd.Series(DAYS.astype("M8[ns]")), r"y holds dates \(datetime64\[ns\]\)"),
    "frame": (pd.DataFrame({"u": Y, "when": DAYS}), "the column 'when' of y holds dates"),
    "objects": ([datetime.date(2024, 1, 1)] * N, "y holds at sample 0 dates"),
    "complex": (Y + 1j, "y holds complex numbers"),
    "text": (LABELS, "y holds text where a number belongs, such as 'even'"),
    "one text": ("price", "y holds text"),
    "DataArray": (xr.DataArray(DAYS.astype("M8[ns]"), dims="s"), "y holds dates"),
    "Dataset": (
        xr.Dataset({"u": ("s", Y), "when": ("s", DAYS.astype("M8[ns]"))}),
        "the variable 'when' of y holds dates",
    ),
    "dask array": (da.from_array(DAYS, chunks=8), "y holds dates"),
    "dask series": (dd.from_pandas(pd.Series(DAYS), npartitions=2), "y holds dates"),
    "one number": (3.0, "y is .*3.*; expected an array with a value for each sample"),
}


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.parametrize("kind", NO_TARGETS)
def test_targets_that_are_no_numbers(name: str, kind: str, fitted: Callable[[str], Any]) -> None:
    values, words = NO_TARGETS[kind]
    with pytest.raises(InputError, match=words):
        estimator(name).fit(X, values)
    if kind != "one number":
        with pytest.raises(InputError, match=words):
            fitted(name).score(X, values)
    if name not in DROP_IN and kind not in ("one text", "one number", "frame", "text"):
        with pytest.raises(InputError, match=words):
            estimator(name).fit(da.from_array(X, chunks=(8, 2)), values)
    if hasattr(estimator(name), "update"):
        with pytest.raises(InputError, match=words):
            fitted(name).update(X, values)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("unit", ["D", "ns"])
def test_labels_that_are_dates(name: str, unit: str, fitted: Callable[[str], Any]) -> None:
    # The names of classes would be whole numbers of one unit, and texts of another.
    days = np.where(LABELS == "even", DAYS[0], DAYS[1]).astype(f"M8[{unit}]")
    for labels in (days, pd.Series(days), da.from_array(days, chunks=8), xr.DataArray(days, dims="s")):
        with pytest.raises(InputError, match=r"the labels are dates or durations \(datetime64\["):
            estimator(name).fit(X, labels)
        with pytest.raises(InputError, match="the labels are dates or durations"):
            fitted(name).score(X, labels)
    with pytest.raises(InputError, match="labels are of the types int, str"):
        estimator(name).fit(X, np.array([1, "a"] * (N // 2), dtype=object))


def test_numbers_of_every_sort_are_the_same_numbers() -> None:
    """Objects, text that spells numbers, nullable columns, categories of numbers: as an array of float64."""
    whole = np.round(4.0 * X)
    known = estimator("GPRegressor").fit(whole, Y).predict(whole)
    frame = pd.DataFrame(whole, columns=["a", "b"])
    alike = {
        "objects": whole.astype(object),
        "text": whole.astype(str),
        "integers": whole.astype(np.int16),
        "big-endian": whole.astype(">f4"),
        "nullable": frame.astype("Int32"),
        "categories": frame.assign(b=pd.Categorical(whole[:, 1])),
        "frame of text": frame.assign(b=whole[:, 1].astype(str)),
        "an unmasked mask": np.ma.array(whole),
        "lists": whole.tolist(),
        "dask array of integers": da.from_array(whole.astype(np.int64), chunks=(8, 2)),
        "dask array of objects": da.from_array(whole.astype(object), chunks=(8, 2)),
    }
    for kind, inputs in alike.items():
        model = estimator("GPRegressor").fit(inputs, Y.astype(object))
        np.testing.assert_allclose(np.asarray(model.predict(inputs)), known, rtol=1e-9, err_msg=kind)


def test_a_frame_keeps_its_names_and_index_where_a_column_is_converted() -> None:
    frame = pd.DataFrame({"a": X[:, 0], 5: X[:, 1].astype(object)}, index=np.arange(N)[::-1])
    model = estimator("GPRegressor").fit(frame.rename(columns=str), Y)
    assert model.feature_names_in_.tolist() == ["a", "5"]
    predicted = model.predict(frame.rename(columns=str))
    assert predicted.index.tolist() == list(range(N))[::-1]


def test_polars_and_arrow() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    model = estimator("GPRegressor").fit(frame, Y)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    for column, words in ((DAYS, "dates"), (HOURS.astype("m8[us]"), "durations"), (LABELS, "text")):
        with pytest.raises(InputError, match=f"the column 'b' of X holds {words}"):
            model.predict(frame.with_columns(polars.Series("b", column)))
    with pytest.raises(ValueError, match="X contains NaN"):
        model.predict(frame.with_columns(polars.Series("b", [1, None] * (N // 2))))


# --------------------------------------------------------------------------------------------------- masked and missing

MASK = np.zeros((N, 2), dtype=bool)
MASK[4, 1] = True
MASKED = np.ma.array(np.where(MASK, -9999.0, X), mask=MASK)
MISSING = np.where(MASK, np.nan, X)
OBJECTS = MISSING.astype(object)
OBJECTS[4, 1] = pd.NA
# Forms of inputs that have one entry masked or missing.
WITH_GAP: dict[str, Any] = {
    "masked array": MASKED,
    "rows": list(MASKED),
    "objects": OBJECTS,
    "None": [
        [None if masked else value for value, masked in zip(*row, strict=True)] for row in zip(X, MASK, strict=True)
    ],
    "masked integers": np.ma.array(np.where(MASK, -9999, 1), mask=MASK),
    "frame": pd.DataFrame({"a": X[:, 0], "b": OBJECTS[:, 1]}),
    "nullable frame": pd.DataFrame({"a": X[:, 0], "b": pd.array(np.where(MASK[:, 1], None, 1), dtype="Int64")}),
    "DataArray": xr.DataArray(MASKED, dims=("s", "f")),
}
LAZY_GAP: dict[str, Any] = {
    "dask array": da.from_array(MASKED, chunks=(8, 2)),
    "chunks without a mask": da.concatenate(
        [
            da.from_array(X[:4], chunks=(2, 2)),
            da.ma.masked_equal(da.from_array(MASKED.data[4:], chunks=(5, 2)), -9999.0),
        ]
    ),
    "objects": da.from_array(OBJECTS, chunks=(8, 2)),
    "Dataset": xr.Dataset(
        {"a": ("s", da.from_array(X[:, 0], chunks=8)), "b": ("s", da.from_array(MASKED[:, 1], chunks=8))}
    ),
    "dask frame": dd.from_pandas(WITH_GAP["nullable frame"], npartitions=2),
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", SETTINGS)
def test_masked_inputs_are_missing(name: str, fitted: Callable[[str], Any]) -> None:
    forms = WITH_GAP if name in DROP_IN else WITH_GAP | LAZY_GAP
    for kind, inputs in forms.items():
        with pytest.raises(ValueError, match="(?i)nan"):
            pytest.fail(f"{kind}: {estimator(name).fit(inputs, targets(name))}")
        if name == "ConjugateDirectionsPursuit" and (kind in LAZY_GAP or kind == "DataArray"):
            # Its sum is missing for the sample alone.
            predicted = fitted(name).predict(inputs)
            assert np.flatnonzero(np.isnan(np.asarray(predicted))).tolist() == [4], kind
            continue
        with pytest.raises(ValueError, match="(?i)nan"):
            np.asarray(fitted(name).predict(inputs))  # computes what is lazy


@pytest.mark.parametrize("name", REGRESSORS)
def test_masked_targets_are_missing(name: str, fitted: Callable[[str], Any]) -> None:
    masked = np.ma.array(np.where(MASK[:, 1], -9999.0, Y), mask=MASK[:, 1])
    objects = Y.astype(object)
    objects[4] = pd.NA
    for values in (masked, list(masked), da.from_array(masked, chunks=8), objects, pd.Series(objects)):
        with pytest.raises(ValueError, match="(?i)nan"):
            estimator(name).fit(X, values)
        with pytest.raises(ValueError, match="(?i)nan"):
            fitted(name).score(X, values)
        if name not in DROP_IN:
            with pytest.raises(ValueError, match="(?i)nan"):
                estimator(name).fit(da.from_array(X, chunks=(8, 2)), values)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_masked_label_is_no_class(name: str, fitted: Callable[[str], Any]) -> None:
    codes = np.ma.array(np.where(LABELS == "even", 1, 2), mask=MASK[:, 1])
    codes.data[4] = -9999
    texts = np.ma.array(LABELS.astype(object), mask=MASK[:, 1])
    for labels in (codes, texts, list(codes), da.from_array(codes, chunks=8)):
        with pytest.raises(InputError, match="the label of sample 4 is missing"):
            estimator(name).fit(X, labels)
        with pytest.raises(InputError, match="the label of sample 4 is missing"):
            fitted(name).score(X, labels)
        if name not in DROP_IN and not isinstance(labels, list):
            with pytest.raises(InputError, match="the label of sample 4 is missing"):
                estimator(name).fit(da.from_array(X, chunks=(8, 2)), labels)
    unmasked = estimator(name).fit(X, np.ma.array(codes.data[:4].tolist() * (N // 4)))
    assert unmasked.classes_.tolist() == [1, 2]


@pytest.mark.parametrize("name", WEIGHTED)
def test_masked_weights_and_noise_are_missing(name: str, fitted: Callable[[str], Any]) -> None:
    masked = np.ma.array(np.where(MASK[:, 1], 9999.0, 1.0), mask=MASK[:, 1])
    known = {"sample_weight"} if name in CLASSIFIERS else {"sample_weight", "sample_noise"}
    if name == "SparseGPRegressor":
        known |= {"relative_noise"}
    for argument in known:
        for values, words in (
            (masked, "sample 4|nan"),
            (list(masked), "sample 4|nan"),
            (da.from_array(masked, chunks=8), "sample 4|nan"),
            (HOURS, f"{argument} holds durations"),
            (LABELS, f"{argument} holds text"),
            (pd.Series(masked.filled(1.0) + 0j), f"{argument} holds complex"),
        ):
            with pytest.raises(InputError, match=words):
                estimator(name).fit(X, targets(name), **{argument: values})
    with pytest.raises(ValueError, match="(?i)nan"):
        fitted(name).score(X, targets(name), sample_weight=masked)
    with pytest.raises(InputError, match="sample_weight holds durations"):
        fitted(name).score(X, targets(name), sample_weight=HOURS)


def test_masked_entries_of_several_targets_are_gaps() -> None:
    both, mask = np.column_stack([Y, Y**2]), MASK.copy()
    both[4, 1] = -9999.0
    masked = np.ma.array(both, mask=mask)
    known = estimator("GPRegressor").fit(X, np.where(mask, np.nan, both)).predict(X)
    assert np.abs(known).max() < 10.0
    for form in (masked, da.from_array(masked, chunks=(8, 2)), pd.DataFrame(masked.astype(object).filled(pd.NA))):
        np.testing.assert_array_equal(np.asarray(estimator("GPRegressor").fit(X, form).predict(X)), known)
    model = estimator("GPRegressor").fit(X, masked)
    updated = model.update(X[3:6] + 0.5, np.ma.array([[1.0, 1.0], [1.0, -9999.0], [0.0, 0.5]], mask=MASK[3:6]))
    assert np.abs(updated.predict(X)).max() < 10.0


def test_rows_without_weight_are_left_out_with_their_masks() -> None:
    weights = np.ones(N)
    weights[4] = 0.0
    kept = np.arange(N) != 4
    known = estimator("GPRegressor").fit(X[kept], Y[kept]).predict(X)
    # The only masked entry goes with its sample.
    model = estimator("GPRegressor").fit(MASKED, Y, sample_weight=weights)
    np.testing.assert_allclose(model.predict(X), known, rtol=1e-9)


def test_a_mean_of_another_regressor_never_sees_masked_values() -> None:
    from sklearn.linear_model import LinearRegression

    model = clone(estimator("GPRegressor")).set_params(mean=LinearRegression())
    with pytest.raises(ValueError, match="NaN"):
        model.fit(MASKED, Y)
    with pytest.raises(InputError, match="the column 'b' of X holds dates"):
        model.fit(FRAME.assign(b=DAYS), Y)


# ------------------------------------------------------------------------------------------------------ in order


def same_predictions(predicted: Any, known: Any) -> None:
    if np.asarray(known).dtype.kind == "f":  # a frame's columns lie otherwise in memory, and round otherwise
        np.testing.assert_allclose(np.asarray(predicted), np.asarray(known), rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_array_equal(np.asarray(predicted), np.asarray(known))


ORDER = np.random.default_rng(3).permutation(N)


def labelled(values: Any, labels: Any) -> Any:
    return xr.DataArray(values, dims=("sample", "feature")[: np.ndim(values)], coords={"sample": labels})


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - set(DROP_IN)))
def test_coordinates_in_another_order_are_refused(name: str, fitted: Callable[[str], Any]) -> None:
    places = np.arange(100, 100 + N)
    inputs, values = labelled(X, places), labelled(targets(name), places)
    model = estimator(name).fit(inputs, values)
    np.testing.assert_array_equal(np.asarray(model.predict(inputs)), np.asarray(fitted(name).predict(X)))
    shuffled = values.isel(sample=ORDER)
    words = (
        "y has the samples of X in another order: sample 0 is .* in y, and .*100.* in X. Align them first, as in "
        r"y = y.sel\({'sample': X\['sample'\]}\), or give y.to_numpy\(\)"
    )
    of_columns = xr.Dataset({"a": inputs[:, 0], "b": inputs[:, 1]})
    lazy = inputs.chunk(sample=8)
    for given in (inputs, of_columns, lazy):
        with pytest.raises(InputError, match=words):
            estimator(name).fit(given, shuffled)
        with pytest.raises(InputError, match=words):
            model.score(given, shuffled)
    with pytest.raises(InputError, match="y is of other samples than X: sample 0 is .*101.* in y, and .*100.* in X"):
        estimator(name).fit(inputs, labelled(targets(name), places + 1))
    # The remedy, positions without labels, and y of another dimension's name are right.
    for aligned in (shuffled.sel({"sample": inputs["sample"]}), values.to_numpy(), values.rename(sample="place")):
        np.testing.assert_array_equal(
            np.asarray(estimator(name).fit(inputs, aligned).predict(X)), np.asarray(fitted(name).predict(X))
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_an_index_in_another_order_is_refused(name: str, fitted: Callable[[str], Any]) -> None:
    index = [f"s{place}" for place in range(N)]
    inputs, values = FRAME.set_axis(index), pd.Series(targets(name), index=index)
    shuffled = values.iloc[ORDER]
    words = r"y has the samples of X in another order: .* as in y = y.loc\[X.index\], or give y.to_numpy\(\)"
    with pytest.raises(InputError, match=words):
        estimator(name).fit(inputs, shuffled)
    model = estimator(name).fit(inputs, shuffled.loc[inputs.index])
    with pytest.raises(InputError, match=words):
        model.score(inputs, shuffled)
    if hasattr(model, "update"):
        with pytest.raises(InputError, match=words):
            model.update(inputs, shuffled)
    # As in scikit-learn, samples are matched by position where the index is another one, or is none.
    known = fitted(name).predict(X)
    for other in (values.reset_index(drop=True), values.set_axis(["twice"] * N), values.to_numpy()):
        same_predictions(estimator(name).fit(inputs, other).predict(inputs), known)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_in_another_order_are_refused(name: str, fitted: Callable[[str], Any]) -> None:
    weights = pd.Series(np.linspace(1.0, 2.0, N)).iloc[ORDER]
    for argument in ("sample_weight",) if name in CLASSIFIERS else ("sample_weight", "sample_noise"):
        with pytest.raises(InputError, match=f"{argument} has the samples of X in another order"):
            estimator(name).fit(FRAME, targets(name), **{argument: weights})
    with pytest.raises(InputError, match="sample_weight has the samples of X in another order"):
        fitted(name).score(FRAME, targets(name), sample_weight=weights)
    places = np.arange(N)
    with pytest.raises(InputError, match="sample_weight has the samples of X in another order"):
        estimator(name).fit(
            labelled(X, places), targets(name), sample_weight=labelled(weights.to_numpy(), places[ORDER])
        )


def test_the_remedy_for_samples_in_another_order_can_be_typed() -> None:
    inputs, values = labelled(X, [f"s{place}" for place in range(N)]), pd.Series(targets("GPRegressor"))
    values.index = inputs.indexes["sample"]
    with pytest.raises(
        InputError, match=r"sample 0 is 's\d+' in y, and 's0' in X.* y = y.loc\[X.indexes\['sample'\]\]"
    ):
        estimator("GPRegressor").fit(inputs, values.iloc[ORDER])
    estimator("GPRegressor").fit(inputs, values.iloc[ORDER].loc[inputs.indexes["sample"]])


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - set(DROP_IN)))
@pytest.mark.parametrize("kept", [N // 2, N - 1])
def test_inputs_and_targets_of_other_numbers_of_samples_are_refused(name: str, kept: int) -> None:
    y = targets(name)
    inputs = xr.DataArray(X, dims=("sample", "feature"))
    columns = xr.Dataset({"a": inputs[:, 0], "b": inputs[:, 1]})
    for given in (inputs[:kept], columns.isel(sample=slice(kept)), inputs[:kept].chunk(sample=3)):
        with pytest.raises(InputError, match=f"X .*{kept}.* y .*{N}|have shapes .{kept}, 2. and .{N},"):
            estimator(name).fit(given, y)
    with pytest.raises(InputError, match=f"X .*{N}.* y .*{kept}|have shapes .{N}, 2. and .{kept},"):
        estimator(name).fit(inputs, xr.DataArray(y[:kept], dims="sample"))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_of_objects_and_frames_that_are_none_are_refused(name: str) -> None:
    days = pd.period_range("2024-01-01", periods=2, freq="D")[np.arange(N) % 2]
    dates = np.array([day.to_timestamp().to_pydatetime() for day in days], dtype=object)
    for labels, kind in ((pd.Series(days), "Period"), (dates, "datetime")):
        with pytest.raises(InputError, match=f"the label of sample 0 is of type {kind}; give labels as text"):
            estimator(name).fit(X, labels)
    both = pd.DataFrame({"class": targets(name), "day": days.to_timestamp()})
    with pytest.raises(InputError, match=rf"y should be a 1d array, got an array of shape \({N}, 2\) instead"):
        estimator(name).fit(X, both)
    with pytest.raises(InputError, match="Complex data not supported: y holds complex numbers"):
        estimator(name).fit(X, np.arange(N) % 2 + 0j)
    with pytest.raises(InputError, match="y holds records"):
        estimator(name).fit(X, np.rec.fromarrays([np.arange(N) % 2, np.arange(N)]))


def test_masked_text_is_no_number() -> None:
    text = np.ma.array(["a"] * N, mask=np.arange(N) == 3)
    with pytest.raises(InputError, match="y holds text where a number belongs, such as 'a'"):
        estimator("GPRegressor").fit(X, text)


@pytest.mark.parametrize("name", ["GPRegressor", "GPClassifier", *DROP_IN])
def test_one_weight_for_all_samples_of_a_score_is_refused(name: str, fitted: Callable[[str], Any]) -> None:
    for weights in (2.0, np.ones((N, 1))):
        with pytest.raises(InputError, match=r"sample_weight has shape \(.*; expected \(n,\), a value for each sample"):
            fitted(name).score(X, targets(name), sample_weight=weights)
