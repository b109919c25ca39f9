"""Any labels, drawn at random: as codes, through a CSV file's quotes, and split by class."""

from __future__ import annotations

import csv
import io
import unicodedata

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dkgp.data import Dataset, ingest
from dkgp.data.sources.selection import LabelEncoder, stratified_mask
from dkgp.errors import InputError

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=0, max_size=12)


@given(st.lists(NAMES, min_size=2, max_size=8), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_any_text_comes_back_as_it_was_or_is_refused(names: list[str], seed: int) -> None:
    """As typed text (Parquet, NetCDF), and through a CSV file's quotes where its rules let it through."""
    column = np.random.default_rng(seed).permutation(np.array((names * 3)[: 3 * len(names)], dtype=object))
    encoder = LabelEncoder("y")
    tidy = {unicodedata.normalize("NFC", name.strip()) for name in names}
    if any(unicodedata.category(mark) == "Cc" or mark == "\ufffd" for name in tidy for mark in name):
        with pytest.raises(InputError, match=r"control character|UTF-8"):
            encoder(column, lambda row: f"row {row}")
        return
    first = encoder(column, lambda row: f"row {row}")
    np.testing.assert_array_equal(np.isnan(first), [not name.strip() for name in column])
    if np.isnan(first).any():
        return
    if len(tidy) == 1:
        with pytest.raises(InputError, match="one class only"):
            encoder.settle()
        return
    encoder.settle()
    codes = encoder(column, lambda row: f"row {row}").astype(int)
    assert list(encoder.classes) == sorted(set(encoder.classes))
    found = [encoder.classes[code] for code in codes]
    assert found == [unicodedata.normalize("NFC", name.strip()) for name in column]


@given(
    st.lists(
        st.one_of(
            st.text("ab\"',;| .1é", min_size=1, max_size=6),
            st.integers(-(10**20), 10**20).map(str),
            st.floats(allow_nan=False, allow_infinity=False).map(repr),
        ),
        min_size=2,
        max_size=6,
    )
)
@settings(deadline=None, max_examples=20)
def test_a_csv_files_quotes_hold_any_label(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["a", "y"])
    writer.writerows((row, name) for row, name in enumerate(names * 2))
    (folder / "d.csv").write_text(text.getvalue())
    wanted = [name.strip() for name in names * 2]
    assume(all(wanted) and len({_number_or_text(name) for name in wanted}) > 1)
    assume(not any(name in ("NA", "nan", "inf") for name in wanted))
    found = ingest(folder / "d.csv", folder / "out.zarr", labels="y").train
    if all(isinstance(_number_or_text(name), float) for name in wanted):
        assert [float(name) for name in _named(found)] == [float(name) for name in wanted]
        assert sorted(found.classes or (), key=float) == list(found.classes or ())
    else:
        assert _named(found) == [unicodedata.normalize("NFC", name) for name in wanted]


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6),
    st.floats(0.01, 0.99),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=60)
def test_the_stratified_split_keeps_shares(counts: list[int], fraction: float, seed: int, order: int) -> None:
    codes = np.random.default_rng(order).permutation(np.repeat(np.arange(len(counts)), counts))
    classes = tuple("abcdef"[: len(counts)])
    assume(max(counts) > 1)
    mask = stratified_mask(codes, classes, fraction, seed)
    np.testing.assert_array_equal(mask, stratified_mask(codes, classes, fraction, seed))
    tested = np.bincount(codes[mask], minlength=len(counts))
    n = len(codes)
    assert mask.sum() == min(max(1, round(n * fraction)), n - len(counts))
    assert (tested < np.array(counts)).all()
    exact = fraction * np.array(counts)
    if (np.array(counts) - np.ceil(exact) >= 1).all():
        assert (np.abs(tested - exact) < 1.0 + 1e-9).all()


def _named(dataset: Dataset) -> list[str]:
    assert dataset.classes is not None
    return [dataset.classes[code] for code in dataset.all_labels()]
