"""From files, or from dask arrays, to dataset stores.

`ingest` opens sources, chooses columns and splits off test samples (see `passes`). `ingest_blocks` writes dask arrays,
a few row chunks at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.codec import to_json
from dkgp.data.remote.storage import normalise_url
from dkgp.data.sources.base import ColumnError, Source, find_columns
from dkgp.data.sources.formats import expand_locations, open_source
from dkgp.data.sources.passes import Passes
from dkgp.data.sources.selection import ColumnChoice, Selector, Split, select_columns
from dkgp.data.sources.tables.encoding import Encoding, Unseen
from dkgp.data.sources.tables.learning import EncodedSource, TableOptions, learned_encoding, settled_options
from dkgp.data.sources.tables.survey import RefusedColumnsError, survey
from dkgp.data.stores.dataset import DATASET_KIND, Dataset, TrainingColumns
from dkgp.data.stores.dataset_writer import DatasetWriter
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.standardisation import Scale, TransformName
from dkgp.data.stores.writable import ensure_writable
from dkgp.data.types import FloatArray, Json, Location
from dkgp.errors import InputError, UsageError
from dkgp.progress import ProgressCallback


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
        Warnings for the user, such as constant features that were dropped.
    """

    train: Dataset
    test: Dataset | None
    n_samples: int
    seconds: float
    warnings: tuple[str, ...]

    def to_json(self) -> Json:
        """Plain numbers, text and lists."""
        transforms = self.train.standardisation.transforms
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
            "feature_std": self.train.standardisation.input_std.tolist(),
            **({"covariates": list(self.train.covariate_names)} if self.train.covariate_names else {}),
            "targets": list(self.train.target_names),
            "ids": list(self.train.id_names),
            **({} if self.train.noise_name is None else {"noise": self.train.noise_name}),
            "classes": None if classes is None else list(classes),
            "class_counts": None if counts is None else list(counts),
            **({"transforms": to_json(transforms)} if transforms else {}),
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
    ids: Sequence[Selector] = (),
    noise_column: Selector | None = None,
    noise_std_column: Selector | None = None,
    test_fraction: float | None = None,
    test_out: Location | None = None,
    test_mask: str | NDArray[np.bool_] | None = None,
    stratify: bool | None = None,
    seed: int = 0,
    overwrite: bool = False,
    chunk_rows: int | None = None,
    table: TableOptions | None = None,
    like: Location | None = None,
    unseen: Unseen = "refuse",
    transform: TransformName | None = None,
    covariates: Sequence[str] = (),
    scale: Scale = "each",
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
        As `target`; by default all columns but the targets, weights, noise and the mask (of an NPZ: those of `X`).
    ids
        Columns that identify samples: no features, kept as text beside the samples, and put into tables of predictions.
    noise_column, noise_std_column
        Column of the known noise of each sample's target: variances in its units squared, or standard deviations; none
        below zero. Of one target that is a number, and not transformed.
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
    table
        Rules for columns of text, dates and gaps. Those that are learnt, levels and medians, are of all rows that are
        read; the store keeps them.
    like
        A dataset or model store whose rules are applied again, instead of `table`; for new data to predict at, or to
        evaluate a model on. The features are then that store's. New data may be one sample, of one class, or have a
        constant target: they then take the standardisation and the classes of that store.
    unseen
        With `like`: "refuse" a level that the store has not seen, or make "zeros" of it.
    transform
        "log" or "yeo-johnson": the transform of the targets before they are standardised, so that models are of
        transformed targets; the stores keep them as they are. Of Yeo and Johnson's, lambda is the training targets' by
        maximum likelihood, between 0 and 2.
    covariates
        Names of columns, as they are encoded, that enter the mean of a model alone: they are no features of its kernel,
        and predictions need them. With a `target`; new data read `like` a store have those of the store.
    scale
        "each": every feature is divided by its standard deviation. "common": all features are divided by the largest
        of these, so that a kernel of one length scale stays isotropic in features that share a unit, such as metres.
    progress
        Called after every block with phase "encode" where `table` asks for it, then "check", then "write".
    options
        Of the sources' format, as it declares them; such as `header`, whether text has one (None to find out).

    Returns
    -------
    IngestReport
        With the opened stores.

    Raises
    ------
    InputError
        Input that cannot be used; nothing has been written. Where columns hold text, dates or gaps, the message tells
        of all of them, and which options solve it.
    UsageError
        Options that contradict each other.
    OutputExistsError, StorageError
        An output is taken or cannot be written; nothing is left behind.
    """
    began = time.monotonic()
    split = Split(test_fraction, test_mask, stratify, seed)
    _check_outputs(split, out, test_out)
    choice = ColumnChoice(target, labels, weights, features, ids, noise_column, noise_std_column)
    _check_stratify(split, labels)
    if transform is not None and target is None:
        raise UsageError(
            "Got `transform` without `targets`; only targets that are numbers are transformed. Leave it out."
        )
    if transform is not None and choice.by_noise is not None:
        raise UsageError(
            "Got `transform` and a column of known noise, which is that of the target as it is; leave one of them out."
        )
    if covariates and (target is None or like is not None):
        raise UsageError(
            "Got `covariates` without `targets`, or beside `like`, whose store has its own; leave them out."
        )
    if covariates and features is not None:
        choice = replace(choice, features=[*features, *(name for name in covariates if name not in features)])
    outputs = [normalise_url(url) for url in (out, test_out) if url is not None]
    for url in outputs:
        ensure_writable(url, overwrite, DATASET_KIND)
    places = expand_locations(sources)
    _check_not_reading_from(places, outputs)
    raw = open_source(places, options)
    if table or like is not None:
        choice = choice.by_name(raw)
    if table and choice.labels in table.numbers:
        raise UsageError(f"The labels '{choice.labels}' are among `numbers`; labels keep their texts. Leave them out.")
    training = None if like is None else TrainingColumns.read(like)
    table, asked = table or TableOptions(), choice
    try:
        encoding = _encoding(raw, choice, split, table, like, training, unseen, progress)
        if training is not None:
            table = settled_options(encoding)
            choice = replace(choice, ids=encoding.ids)
        source = EncodedSource(raw, encoding) if encoding.changes_columns else raw
        if choice.features is None and training is not None:
            choice = replace(choice, features=training.features)
        passes = Passes(source, select_columns(source, choice, split.column), progress, encoding, transform, training)
        passes.scale, passes.covariates, passes.splits = scale, tuple(covariates), bool(split)
        passes.check()
    except ColumnError as error:
        raise _refusal(error, raw, asked, split, table, progress, like is None) from error
    classes = passes.labels()
    mask = split.mask(passes.n_samples, passes.mask_column(), None if classes is None else classes.stratified)
    remarks = [] if classes is None else classes.check(mask)
    remarks += [*passes.repeats(), *passes.extremes()]
    train, test, messages = passes.write(outputs, mask, overwrite, chunk_rows)
    # New data are not learnt from, so that remarks on training sets say nothing of them.
    of_training = [] if training is not None else [*remarks, *messages]
    left_out = _rows_left_out(source, is_new=training is not None)
    report_warnings = tuple(dict.fromkeys([*source.warnings, *left_out, *of_training]))
    return IngestReport(train, test, passes.n_samples, time.monotonic() - began, report_warnings)


def _rows_left_out(source: Source, *, is_new: bool) -> list[str]:
    """Return a warning if rows with missing values were left out; of new data predictions then have other numbers."""
    if not isinstance(source, EncodedSource) or not source.rows_left_out:
        return []
    count, first = source.rows_left_out, source.first_left_out
    text = (
        f"{count:,} of {source.rows_read:,} rows {'has' if count == 1 else 'have'} a missing value and "
        f"{'was' if count == 1 else 'were'} left out; the first is in {first}."
    )
    numbered = " Predictions are numbered without these rows; to match them with the table, give a column as `ids`."
    return [text + (numbered if is_new and not source.encoding.ids else "")]


def _encoding(
    source: Source,
    choice: ColumnChoice,
    split: Split,
    table: TableOptions,
    like: Location | None,
    training: TrainingColumns | None,
    unseen: Unseen,
    progress: ProgressCallback | None,
) -> Encoding:
    """Return the rules that a user asks for, or those of the training set that the source is to be like."""
    ids = tuple(column.name for column in choice.identifying(source))
    if training is None:
        if unseen != "refuse":
            raise UsageError(
                "Got `unseen` without `like`: new data alone have levels that are not known. Leave it out."
            )
        aside = (*choice.aside(source, split.column), *choice.identifying(source))
        learned = learned_encoding(source, table, aside, progress) if table else Encoding()
        return replace(learned, ids=ids)
    if table:
        raise UsageError(
            "Got options for columns of text, dates, numbers or gaps beside `like`, whose store has them; drop them."
        )
    with described_whole(str(like), "write the store again"):
        encoding = Encoding() if training.encoding is None else Encoding.from_json(training.encoding, unseen)
    present, needed = {column.name for column in source.columns}, set(training.features)
    ids = ids or tuple(name for name in encoding.ids if name in present)
    # New data need no column that makes no feature: neither targets nor columns that were dropped.
    rules = {
        name: rule
        for name, rule in encoding.rules.items()
        if name in present or not needed.isdisjoint(rule.names(name))
    }
    dropped = tuple(name for name in encoding.dropped if name in present and name not in ids)
    return replace(encoding, rules=rules, ids=ids, dropped=dropped)


def _refusal(
    error: ColumnError,
    source: Source,
    choice: ColumnChoice,
    split: Split,
    table: TableOptions,
    progress: ProgressCallback | None,
    takes_options: bool,
) -> InputError:
    """Return the first problem with a column, then those of all columns, and options that solve them beside `table`."""
    targets = choice.aside(source, split.column)
    ids = choice.identifying(source)
    aside, dropped = {*targets, *ids}, set(table.drop)
    columns = [column for column in source.positional if column not in aside and column.name not in dropped]
    features = columns if choice.features is None else choice.columns(source)
    try:
        labels = () if choice.labels is None else find_columns(source, choice.labels, "column of labels")
        report = survey(source, [*features, *targets], targets, progress, table, labels)
    except InputError:  # such as a file that is damaged further on
        return InputError(str(error))
    lines, options = report.report(table), report.line(table, [column.name for column in ids])
    if not lines:
        return InputError(str(error))
    beside = " to those that you gave" if table or ids else ""
    advice = f"\nTo read the table, add these options{beside}: {options}" if options and takes_options else ""
    message = f"{error}\nColumns to look at ({report.rows:,} rows were read):\n  "
    return RefusedColumnsError(message + "\n  ".join(lines) + advice, report)


def _check_outputs(split: Split, out: Location, test_out: Location | None) -> None:
    if split and test_out is None:
        raise UsageError("A test split needs a store for the test samples; give `test_out`.")
    if test_out is not None and not split:
        raise UsageError("Got a store for test samples but no split; give `test_fraction` or `test_mask`.")
    if test_out is not None and normalise_url(test_out) == normalise_url(out):
        raise UsageError(f"The outputs for training and testing are the same place, '{out}'; choose two.")


def _check_stratify(split: Split, labels: Selector | None) -> None:
    if split.stratify and labels is None:
        raise UsageError("Got `stratify` without `labels`; only classes have shares. Leave it out, or name the labels.")
    if split.stratify is not None and split.fraction is None:
        raise UsageError("Got `stratify` without a random split; give `test_fraction`, or leave it out.")


def _check_not_reading_from(sources: list[str], outputs: list[str]) -> None:
    for source in sources:
        for url in outputs:
            if source == url or source.startswith(url + "/"):
                raise InputError(f"The output '{url}' is also a source; choose another output.")


# Chunks that are computed together, so that those who compute them have something to do side by side.
MOST_BYTES_TOGETHER = 128 * 2**20
MOST_CHUNKS_TOGETHER = 16


def ingest_blocks(
    url: Location,
    X: Any,
    y: Any,
    *,
    feature_names: Sequence[str],
    target_names: Sequence[str],
    classes: Sequence[str] | None = None,
    scheduler: Any = None,
) -> Dataset:
    """Write arrays that need not fit in memory to a dataset store.

    X is a dask array (n, d), y a dask or numpy array, (n,) or (n, p), of codes into `classes` where these are given;
    `scheduler` is as for `dask.compute`. Errors as of `DatasetWriter`.
    """
    n_samples = None if np.isnan(X.shape[0]) else int(X.shape[0])
    with DatasetWriter.create(url, feature_names, target_names, n_samples=n_samples, classes=classes) as writer:
        for inputs, targets in _blocks(X, y, scheduler):
            writer.append(inputs, targets)
        return writer.finish()


def _blocks(X: Any, y: Any, scheduler: Any) -> Iterator[tuple[FloatArray, FloatArray]]:
    from dask.base import compute

    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    if hasattr(y, "dask"):
        y = y.rechunk({1: -1}) if y.ndim == 2 and y.numblocks[1] > 1 else y
        known = not (np.isnan(X.chunks[0]).any() or np.isnan(y.chunks[0]).any())
        if known and X.shape[0] == y.shape[0]:
            y = y.rechunk({0: X.chunks[0]})
        if y.numblocks[0] != X.numblocks[0] or (known and X.shape[0] != y.shape[0]):
            raise InputError(
                f"X and y have shapes {X.shape} and {y.shape} in {X.numblocks[0]} and {y.numblocks[0]} row chunks; "
                "expected as many samples in both, and the same chunks where their sizes are not known"
            )
    count, row = X.numblocks[0], 0
    together = _together(X)
    for first in range(0, count, together):
        numbers = range(first, min(first + together, count))
        chunks = [X.blocks[number] for number in numbers]
        if hasattr(y, "dask"):
            chunks += [y.blocks[number] for number in numbers]
        values = compute(*chunks, scheduler=scheduler)
        for position in range(len(numbers)):
            inputs = np.asarray(values[position], dtype=np.float64)
            if hasattr(y, "dask"):
                targets = np.asarray(values[len(numbers) + position])
            else:
                targets = np.asarray(y[row : row + len(inputs)])
            row += len(inputs)
            yield inputs, targets
    if not hasattr(y, "dask") and row != len(y):
        raise InputError(f"X has {row} samples and y {len(y)}; expected as many in both")


def _together(X: Any) -> int:
    largest = max(X.chunks[0])
    if np.isnan(largest):
        return 1
    return int(max(1, min(MOST_CHUNKS_TOGETHER, MOST_BYTES_TOGETHER // max(1, 8 * int(largest) * X.shape[1]))))


class _RawRows:
    """A dataset's raw inputs, as something that dask can slice; pickles to a few kilobytes."""

    def __init__(self, dataset: Dataset, columns: Sequence[int]) -> None:
        self._dataset, self._columns = dataset, list(columns)
        self.shape, self.dtype, self.ndim = (dataset.n_samples, len(columns)), np.dtype(np.float64), 2

    def __getitem__(self, index: Any) -> FloatArray:
        rows, columns = index
        start, stop, _ = rows.indices(self.shape[0])
        block: FloatArray = self._dataset.raw_inputs(start, stop)[:, self._columns][:, columns]
        return block


def stored_inputs(dataset: Dataset, names: Sequence[str]) -> Any:
    """Raw inputs of a dataset store as a dask array (n, d) in the store's row chunks.

    The columns are those named; `InputError` for a name that is not there.
    """
    import dask.array
    from dask.base import tokenize

    missing = [name for name in names if name not in dataset.raw_feature_names]
    if missing:
        shown = ", ".join(f"'{name}'" for name in dataset.raw_feature_names[:20])
        raise InputError(f"'{dataset.url}' has no feature '{missing[0]}'; it has {shown}")
    rows = _RawRows(dataset, [dataset.raw_feature_names.index(name) for name in names])
    chunks = (dataset.chunk_rows, len(names))
    return dask.array.from_array(rows, chunks=chunks, name=f"dkgp-{tokenize(dataset.url, dataset.fingerprint, *names)}")
