"""From files to dataset stores, in two passes over the sources and in bounded memory.

The first pass reads every value, checks it and counts the samples; the second writes. So bad input is found while
nothing has been written and nothing that was there has been replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import normalise_url, remove_tree
from dkgp.data.sources.base import Block, Column, Source
from dkgp.data.sources.label_codes import settled_labels
from dkgp.data.sources.open_source import expand_locations, open_source
from dkgp.data.sources.repeats import DistinctInputs
from dkgp.data.sources.selection import Selection, Selector, select_columns
from dkgp.data.sources.split import check_split, mask_from_column, random_mask
from dkgp.data.stores.dataset import DATASET_KIND, Dataset
from dkgp.data.stores.dataset_writer import MINIMUM_TRAINING_SAMPLES, DatasetWriter
from dkgp.data.stores.writable import ensure_writable
from dkgp.data.types import BoolArray, FloatArray, Json, Location, Progress, ProgressCallback
from dkgp.errors import InputError, UsageError

__all__ = ["IngestReport", "ingest"]


@dataclass(frozen=True)
class IngestReport:
    """The record of an ingestion.

    Attributes
    ----------
    train, test
        The stores that were written.
    n_samples
        Samples in the sources.
    seconds
        Wall-clock time.
    warnings
        What the user should hear of, such as the constant features that were dropped.
    """

    train: Dataset
    test: Dataset | None
    n_samples: int
    seconds: float
    warnings: tuple[str, ...]

    def to_json(self) -> Json:
        """Plain numbers, text and lists."""
        classes, counts = self.train.classes, self.train.class_counts
        return {
            "train": self.train.url,
            "test": None if self.test is None else self.test.url,
            "n": self.n_samples,
            "n_train": self.train.n_samples,
            "n_test": 0 if self.test is None else self.test.n_samples,
            "d": self.train.n_features,
            "p": self.train.n_targets,
            "features": list(self.train.feature_names),
            "targets": list(self.train.target_names),
            "classes": None if classes is None else list(classes),
            "class_counts": None if counts is None else list(counts),
            "fingerprint": self.train.fingerprint,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
        }


def ingest(
    sources: Location | Sequence[Location],
    out: Location,
    *,
    target: Selector | Sequence[Selector] | None = None,
    labels: Selector | None = None,
    weights: Selector | None = None,
    features: Sequence[Selector] | None = None,
    test_fraction: float | None = None,
    test_out: Location | None = None,
    test_mask: str | NDArray[np.bool_] | None = None,
    stratify: bool | None = None,
    seed: int = 0,
    overwrite: bool = False,
    chunk_rows: int | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> IngestReport:
    """Read sources into a dataset store, and perhaps a second one for testing.

    Formats, recognised by content: those of `dkgp.data.sources.formats`, such as CSV and other delimited text (gzip,
    bzip2, xz too), Parquet, NPY, NPZ, NetCDF, Zarr groups, dkgp datasets. Memory stays at some tens of MiB, plus a byte
    per sample where there is a split and two where there are labels; only NPZ (and remote NPY) arrays in Fortran order
    are read as a whole.

    Parameters
    ----------
    sources
        Paths, fsspec URLs, globs or folders.
    out
        Where the (training) samples go.
    target
        Names or indices of columns; the name of a matrix stands for all its columns, NAME:COLUMN for one of them.
        A number as text is an index where no column has that name. None for inputs to be predicted at.
    labels
        Instead of a target, the column of labels, text or numbers: the store then holds codes and the classes' names,
        numbers in their order, all else in that of text. Blanks around a label are no part of it.
    weights
        Column of the samples' weights in a classification, positive numbers; with `labels` only.
    features
        As `target`; by default all columns but the targets, weights and the mask (of an NPZ: those of `X`).
    test_fraction, test_out
        Put this fraction of the samples, drawn at random, into a second store. It carries the standardisation of
        the training samples.
    test_mask
        Instead of a fraction, the test samples: a column (NAME or NAME:COLUMN) of zeros and ones, or an array.
    stratify
        Whether the random split takes the same share of every class; by default it does where there are labels.
    seed
        Of the random split.
    overwrite
        Replace dataset stores that are there.
    chunk_rows
        Rows of a chunk; default about 8192.
    progress
        Called after every block with phase "check", then "write".
    options
        Of the sources' format, as it declares them; such as `header`, whether text has one (None to find out).

    Returns
    -------
    IngestReport
        With the opened stores.

    Raises
    ------
    InputError
        Input that cannot be used; nothing has been written.
    UsageError
        Options that contradict each other.
    OutputExistsError, StorageError
        An output is taken or cannot be written; nothing is left behind.
    """
    began = time.monotonic()
    _check_options(test_fraction, test_out, test_mask, out)
    _check_label_options(target, labels, weights, stratify, test_fraction)
    outputs = [normalise_url(url) for url in (out, test_out) if url is not None]
    for url in outputs:
        ensure_writable(url, overwrite, DATASET_KIND)
    places = expand_locations(sources)
    _check_not_reading_from(places, outputs)
    source = open_source(places, options)
    mask_column = test_mask if isinstance(test_mask, str) else None
    aside = (weights, mask_column)
    selection = select_columns(source, target if labels is None else labels, features, aside, labels is not None)
    checked = _check_pass(source, selection, progress)
    found = None if selection.encoder is None else settled_labels(selection.encoder, checked.codes)
    draw = random_mask if found is None or stratify is False else found.stratified
    mask = _mask(checked, draw, test_fraction, test_mask, seed)
    told = [] if found is None else [*found.check(mask), *checked.inputs.warnings()]
    train, test, messages = _write_pass(
        source, selection, mask, checked.n_samples, outputs, overwrite, chunk_rows, progress
    )
    report_warnings = tuple(dict.fromkeys([*source.warnings, *told, *messages]))
    return IngestReport(train, test, checked.n_samples, time.monotonic() - began, report_warnings)


@dataclass
class _Checked:
    n_samples: int = 0
    mask_blocks: list[BoolArray] = field(default_factory=list)
    # Of labels only: their codes as they came, and which inputs there were.
    codes: list[NDArray[np.int16]] = field(default_factory=list)
    inputs: DistinctInputs = field(default_factory=DistinctInputs)


def _check_options(
    test_fraction: float | None, test_out: Location | None, test_mask: str | NDArray[np.bool_] | None, out: Location
) -> None:
    if test_fraction is not None and test_mask is not None:
        raise UsageError("Got both a test fraction and a test mask; give one of them.")
    split = test_fraction is not None or test_mask is not None
    if split and test_out is None:
        raise UsageError("A test split needs a place for the test samples; give `test_out`.")
    if test_out is not None and not split:
        raise UsageError("Got a place for test samples but no split; give `test_fraction` or `test_mask`.")
    if test_out is not None and normalise_url(test_out) == normalise_url(out):
        raise UsageError(f"The outputs for training and testing are the same place, '{out}'; choose two.")


def _check_label_options(
    target: Selector | Sequence[Selector] | None,
    labels: Selector | None,
    weights: Selector | None,
    stratify: bool | None,
    test_fraction: float | None,
) -> None:
    if labels is not None and target is not None and target != []:
        raise UsageError("Got both a target and labels; a column of labels is given as `labels` alone.")
    if weights is not None and labels is None:
        raise UsageError("Got `weights` without `labels`; a regression takes all samples alike. Leave them out.")
    if stratify and labels is None:
        raise UsageError("Got `stratify` without `labels`; only classes have shares. Leave it out, or name the labels.")
    if stratify is not None and test_fraction is None:
        raise UsageError("Got `stratify` without a random split; give `test_fraction`, or leave it out.")


def _check_not_reading_from(sources: list[str], outputs: list[str]) -> None:
    for source in sources:
        for url in outputs:
            if source == url or source.startswith(url + "/"):
                raise InputError(f"The output '{url}' is also a source; choose another output.")


def _blocks(source: Source, selection: Selection, phase: str, progress: ProgressCallback | None) -> Iterator[Block]:
    encoder, n_rows = selection.encoder, 0 if selection.encoder is None else selection.encoder.rows_seen
    for block in source.blocks(selection.columns):
        n_rows += len(block.values)
        if encoder is not None and encoder.rows_seen < n_rows:
            # A source that knows of no labels gave numbers; they are labels too.
            column = len(selection.features)
            block.values[:, column] = encoder(block.values[:, column], block.place)
        yield block
        if progress is not None:
            progress(Progress(phase, block.position, source.total, source.unit))


def _check_pass(source: Source, selection: Selection, progress: ProgressCallback | None) -> _Checked:
    """Read everything once; raise for what cannot be used."""
    checked = _Checked()
    columns = selection.columns
    bad_counts = np.zeros(len(columns), dtype=np.int64)
    first_bad: dict[int, str] = {}
    lowest, highest = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
    for block in _blocks(source, selection, "check", progress):
        values = block.values
        checked.n_samples += len(values)
        # A sum is finite only if all its terms are, and needs no temporary; where it overflows, look closer.
        with np.errstate(all="ignore"):
            suspicious = not np.isfinite(values.sum())
        if suspicious:
            bad = ~np.isfinite(values)
            bad_counts += bad.sum(axis=0)
            for index in np.flatnonzero(bad.any(axis=0)).tolist():
                row = int(np.argmax(bad[:, index]))
                first_bad.setdefault(index, f"{_named(values[row, index])} in {block.place(row)}")
        if selection.mask is not None and not first_bad:
            checked.mask_blocks.append(mask_from_column(values[:, -1], selection.mask.name))
        if selection.encoder is not None and not first_bad:
            checked.codes.append(values[:, len(selection.features)].astype(np.int16))
            checked.inputs.update(values[:, : len(selection.features)])
        if len(values):
            lowest, highest = np.minimum(lowest, values.min(axis=0)), np.maximum(highest, values.max(axis=0))
    if first_bad:
        raise _not_finite(columns, bad_counts, first_bad)
    _check_enough(source, selection, checked.n_samples)
    for column, least in zip(
        selection.weights, lowest[len(selection.features) + len(selection.targets) :], strict=False
    ):
        if least <= 0.0:
            raise InputError(f"The weights '{column.name}' go down to {least:g}; expected positive numbers.")
    _check_constant(selection, lowest == highest, lowest, checked.n_samples)
    return checked


def _check_constant(selection: Selection, constant: BoolArray, values: FloatArray, n_samples: int) -> None:
    """`InputError` where there is nothing to learn, or nothing to learn it from (of labels: `LabelEncoder.settle`)."""
    d = len(selection.features)
    if selection.encoder is not None:
        if constant[:d].all():
            raise InputError(
                f"All {n_samples} samples have the same inputs, so that nothing tells the classes apart; choose other "
                "features."
            )
        return
    for index, column in enumerate(selection.targets, start=d):
        if constant[index]:
            raise InputError(
                f"The target '{column.name}' is constant: all {n_samples} samples hold {values[index]:g}. "
                "There is nothing to learn; choose another target."
            )


def _check_enough(source: Source, selection: Selection, n_samples: int) -> None:
    needed = MINIMUM_TRAINING_SAMPLES if selection.targets else 1
    if n_samples < needed:
        raise InputError(
            f"'{source.url}' holds {n_samples} sample{'' if n_samples == 1 else 's'}; at least {needed} "
            f"{'is' if needed == 1 else 'are'} needed."
        )


def _named(value: float) -> str:
    return "a missing value or NaN" if np.isnan(value) else "infinity" if value > 0 else "minus infinity"


def _not_finite(columns: Sequence[Column], counts: NDArray[np.int64], first: dict[int, str]) -> InputError:
    lines = [
        f"'{columns[index].name}' holds {where} ({counts[index]} such value{'' if counts[index] == 1 else 's'} in all)"
        for index, where in list(first.items())[:5]
    ]
    more = f"; {len(first) - 5} more columns too" if len(first) > 5 else ""
    return InputError(
        f"The data are not finite: {'; '.join(lines)}{more}. Remove those rows, fill them in, or leave the column out."
    )


def _mask(
    checked: _Checked,
    draw: Callable[[int, float, int], BoolArray],
    test_fraction: float | None,
    test_mask: str | NDArray[np.bool_] | None,
    seed: int,
) -> BoolArray | None:
    if test_fraction is not None:
        mask = draw(checked.n_samples, test_fraction, seed)
    elif isinstance(test_mask, str):
        mask = np.concatenate(checked.mask_blocks)
    elif test_mask is not None:
        given = np.asarray(test_mask)
        if given.shape != (checked.n_samples,):
            raise InputError(f"The test mask has shape {given.shape}; expected ({checked.n_samples},).")
        mask = mask_from_column(given.astype(np.float64), "test_mask")
    else:
        return None
    check_split(mask)
    return mask


def _write_pass(
    source: Source,
    selection: Selection,
    mask: BoolArray | None,
    n_samples: int,
    outputs: list[str],
    overwrite: bool,
    chunk_rows: int | None,
    progress: ProgressCallback | None,
) -> tuple[Dataset, Dataset | None, list[str]]:
    features = [column.name for column in selection.features]
    targets = [column.name for column in selection.targets]
    classes = None if selection.encoder is None else selection.encoder.classes
    weight_name = selection.weights[0].name if selection.weights else None
    n_test = 0 if mask is None else int(mask.sum())
    sizes = [n_samples - n_test, n_test]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                DatasetWriter.create(url, features, targets, chunk_rows, overwrite, size, classes, weight_name)
            )
            for url, size in zip(outputs, sizes, strict=False)
        ]
        start = 0
        for block in _blocks(source, selection, "write", progress):
            parts = _split_columns(block.values, selection)
            stop = start + len(block.values)
            if mask is None:
                writers[0].append(*parts)
            else:
                is_test = mask[start:stop]
                if len(is_test) < len(block.values):
                    raise InputError(f"'{source.url}' changed while it was read; ingest it again.")
                writers[0].append(*(part[~is_test] for part in parts))
                writers[1].append(*(part[is_test] for part in parts))
            start = stop
        train = writers[0].finish()
        if mask is None:
            return train, None, writers[0].warnings
        try:
            test = writers[1].finish(train.standardisation)
        except BaseException:
            # Half a result is none.
            remove_tree(train.url)
            raise
        return train, test, writers[0].warnings


def _split_columns(values: FloatArray, selection: Selection) -> list[FloatArray]:
    """Inputs, targets and weights."""
    d, p = len(selection.features), len(selection.targets)
    return [values[:, :d], values[:, d : d + p], values[:, d + p : d + p + len(selection.weights)]]
