"""Panels that notebooks show: folded sections, every text escaped, nothing from elsewhere; of all that has one."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context

import dkgp
from dkgp.data import PredictionWriter, dataset_from_arrays, open_dataset, open_prediction
from dkgp.html import MOST_CHARACTERS, MOST_ROWS, Section, panel, shown
from dkgp.kernels import SquaredExponential

TARGET = "y<img src=x>"
HOSTILE = '<script>alert("x")</script>'
TAGS = {"style", "div", "header", "span", "strong", "details", "summary", "table", "tr", "th", "td"}
NAMES = [HOSTILE, "b&c\"'>"]


class Seen(HTMLParser):
    """Tags, attributes and texts of a page, and whether all that opens is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(page: str) -> Seen:
    """A panel that can do no harm."""
    seen = Seen(page)
    assert seen.open == []
    assert set(seen.tags) <= TAGS
    assert {name for name, _ in seen.attributes} <= {"class", "open"}
    assert not re.search(r"https?:|url\(|@import", page.split("</style>")[0])
    assert len(page) < 20_000
    return seen


@pytest.fixture(scope="module")
def samples() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(5)
    X = pd.DataFrame(rng.normal(size=(80, 2)), columns=NAMES)
    return X, pd.Series(np.sin(X[HOSTILE]) + 0.1 * rng.normal(size=80), name=f"y{HOSTILE}")


@pytest.fixture(scope="module")
def models(samples: tuple[pd.DataFrame, pd.Series]) -> dict[str, Any]:
    X, y = samples
    kernel = SquaredExponential(gamma=(0.5, 0.1))
    labels = np.where(y > 0, HOSTILE, "low")
    return {
        "exact": dkgp.GPRegressor(kernel, noise_variance=0.1).fit(X, y),
        "sparse": dkgp.SparseGPRegressor(kernel, noise_variance=0.1, basis_size=20).fit(X, y),
        "machine": dkgp.LSSVC(kernel, noise_variance=0.1).fit(X, labels),
        "logistic": dkgp.KernelLogisticClassifier(kernel).fit(X, labels),
    }


@pytest.mark.parametrize("name", ["exact", "sparse", "machine", "logistic"])
def test_an_estimator_shows_what_it_found_below_scikit_learns_diagram(models: dict[str, Any], name: str) -> None:
    model = models[name]
    page = model._repr_html_()
    bundle = model._repr_mimebundle_()["text/html"]
    assert re.sub(r"container-id-\d+|id-\d+", "", bundle) == re.sub(r"container-id-\d+|id-\d+", "", page)
    theirs, ours = page[: page.rindex("<style>")], page[page.rindex("<style>") :]
    assert "sk-container-id" in theirs
    assert "alert" not in re.sub(r"&lt;script&gt;alert\(&quot;x&quot;\)", "", page), "every text is escaped"
    text = checked(ours).text
    assert f"dkgp.{type(model).__name__}" in text
    assert HOSTILE in text
    assert {"Model", "Training", "Proven", "Versions"} <= set(re.findall(r"<summary>(\w+)", ours))
    assert repr(model) == model._repr_mimebundle_()["text/plain"]


def test_before_it_is_fitted_it_is_scikit_learns_alone() -> None:
    assert "dkgp-panel" not in dkgp.GPRegressor()._repr_html_()


def test_text_is_shown_where_scikit_learn_is_asked_for_it(models: dict[str, Any]) -> None:
    with config_context(display="text"):
        assert list(models["exact"]._repr_mimebundle_()) == ["text/plain"]
        assert not hasattr(models["exact"], "_repr_html_")


def test_certificates_say_what_they_prove(models: dict[str, Any]) -> None:
    exact = models["exact"].certificate_
    text = checked(exact._repr_html_()).text
    assert f"means within {exact.mean_error_bound(np.ones(1)).max():.2g} standard deviations" in text
    assert "residual norm" in text
    sparse = models["sparse"].certificate_
    assert f"the mean within {sparse.rms_bound.max():.2g} deviations" in checked(sparse._repr_html_()).text
    assumed = dataclasses.replace(exact, assumes=HOSTILE)
    assert HOSTILE in checked(assumed._repr_html_()).text


def test_stores_show_dimensions_columns_and_place(tmp_path: Path, samples: tuple[pd.DataFrame, pd.Series]) -> None:
    X, y = samples
    place = tmp_path / "<b>.zarr"
    wide = np.column_stack([X, np.full(80, 7.0)])
    with pytest.warns(UserWarning, match="constant"):
        dataset_from_arrays(place, wide, y, feature_names=[*NAMES, "same<i>"], target_names=[TARGET])
    dataset = open_dataset(place)
    page = dataset._repr_html_()
    text = checked(page).text
    assert "dkgp.Dataset" in text
    assert "80 samples, 2 features, 1 target" in text
    assert f"{X[HOSTILE].mean():.6g}{X[HOSTILE].std(ddof=0):.6g}" in text
    assert "same<i>" in text
    assert TARGET in text
    assert str(place) in text
    assert dataset.fingerprint in text
    writer = PredictionWriter.create(str(tmp_path / "p.zarr"), 80, [HOSTILE], ("mean",), attributes={"model": HOSTILE})
    writer.write(0, mean=np.zeros(80))
    writer.commit()
    text = checked(open_prediction(str(tmp_path / "p.zarr"))._repr_html_()).text
    assert "80 samples" in text
    assert text.count(HOSTILE) == 2


def test_labels_and_models_that_are_stored(tmp_path: Path, models: dict[str, Any]) -> None:
    models["machine"].save(tmp_path / "m.zarr")
    record = dkgp.LSSVC.load(tmp_path / "m.zarr")._fitted.record
    text = checked(record._repr_html_()).text
    assert "dkgp.ExactClassifierRecord" in text
    assert str(tmp_path / "m.zarr") in text
    text = checked(models["machine"]._fitted._training_set()._repr_html_()).text
    assert f"{HOSTILE}" in text


def test_long_things_are_cut_and_said_to_be() -> None:
    rows = [(f"x{i}", float(i)) for i in range(MOST_ROWS + 7)]
    text = checked(panel("Dataset", "", [Section("Features", rows, ("feature", "mean"))])).text
    assert "and 7 more" in text
    assert "Features (107)" in text
    assert f"x{MOST_ROWS}" not in text
    assert len(shown("a" * 1000)) == MOST_CHARACTERS
    assert (shown(True), shown(1234567), shown(0.1234567891), shown(float("nan")), shown([1, None])) == (
        "yes",
        "1,234,567",
        "0.123457",
        "nan",
        "1, none",
    )
