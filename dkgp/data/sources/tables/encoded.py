"""A source whose columns are what an encoding makes of another source's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.sources.base import MISSING_TEXTS, Block, Column, Source, find_columns
from dkgp.data.sources.id_texts import IdTexts
from dkgp.data.sources.tables.encoding import Categories, Encoding, Places, Rule, gaps
from dkgp.data.sources.tables.learning import DateLearner, Learner, LevelLearner, NumberLearner, TableOptions
from dkgp.data.types import FloatArray, IntArray, Progress, ProgressCallback, quoted
from dkgp.errors import InputError

Encode: TypeAlias = Callable[..., FloatArray]


class EncodedSource(Source):
    """The columns of `source` after an encoding; rows with gaps are left out where it says so.

    Raises `InputError` where the encoding names a column that is not there.
    """

    def __init__(self, source: Source, encoding: Encoding) -> None:
        self.source, self.encoding = source, encoding
        self.url, self.unit, self.total, self.warnings = source.url, source.unit, source.total, source.warnings
        self.left_out = {**source.left_out, **dict.fromkeys(encoding.dropped, "was dropped")}
        present = {column.name for column in source.columns}
        missing = [name for name in (*encoding.rules, *encoding.dropped) if name not in present]
        if missing:
            raise InputError(
                f"'{source.url}' has no column {quoted(missing[:5])}, which the encoding names; it has "
                f"{quoted([column.name for column in source.columns])}."
            )
        self._origins: dict[Column, tuple[Column, int]] = {}
        dropped = set(encoding.dropped)
        made = {column: self._made_of(column) for column in source.columns if column.name not in dropped}
        self.columns = tuple(column for columns in made.values() for column in columns)
        self.positional = tuple(column for origin in source.positional for column in made.get(origin, ()))
        self.groups = {
            name: tuple(made_column for column in columns for made_column in made.get(column, ()))
            for name, columns in source.groups.items()
        }
        # A name that is no longer a column's own stands for all that became of it.
        names = {column.name for column in self.columns}
        self.groups |= {origin.name: columns for origin, columns in made.items() if origin.name not in names}

    def _made_of(self, origin: Column) -> tuple[Column, ...]:
        rule = self.encoding.rules.get(origin.name)
        names = (origin.name,) if rule is None else rule.names(origin.name)
        columns = tuple(
            Column(name, origin.array if rule is None else origin.name, origin.index if rule is None else position)
            for position, name in enumerate(names)
        )
        self._origins |= {column: (origin, position) for position, column in enumerate(columns)}
        return columns

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples that are kept, of the chosen columns."""
        wanted = [self._origins[column] for column in columns]
        encoders = {self._origins[column]: column.encode for column in columns}
        origins = list(dict.fromkeys(origin for origin, _ in wanted))
        read = {origin: self._reading(origin, encoders.get((origin, 0))) for origin in origins}
        for block in self.source.blocks([self._asked(origin, encode) for origin, encode in read.items()]):
            made = {
                origin: self._features(origin, _numbers(encode, block, position))
                for position, (origin, encode) in enumerate(read.items())
            }
            values = np.stack([made[origin][:, position] for origin, position in wanted], axis=1)
            rows = np.arange(len(values))
            if self.encoding.drop_gaps:
                rows = np.flatnonzero(~np.isnan(values).any(axis=1))
            yield Block(values[rows], _places(block, rows), block.position)

    def _reading(self, origin: Column, encode: Encode | None) -> Encode | None:
        """Return the encoder of a column: of labels their own, of other columns their rule."""
        texts = frozenset(self.encoding.gap_texts)
        if isinstance(encode, IdTexts):
            return _Asked(encode)  # a gap is a text, too
        if encode is not None:
            return _Labels(encode, texts)
        rule = self.encoding.rule(origin.name)
        return None if rule is None else _Asked(rule.read)

    def _asked(self, origin: Column, encode: Encode | None) -> Column:
        """Return the column of the source with its encoder, and the texts that are no missing values of it."""
        kept: frozenset[str] = frozenset()
        if isinstance(encode, _Asked) and isinstance(encode.encode, IdTexts):
            kept = MISSING_TEXTS
        elif isinstance(encode, _Labels) or isinstance(self.encoding.rules.get(origin.name), Categories):
            kept = frozenset(self.encoding.not_missing)
        return replace(origin, encode=encode, not_missing=kept)

    def _features(self, origin: Column, numbers: FloatArray) -> FloatArray:
        rule = self.encoding.rule(origin.name)
        return numbers[:, None] if rule is None else rule.features(numbers)


