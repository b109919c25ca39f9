"""Properties of every source format: the numbers and labels of one table, and the words for what cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dkgp.data import ingest
from dkgp.data.classes import class_name
from dkgp.data.sources.formats import formats
from dkgp.errors import InputError
from tests.data.sources.forms import FORMS, Form

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = 120
# Labels of each sort, and their classes in order.
LABELS = {
    "text": (["yes", "no", "don't know"], ("don't know", "no", "yes")),
    "awkward text": (['a "b", c', "größer; viel", "日本", "<=50K."], ("<=50K.", 'a "b", c', "größer; viel", "日本")),
    "whole numbers": ([10, 9, -1], ("-1", "9", "10")),
    "whole numbers as floats": ([10.0, 9.0, -0.0], ("0", "9", "10")),
    "numbers": ([1.5, 0.1, -2.0], ("-2", "0.1", "1.5")),
    "truth": ([True, False], ("False", "True")),
}

every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
named_form = pytest.mark.parametrize(
    "form", [pytest.param(form, id=name) for name, form in FORMS.items() if form.named]
)


@pytest.fixture
def table(rng: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame(rng.normal(size=(N, 3)) * [1, 1e-7, 1e12], columns=["a", "b", "c"])
    return frame.assign(price=frame["a"] + rng.normal(size=N))


def test_every_format_that_is_declared_has_a_form_here() -> None:
    assert {form.format for form in FORMS.values()} == {form.name for form in formats()}


@every_form
def test_every_number_arrives_whatever_the_blocks(
    tmp_path: Path, table: pd.DataFrame, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.data.sources.base.BLOCK_BYTES", 1000)
    monkeypatch.setattr("dkgp.data.sources.csv._READ_BYTES", 150)
    form.write(table, tmp_path / form.file)
    names = list(table) if form.named else ["x0", "x1", "x2", "x3"]
    report = ingest(tmp_path / form.file, tmp_path / "out.zarr", target=[names[3], names[0]], features=names[2:0:-1])
    assert (report.n_samples, report.train.feature_names) == (N, (names[2], names[1]))
    assert report.train.target_names == (names[3], names[0])
    np.testing.assert_array_equal(report.train.raw_inputs(0, N), table[["c", "b"]])
    np.testing.assert_array_equal(report.train.targets(0, N, standardised=False), table[["price", "a"]])


@every_form
def test_what_is_not_finite_is_named(tmp_path: Path, table: pd.DataFrame, form: Form) -> None:
    table.loc[[31, 45], "b"] = [np.inf, np.nan]
    form.write(table, tmp_path / form.file)
    column = "b" if form.named else "x1"
    place = "line 33" if "csv" in form.file else "row 32"
    with pytest.raises(InputError, match=rf"'{column}' holds infinity in {place} .*\(2 such values in all\)"):
        ingest(tmp_path / form.file, tmp_path / "out.zarr", target="price" if form.named else -1)
    assert [path.name for path in tmp_path.iterdir()] == [form.file]


@pytest.mark.covering
@named_form
@pytest.mark.parametrize("sort", LABELS)
def test_labels_of_every_sort_are_the_same_classes(
    tmp_path: Path, rng: np.random.Generator, form: Form, sort: str
) -> None:
    frame = pd.DataFrame(rng.normal(size=(N, 2)), columns=["a", "b"])
    labels, classes = LABELS[sort]
    frame[sort] = pd.Series([labels[index] for index in rng.permutation(np.arange(N) % len(labels))])
    form.write(frame, tmp_path / form.file)
    report = ingest(tmp_path / form.file, tmp_path / "out.zarr", labels=sort, features=["a", "b"])
    assert report.train.classes == classes
    names = [classes[code] for code in report.train.all_labels()]
    assert names == [class_name(label) for label in frame[sort].tolist()]
    assert report.to_json()["classes"] == list(classes)
    assert sum(report.to_json()["class_counts"]) == N


@pytest.mark.parametrize("form", [FORMS[name] for name in FORMS if FORMS[name].file not in ("d.csv", "d.zarr")])
def test_half_a_file_is_refused(tmp_path: Path, table: pd.DataFrame, form: Form) -> None:
    form.write(table, tmp_path / form.file)
    content = (tmp_path / form.file).read_bytes()
    (tmp_path / form.file).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"truncated|damaged|not a whole|cannot be (opened|read)|no vector or matrix"):
        ingest(tmp_path / form.file, tmp_path / "out.zarr", target="price" if form.named else -1)
    assert [path.name for path in tmp_path.iterdir()] == [form.file]
