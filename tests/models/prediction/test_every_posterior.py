"""Conformance of posteriors in every sink: stores, rows in memory, lines, sources of tasks, any workers."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, ClusterOptions, LocalExecutor, open_executor
from dkgp.cluster.cache import worker_cache
from dkgp.data import Dataset, LinearRecord, dataset_from_arrays, open_prediction
from dkgp.data.stores.models.model import about_training
from dkgp.errors import InputError, InterruptedRunError
from dkgp.models import RunContext
from dkgp.models.classification.labels import LabelledData
from dkgp.models.linear import LinearSettings, train_linear
from dkgp.models.prediction.posterior import Columns, Want, forget
from dkgp.models.prediction.predict import (
    POSTERIORS,
    Destination,
    PosteriorSource,
    PredictSummary,
    posterior_of,
    predict,
)
from dkgp.models.prediction.table import PredictionTable, RowTable
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.stored import sparse_record
from dkgp.models.sparse.train import train_sparse
from dkgp.models.variance.settings import VarianceSettings
from tests.models.test_conformance import CLASSIFIERS, KERNEL, REGRESSIONS, draw

TESTS, ROWS = 75, 30
LATENT = VarianceSettings(latent=True)
# Two batches of variances have intervals that are each as narrow as asked for.
CLOSE = {"rtol": 0.03, "atol": 1e-3}
_VERSIONS = count()


@dataclass(frozen=True)
class Case:
    """A model, and how it predicts; `near` where batches of variances, cut by the rows, decide the last bits."""

    model: Callable[[LabelledData, RunContext], Any]
    variance: VarianceSettings | None = None
    near: bool = False


def regression(name: str) -> Callable[[LabelledData, RunContext], Any]:
    return lambda data, context: REGRESSIONS[name](data, context).model(data.dataset)


def sparse(method: str, **settings: Any) -> Callable[[LabelledData, RunContext], Any]:
    def trained(data: LabelledData, context: RunContext) -> Any:
        chosen = SparseSettings(method, 12, **settings)
        return sparse_record(train_sparse(data.dataset, KERNEL, 0.1, context, chosen), data.dataset)

    return trained


def linear(data: LabelledData, context: RunContext) -> Any:
    found = train_linear(data.dataset, LinearSettings(stop=None, cardinality=2), context.executor, memory_bytes=2**28)
    about = about_training(data.dataset, {"method": "lars"})
    return LinearRecord(**about, coefficients=found.coefficients, intercept=found.intercept)


CASES = {
    "exact": Case(regression("exact GP")),
    "exact, whole factor": Case(regression("exact GP"), VarianceSettings(way="cholesky"), near=True),
    "exact, partial factor": Case(regression("exact GP"), VarianceSettings(rank=20, halo=0), near=True),
    "exact, neighbours": Case(regression("exact GP"), VarianceSettings(way="neighbours", latent=True), near=True),
    "known noise": Case(regression("exact GP, known noise"), VarianceSettings(way="cholesky"), near=True),
    "sparse": Case(sparse("vfe"), VarianceSettings()),
    "sparse, means": Case(sparse("sr")),
    "sparse with neighbours": Case(sparse("vif", neighbours=8), LATENT),
    "linear": Case(linear),
    **{
        name: Case(lambda data, context, name=name: CLASSIFIERS[name](data, context).record(data), near=name == "GP")
        for name in CLASSIFIERS
    },
}
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def saved(executor: BlockExecutor, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A case's model, trained and saved once, opened."""
    data, folder = draw(), tmp_path_factory.mktemp("models")

    @functools.cache
    def opened(name: str) -> Any:
        made = CASES[name].model(data, RunContext(executor))
        record = made if getattr(made, "is_sparse", True) else made.supported_by(data.dataset)
        record.save(str(folder / name))
        return type(record).open(str(folder / name))

    return opened


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X = np.random.default_rng(1).standard_normal((TESTS, 3))
    return dataset_from_arrays(tmp_path_factory.mktemp("unseen") / "t", X, None, chunk_rows=ROWS)