class _Asked:
    """Tells whether a source applied `encode`: one of plain numbers does not know that it may be asked to."""

    def __init__(self, encode: Encode) -> None:
        self.encode, self.rows = encode, 0

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        self.rows += len(values)
        return self.encode(np.asarray(values), place, untyped)


class _Labels:
    """Labels, of which only those that are there go through `encode`; NaN for gaps."""

    def __init__(self, encode: Encode, texts: frozenset[str]) -> None:
        self.encode, self.texts = encode, texts

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        values = np.asarray(values)
        rows = np.flatnonzero(~gaps(values, self.texts))
        codes = np.full(len(values), np.nan)
        codes[rows] = self.encode(values[rows], lambda row: place(int(rows[row])), untyped)
        return codes


def _numbers(encode: Encode | None, block: Block, position: int) -> FloatArray:
    """A column's numbers in a block, after `encode` also where the source did not apply it."""
    values = block.values[:, position]
    if isinstance(encode, _Asked):
        applied, encode.rows = encode.rows >= len(values), 0
        return values if applied else encode.encode(values, block.place, False)
    return values


def _places(block: Block, rows: IntArray) -> Callable[[int], str]:
    return lambda row: block.place(int(rows[row]))


def learned_encoding(
    source: Source, options: TableOptions, targets: Sequence[Column], progress: ProgressCallback | None
) -> Encoding:
    """Find the rules that a user asked for, in one pass over the columns that they are about.

    `targets` are the columns that are no features (targets, labels, weights, ids, mask): their gaps are not filled in.
    `InputError` where a column is not there, is a target, or does not hold what it is said to hold.
    """
    texts, impute = frozenset(options.gap_texts), options.impute is not None
    aside, with_unit = set(targets), set(options.numbers)
    learners: dict[str, Learner] = {name: LevelLearner(name, texts, impute) for name in options.categorical}
    for name, form in options.date_formats:
        learners[name] = DateLearner(name, texts, form, options.cyclic.get(name, ()))
    named = {name: _column(source, name) for name in (*learners, *options.ordinal, *options.drop)}
    taken = [name for name, column in named.items() if column in aside]
    if taken:
        raise InputError(
            f"The column '{taken[0]}' is a target or an id, and encoded or dropped as a feature; choose one. A column "
            "of labels is encoded by itself."
        )
    numeric = {name: _column(source, name) for name in options.numbers}
    if impute:
        features = [column for column in source.positional if column not in aside and column.name not in named]
        numeric |= {column.name: column for column in features}
    for name, column in numeric.items():
        filled, has_unit = impute and column not in aside, name in with_unit
        learners[name] = NumberLearner(name, texts, filled, options.notation, has_unit)
    named |= numeric
    if learners:
        asked = {name: _Asked(learner) for name, learner in learners.items()}
        kept = {name: frozenset(options.not_missing) for name in options.categorical}
        columns = [
            replace(named[name], encode=encode, not_missing=kept.get(name, frozenset()))
            for name, encode in asked.items()
        ]
        for block in source.blocks(columns):
            for position, encode in enumerate(asked.values()):
                _numbers(encode, block, position)
            if progress is not None:
                progress(Progress("encode", block.position, source.total, source.unit))
    rules: dict[str, Rule] = {name: Categories(name, levels, ranked=True) for name, levels in options.ordinal.items()}
    rules |= {name: learner.rule() for name, learner in learners.items()}
    return Encoding(
        rules, options.drop, options.gap_texts, options.drop_gaps, (), options.notation, options.not_missing
    )


def settled_options(encoding: Encoding) -> TableOptions:
    """Return options that name the columns which an encoding has rules for, so that a survey leaves them alone."""
    return TableOptions(
        categorical=tuple(name for name in encoding.rules if name not in encoding.dropped),
        drop=encoding.dropped,
        gap_texts=encoding.gap_texts,
        drop_gaps=encoding.drop_gaps,
        decimal=encoding.notation.decimal,
        thousands=encoding.notation.thousands,
        not_missing=encoding.not_missing,
    )


def _column(source: Source, name: str) -> Column:
    columns = find_columns(source, name, "column")
    if len(columns) != 1:
        raise InputError(f"'{name}' stands for {len(columns)} columns; name one.")
    return columns[0]
