"""The two passes over a source: the first reads and checks every value, the second writes the stores.

So bad input is found while nothing has been written and nothing that was there has been replaced.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import remove_tree
from dkgp.data.sources.base import Block, Column, ColumnError, Source
from dkgp.data.sources.selection import (
    IdTexts,
    LabelEncoder,
    Selection,
    SettledLabels,
    mask_from_column,
    settled_labels,
)
from dkgp.data.sources.tables.encoding import Encoding
from dkgp.data.sources.tables.survey import RepeatedRows
from dkgp.data.stores.dataset import ColumnNames, Dataset, TrainingColumns
from dkgp.data.stores.dataset_writer import MINIMUM_TRAINING_SAMPLES, DatasetWriter
from dkgp.data.stores.standardisation import (
    Scale,
    Standardisation,
    TransformName,
    require_positive,
    require_varying_targets,
)
from dkgp.data.types import BoolArray, FloatArray, quoted
from dkgp.errors import InputError
from dkgp.progress import Progress, ProgressCallback

# Beyond so many different inputs, or so many samples, repeated inputs are not counted.
_MOST_INPUTS = 5000
_MOST_SAMPLES = 1_000_000
# Rows that stand for all in quartiles; standard deviations that their distance is to exceed.
_MOST_ROWS, _LEAST_SHARE = 256, 1e-3
# Of a standard deviation, whose square is to be a number.
MOST_DEVIATION = 1e150


class Passes:
    """The passes over the chosen columns of a source; `check` comes first, then `write`.

    Memory holds a byte a sample where there is a test mask among the columns, and two where there are labels. Samples
    that nothing can be learnt from are refused, unless `training` names the training set that they are tests for.

    Attributes
    ----------
    scale, covariates
        As for `ingest`; may be set before `write`.
    splits
        Whether test samples are split off, so that these samples are no test set; may be set before `check`.
    """

    scale: Scale = "each"
    covariates: tuple[str, ...] = ()
    splits: bool = False

    def __init__(
        self,
        source: Source,
        selection: Selection,
        progress: ProgressCallback | None,
        encoding: Encoding | None = None,
        transform: TransformName | None = None,
        training: TrainingColumns | None = None,
    ) -> None:
        self.n_samples = 0
        self._training = training
        # Of the training set, where these samples have none.
        self._standardisation: Standardisation | None = None
        self._source, self._selection, self._progress = source, selection, progress
        self._encoding, self._transform = encoding or None, transform
        self._repeats, self._sample = RepeatedRows(), _RowSample()
        # Of the features and of targets that are numbers, after the first pass.
        self._lowest, self._highest = np.empty(0), np.empty(0)
        self._mask_blocks: list[BoolArray] = []
        # Of the block that is under way, (rows, columns).
        self._ids: NDArray[np.object_] = np.empty((0, 0), dtype=object)
        # Of labels only: their codes as they came, and which inputs there were.
        self._codes: list[NDArray[np.int16]] = []
        self._inputs = DistinctInputs()

    def check(self) -> None:
        """Read everything once; `InputError` for values that cannot be used."""
        selection = self._selection
        columns = selection.columns
        bad_counts = np.zeros(len(columns), dtype=np.int64)
        first_bad: dict[int, str] = {}
        lowest, highest = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
        for block in self._blocks("check"):
            values = block.values
            self.n_samples += len(values)
            # A sum is finite only if all its terms are, and needs no temporary; where it overflows, look closer.
            with np.errstate(all="ignore"):
                suspicious = not np.isfinite(values.sum())
            if suspicious:
                bad = ~np.isfinite(values)
                bad_counts += bad.sum(axis=0)
                for index in np.flatnonzero(bad.any(axis=0)).tolist():
                    row = int(np.argmax(bad[:, index]))
                    first_bad.setdefault(index, f"{_kind_of(values[row, index])} in {block.place(row)}")
            if not first_bad:
                self._remember(values)
                if self._transform == "log":
                    for index, column in enumerate(selection.targets, start=len(selection.features)):
                        require_positive(values[:, index], column.name, block.place)
                self._check_noise(block)
            if len(values):
                lowest, highest = np.minimum(lowest, values.min(axis=0)), np.maximum(highest, values.max(axis=0))
        if first_bad:
            error = _not_finite(columns, bad_counts, first_bad)
            first, several = len(selection.features), len(selection.targets) > 1
            if several and any(first <= index < first + len(selection.targets) for index in first_bad):
                raise ColumnError(
                    f"{error} Targets that are not all known of the same samples are ingested one by one, each without "
                    "the samples that lack it: name one target, `drop` the others, and `drop_missing`."
                )
            raise error
        self._lowest, self._highest = lowest, highest
        self._check_trainable(lowest == highest, lowest)
        weights = lowest[len(selection.features) + len(selection.targets) :]
        for column, least in zip(selection.weights if selection.noise is None else (), weights, strict=False):
            if least <= 0.0:
                raise InputError(f"The weights '{column.name}' go down to {least:g}; expected positive numbers.")

    def labels(self) -> SettledLabels | None:
        """The labels of all samples, after the first pass; None where the target is a number."""
        selection, training = self._selection, self._training
        if selection.encoder is None:
            return None
        known = () if training is None else training.classes or ()
        try:
            labels = settled_labels(selection.encoder, self._codes, known)
        except InputError as error:
            raise InputError(f"{error}{'' if training else self._advice}") from None
        if training is not None and (labels.codes == labels.codes[0]).all():
            names = [column.name for column in selection.features]
            self._standardisation = training.standardisation_of(names, [selection.encoder.name])
        return labels

    def mask_column(self) -> BoolArray | None:
        """The test mask that a column holds, (n,), after the first pass; None where no column is one."""
        return np.concatenate(self._mask_blocks) if self._mask_blocks else None

    def extremes(self) -> list[str]:
        """Warnings of columns whose range leaves most of their values alike once they are standardised."""
        selection = self._selection
        columns = [*selection.features, *(() if selection.encoder is not None else selection.targets)]
        sample = self._sample.rows[:, : len(columns)]
        lowest, highest = self._lowest[: len(columns)], self._highest[: len(columns)]
        with np.errstate(all="ignore"):
            quarter, three_quarters = np.quantile(sample, (0.25, 0.75), axis=0)
            # A standard deviation is at least the range over the root of 2 n.
            share = (three_quarters - quarter) * (2.0 * self.n_samples) ** 0.5 / (highest - lowest)
        return [
            f"The values of '{columns[index].name}' reach from {lowest[index]:g} to {highest[index]:g}, and the middle "
            f"half of them lies between {quarter[index]:g} and {three_quarters[index]:g}, within {share[index]:.1g} "
            "standard deviations: they all look alike to a model. If the extreme values are mistakes, or stand for "
            "missing ones, remove them first; otherwise take the column's logarithm."
            for index in np.flatnonzero((share > 0.0) & (share < _LEAST_SHARE)).tolist()
        ]

    def repeats(self) -> list[str]:
        """Warnings where samples repeat others: of a regression any, of a classification the inputs of most."""
        if self._selection.encoder is not None:
            return self._inputs.warnings()
        count = self._repeats.count() if self._selection.targets else 0
        if not count:
            return []
        return [
            f"{count:,} of the {self.n_samples:,} samples repeat an earlier one, target included. Each counts as an "
            "observation of its own, which makes the noise look smaller than it is; where they are copies by mistake, "
            "remove them first."
        ]

    def write(
        self, outputs: list[str], mask: BoolArray | None, overwrite: bool, chunk_rows: int | None
    ) -> tuple[Dataset, Dataset | None, list[str]]:
        """Write the store, or those for training and for testing by a mask; return the warnings too."""
        selection = self._selection
        n_test = 0 if mask is None else int(mask.sum())
        with ExitStack() as stack:
            names = ColumnNames.checked(
                [column.name for column in selection.features],
                [column.name for column in selection.targets],
                None if selection.encoder is None else selection.encoder.classes,
                selection.weights[0].name if selection.weights and selection.noise is None else None,
                [(kept.name, kept.width) for kept in selection.id_texts],
                None if selection.noise is None else selection.weights[0].name,
            )
            names = dataclasses.replace(names, covariates=self.covariates)
            writers = [
                stack.enter_context(DatasetWriter.of_names(url, names, chunk_rows, overwrite, size))
                for url, size in zip(outputs, (self.n_samples - n_test, n_test), strict=False)
            ]
            for writer in writers:
                writer.encoding = None if self._encoding is None else self._encoding.to_json()
                writer.transform, writer.scale = self._transform, self.scale
            start = 0
            for block in self._blocks("write"):
                parts = self._parts(block.values)
                stop = start + len(block.values)
                if mask is None:
                    writers[0].append(*parts)
                else:
                    is_test = mask[start:stop]
                    if len(is_test) < len(block.values):
                        raise InputError(f"'{self._source.url}' changed while it was read; ingest it again.")
                    writers[0].append(*(part[~is_test] for part in parts))
                    writers[1].append(*(part[is_test] for part in parts))
                start = stop
            train = writers[0].finish(self._standardisation)
            if mask is None:
                return train, None, writers[0].warnings
            try:
                test = writers[1].finish(train.standardisation)
            except BaseException:
                # Half a result is none.
                remove_tree(train.url)
                raise
            return train, test, writers[0].warnings

    def _blocks(self, phase: str) -> Iterator[Block]:
        source, selection = self._source, self._selection
        # Where labels and ids stand among the columns, and how many rows they will have seen.
        encoders: dict[int, LabelEncoder | IdTexts] = dict(enumerate(selection.id_texts, start=self._first_id))
        if selection.encoder is not None:
            encoders[len(selection.features)] = selection.encoder
        n_rows = {column: encode.rows_seen for column, encode in encoders.items()}
        for block in source.blocks(selection.columns):
            for column, encode in encoders.items():
                n_rows[column] += len(block.values)
                if encode.rows_seen < n_rows[column]:
                    # A source that knows of no text gave numbers; they are labels or ids too.
                    block.values[:, column] = encode(block.values[:, column], block.place)
            ids = [
                kept.take(block.values[:, column])
                for column, kept in enumerate(selection.id_texts, start=self._first_id)
            ]
            self._ids = np.stack(ids, axis=1) if ids else np.empty((len(block.values), 0), dtype=object)
            yield block
            if self._progress is not None:
                self._progress(Progress(phase, block.position, source.total, source.unit))

    def _remember(self, values: FloatArray) -> None:
        selection = self._selection
        d = len(selection.features)
        self._sample.update(values)
        if selection.mask is not None:
            self._mask_blocks.append(mask_from_column(values[:, -1], selection.mask.name))
        if selection.encoder is not None:
            self._codes.append(values[:, d].astype(np.int16))
            self._inputs.update(values[:, :d])
        else:
            self._repeats.update(values[:, : d + len(selection.targets)])

    @property
    def _first_id(self) -> int:
        """The column of the first id in a block."""
        selection = self._selection
        return len(selection.features) + len(selection.targets) + len(selection.weights)

    def _parts(self, values: FloatArray) -> list[NDArray[Any]]:
        """Inputs, targets and weights or noise variances, and texts of ids, of the block that is under way."""
        d, p = len(self._selection.features), len(self._selection.targets)
        beside = values[:, d + p : self._first_id]
        if self._selection.noise == "deviations":
            beside = beside**2
        return [values[:, :d], values[:, d : d + p], beside, self._ids]

    def _check_noise(self, block: Block) -> None:
        """`InputError` for noise below zero, by its place, or a deviation whose square overflows."""
        selection = self._selection
        if selection.noise is None:
            return
        noise = block.values[:, len(selection.features) + len(selection.targets)]
        odd = noise < 0.0 if selection.noise == "variances" else ~((noise >= 0.0) & (noise <= MOST_DEVIATION))
        if odd.any():
            row = int(np.argmax(odd))
            raise InputError(
                f"The noise '{selection.weights[0].name}' is {noise[row]:g} in {block.place(row)}; expected "
                f"{'variances' if selection.noise == 'variances' else 'standard deviations'}, none below zero. Leave "
                "out samples that nothing is known of, or the column."
            )

    def _check_trainable(self, constant: BoolArray, values: FloatArray) -> None:
        """Refuse samples that nothing can be learnt from; tests of a training set take its standardisation instead.

        Of labels, `LabelEncoder.settle` refuses a single class.
        """
        selection = self._selection
        features = [column.name for column in selection.features]
        targets = [column.name for column in selection.targets]
        d, p = len(features), len(targets)
        n, needed = self.n_samples, MINIMUM_TRAINING_SAMPLES if targets else 1
        try:
            if n < needed:
                raise InputError(
                    f"'{self._source.url}' holds {n} sample{'' if n == 1 else 's'}; at least {needed} "
                    f"{'is' if needed == 1 else 'are'} needed."
                )
            if selection.encoder is None:
                require_varying_targets(targets, constant[d : d + p], values[d : d + p], n)
            if p and constant[:d].all():
                raise InputError(
                    f"No feature ({d} in all) varies over the {n:,} samples; at least one must."
                    if selection.encoder is None
                    else f"All {n} samples have the same inputs, so that nothing tells the classes apart; choose other "
                    "features."
                )
        except InputError as error:
            if n and p and self._training is not None:
                self._standardisation = self._training.standardisation_of(features, targets)
            if self._standardisation is None:
                raise InputError(f"{error}{self._advice}") from None

    @property
    def _advice(self) -> str:
        """Words on samples that are no training set."""
        if not self.n_samples or not self._selection.targets or self.splits:
            return ""
        if self._training is None:
            return " If these are test samples of a model, name the model with `like`."
        return (
            f" The store that `like` names has the features {quoted(self._training.features)} and the targets "
            f"{quoted(self._training.targets)}; with these, such samples can be tests."
        )


class _RowSample:
    """Keeps every row up to a few hundred, beyond it every second, fourth, ... row."""

    def __init__(self) -> None:
        self._rows: list[FloatArray] = []
        self._count, self._step, self._seen = 0, 1, 0

    def update(self, values: FloatArray) -> None:
        """Take in the next rows, (rows, columns)."""
        kept = values[-self._seen % self._step :: self._step]
        self._seen += len(values)
        while self._count + len(kept) > _MOST_ROWS:
            rows = np.concatenate([*self._rows, kept])[::2]
            self._rows, self._count, kept = [], 0, rows
            self._step *= 2
        if len(kept):
            self._rows.append(kept.copy())
            self._count += len(kept)

    @property
    def rows(self) -> FloatArray:
        """The rows that are kept, (rows, columns)."""
        return np.concatenate(self._rows)


class DistinctInputs:
    """Counts different inputs as they pass: a model of few prototypes can have no more than there are of them.

    Up to a few thousand; beyond that nothing need be said.
    """

    def __init__(self) -> None:
        self.n_samples = 0
        self._seen: set[bytes] | None = set()

    def update(self, rows: FloatArray) -> None:
        """Take in raw inputs, (rows, d)."""
        self.n_samples += len(rows)
        if self._seen is None:
            return
        # Adding 0.0 makes one zero of the two. Piece by piece, since most tables have too many at once.
        for start in range(0, len(rows), _MOST_INPUTS):
            # Digests, since there may be many features.
            self._seen.update(_digest(row) for row in rows[start : start + _MOST_INPUTS] + 0.0)
            if len(self._seen) > _MOST_INPUTS or self.n_samples > _MOST_SAMPLES:
                self._seen = None
                return

    def warnings(self) -> list[str]:
        """One, if at least half of the samples repeat the inputs of another."""
        if self._seen is None or 2 * len(self._seen) > self.n_samples:
            return []
        return [
            f"Only {len(self._seen)} of the {self.n_samples} samples have inputs of their own; the others repeat them. "
            f"A model has no more than {len(self._seen)} prototypes to choose from."
        ]


def _digest(row: FloatArray) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _kind_of(value: float) -> str:
    return "a missing value or NaN" if np.isnan(value) else "infinity" if value > 0 else "minus infinity"


def _not_finite(columns: Sequence[Column], counts: NDArray[np.int64], first: dict[int, str]) -> ColumnError:
    lines = [
        f"'{columns[index].name}' holds {where} ({counts[index]} such value{'' if counts[index] == 1 else 's'} in all)"
        for index, where in list(first.items())[:5]
    ]
    more = f"; {len(first) - 5} more columns too" if len(first) > 5 else ""
    return ColumnError(
        f"The data are not finite: {'; '.join(lines)}{more}. Remove those rows, fill them in, or leave the column out."
    )