@pytest.fixture(scope="module")
def dask() -> Iterator[BlockExecutor]:
    with open_executor(ClusterOptions(kind="local", workers=2), TESTS) as executor:
        yield executor


def predicted(
    model: Any, case: Case, unseen: Dataset, url: Path, executor: BlockExecutor | RunContext, **place: Any
) -> tuple[PredictSummary, Columns]:
    out = Destination(str(url), **{"chunk_rows": ROWS, **place})
    summary = predict(model, unseen, out, executor, variance=case.variance)
    prediction = open_prediction(str(url))
    return summary, Columns({name: prediction.read(name) for name in prediction.variables})


def stored(*arguments: Any, **place: Any) -> Columns:
    return predicted(*arguments, **place)[1]


def in_memory(model: Any, case: Case, X: np.ndarray, threads: int | None = None) -> Columns:
    version = f"every-{next(_VERSIONS)}"
    try:
        return posterior_of(model, Want.in_memory(version, case.variance, threads=threads, n_test=TESTS))(X)
    finally:
        forget(version)


def require_equal(found: Columns, known: Columns, near: bool = False) -> None:
    assert found.keys() == known.keys()
    for name, values in known.items():
        same = np.testing.assert_allclose if near else np.testing.assert_array_equal
        same(found[name].reshape(values.shape), values, **CLOSE if near else {}, err_msg=name)


def require_figures(summary: PredictSummary, columns: Columns, computed: int | None) -> None:
    """Require figures of all rows, whoever computed them, and that so many were computed now."""
    figures = summary.classes or summary.variance or {"computed": computed}
    assert computed is None or figures["computed"] == computed
    if summary.classes is not None:
        counts = list(summary.classes["counts"].values())
        assert counts == np.bincount(columns["class"].ravel().astype(int), minlength=len(counts)).tolist()
    elif "gap_mean" in figures and "outside" in figures:
        lower, upper, own = (columns[name] for name in ("variance_lower", "variance_upper", "variance"))
        assert figures["outside"] == np.mean(((own < lower) | (own > upper)).any(axis=1))
        assert figures["gap_mean"] == pytest.approx(np.mean((upper - lower) / upper))


def test_every_kind_of_model_is_tried(saved: Callable[[str], Any]) -> None:
    assert {saved(name).kind for name in ("exact", "sparse", "linear", "logistic")} == set(POSTERIORS)


@pytest.mark.spread(6)
@every_case
def test_a_store_has_what_rows_in_memory_get_by_any_threads(
    name: str, saved: Callable[[str], Any], unseen: Dataset, executor: BlockExecutor, tmp_path: Path
) -> None:
    case, model, X = CASES[name], saved(name), unseen.raw_inputs(0, TESTS)
    gc.collect()  # estimators of other tests give back what they hold there
    before = worker_cache().nbytes
    store = stored(model, case, unseen, tmp_path / "p", executor)
    assert worker_cache().nbytes == before, "nothing of the model stays in the cache"
    rows = in_memory(model, case, X)
    require_equal(rows, store, case.near)
    require_equal(in_memory(model, case, X, threads=1), rows)
    if name == "linear":
        return  # no estimator has one
    source = PosteriorSource(model.address, f"source-{next(_VERSIONS)}", case.variance, TESTS)
    require_equal(source.posterior()(X), rows)
    forget(source.version)


@every_case
def test_neither_chunks_nor_the_order_of_features_make_a_difference(
    name: str, saved: Callable[[str], Any], unseen: Dataset, executor: BlockExecutor, tmp_path: Path
) -> None:
    case, model, X = CASES[name], saved(name), unseen.raw_inputs(0, TESTS)
    whole = stored(model, case, unseen, tmp_path / "whole", executor)
    for rows in (7, TESTS - 1, 5000):
        found = stored(model, case, unseen, tmp_path / f"{rows}", executor, chunk_rows=rows)
        require_equal(found, whole, case.near)
    names, columns = ("x2", "extra", "x0", "x1"), np.insert(X[:, [2, 0, 1]], 1, np.arange(TESTS), axis=1)
    shuffled = dataset_from_arrays(tmp_path / "shuffled.zarr", columns, None, feature_names=names)
    require_equal(stored(model, case, shuffled, tmp_path / "p", executor), whole)
    fewer = dataset_from_arrays(tmp_path / "fewer.zarr", X[:, :2], None, feature_names=("x0", "x1"))
    with pytest.raises(InputError, match="lacks the feature 'x2'"):
        stored(model, case, fewer, tmp_path / "none", executor)
    assert not (tmp_path / "none").exists()


@every_case
def test_lines_have_what_tables_of_a_store_have(
    name: str, saved: Callable[[str], Any], unseen: Dataset, executor: BlockExecutor, tmp_path: Path
) -> None:
    case, model = CASES[name], saved(name)
    stored(model, case, unseen, tmp_path / "p", executor)
    expected = PredictionTable(open_prediction(str(tmp_path / "p"))).rows(0, TESTS)
    lines = RowTable(model, case.variance)
    with closing(lines):
        found = lines(unseen.raw_inputs(0, TESTS))
    assert ["row", *found] == list(expected)
    for column, values in found.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, expected[column], **CLOSE if case.near else {"rtol": 1e-12})
        else:
            assert (values == expected[column]).mean() > (0.95 if case.near else 0.999)


@pytest.mark.spread(8)
@every_case
def test_one_row_no_rows_and_rows_that_are_none(name: str, saved: Callable[[str], Any], unseen: Dataset) -> None:
    case, model, X = CASES[name], saved(name), unseen.raw_inputs(0, TESTS)
    posterior = posterior_of(model, Want.in_memory(f"few-{next(_VERSIONS)}", case.variance))
    one, none = posterior(X[:1]), posterior(X[:0])
    assert tuple(one) == tuple(none) == posterior.variables
    for column, values in one.items():
        assert none[column].shape == (0, *values.shape[1:])
        assert np.isfinite(values).all()
    with pytest.raises(InputError, match="is nan in row 1"):
        posterior(np.where(np.arange(3)[:, None] == 1, np.nan, X[:3]))
    with pytest.raises(InputError, match=r"inputs have shape \(3, 2\)"):
        posterior(X[:3, :2])
    with pytest.raises(InputError):
        posterior(X[:1])["no such column"]


@pytest.mark.spread(6)
@every_case
def test_an_interrupted_store_goes_on_to_the_same_bits_on_any_workers(
    name: str,
    saved: Callable[[str], Any],
    unseen: Dataset,
    executor: BlockExecutor,
    dask: BlockExecutor,
    tmp_path: Path,
) -> None:
    case, model = CASES[name], saved(name)
    whole = stored(model, case, unseen, tmp_path / "whole", executor)
    answers = iter([False, True])
    context = RunContext(executor, interrupted=lambda: next(answers, True))
    with pytest.raises(InterruptedRunError, match=f"of {TESTS} test samples; continue with `resume`"):
        stored(model, case, unseen, tmp_path / "p", context)
    other = replace(model, fingerprint="another")
    with pytest.raises(InputError, match="from another model or other data, or with other settings"):
        stored(other, case, unseen, tmp_path / "p", executor, resume=True)
    elsewhere = dataset_from_arrays(tmp_path / "t", unseen.raw_inputs(0, TESTS) + 1.0, None)
    with pytest.raises(InputError, match="other data"):
        stored(model, case, elsewhere, tmp_path / "p", executor, resume=True)
    if case.variance is not None:
        turned = replace(case, variance=replace(case.variance, latent=not case.variance.latent))
        with pytest.raises(InputError, match="other settings|was started with"):
            stored(model, turned, unseen, tmp_path / "p", executor, resume=True)
    summary, resumed = predicted(model, case, unseen, tmp_path / "p", dask, resume=True)
    require_equal(resumed, whole)
    require_figures(summary, whole, None if case.near else TESTS - ROWS)
    summary, again = predicted(model, case, unseen, tmp_path / "p", executor, resume=True)
    require_equal(again, whole)
    require_figures(summary, whole, 0)
    with closing(LocalExecutor(1)) as one:
        require_equal(stored(model, case, unseen, tmp_path / "one", one), whole)
