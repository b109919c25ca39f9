"""A data set in a Zarr store: raw inputs and targets, with the standardisation that reads apply.

A `Dataset` is a handle. It pickles to a few kilobytes and opens its arrays in the process that reads from it.
`ColumnNames` checks the names of columns and classes before anything is written under them, and `TrainingColumns` are
the columns as a store describes them to new data of the same form.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkgp.data.classes import check_classes, code_map, codes_of_numbers, codes_of_targets, plain_names, signs_of
from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray, row_ranges, target_layout
from dkgp.data.stores.manifest import (
    Manifest,
    check_complete,
    described_whole,
    json_bytes,
    read_manifest,
    recognise,
    texts,
    typed,
)
from dkgp.data.stores.row_arrays import MemoryArray, RowArray
from dkgp.data.stores.standardisation import Standardisation, standardised_noise
from dkgp.data.types import FloatArray, IntArray, Json, Location, quoted
from dkgp.errors import InputError, StoreError
from dkgp.html import dataset_panel, html_repr

DATASET_KIND = "dataset"


class Dataset:
    """Handle on a finished dataset store; open one with `open_dataset`.

    Attributes
    ----------
    url
        Where the store is.
    n_samples, n_features, n_targets
        n, d (features kept) and p. p is 0 for inputs without targets, which can be predicted at but not trained on.
    chunk_rows
        Rows of a chunk: reads aligned to it touch the fewest chunks.
    feature_names, target_names
        Names of the features kept and of the targets.
    raw_feature_names
        Names of all the features stored, the dropped ones included.
    classes
        Names of the classes where the target is a label, whose targets are then codes 0, 1, ... into these names; None
        where it is a number.
    class_counts
        Samples of each class, where the store tells; else None.
    weight_name
        Name of the column that the samples' weights are of; None where all count alike.
    noise_name
        Name of the column that the known noise of the one target is of; None where there is none.
    id_names
        Names of the columns that identify samples and are no features, which `ids` reads.
    encoding
        The rules by which columns of text, dates and gaps were ingested, as JSON
        (`dkgp.data.sources.tables.encoding`); None where all were numbers.
    standardisation
        The map applied by reads.
    fingerprint
        SHA-256 (hexadecimal) of names, shapes and raw values; it does not depend on chunks, place or
        standardisation, apart from a scale that all features share and from covariates.
    """

    def __init__(
        self,
        url: str,
        arrays: Mapping[str, RowArray],
        *,
        feature_names: Sequence[str],
        target_names: Sequence[str],
        standardisation: Standardisation,
        fingerprint: str,
        n_samples: int,
        chunk_rows: int,
        classes: tuple[str, ...] | None = None,
        class_counts: tuple[int, ...] | None = None,
        weight_name: str | None = None,
        noise_name: str | None = None,
        encoding: Json | None = None,
        ids: tuple[Mapping[str, int], StoredArray] | None = None,
        standard: tuple[RowArray, RowArray] | None = None,
    ) -> None:
        """Make a data set of rows as stored, `arrays` "X" and, where there are such, "y", "w" and "noise".

        `feature_names` are those of all stored features. `ids` are the widths in bytes of id columns by name, and their
        array. `standard` are inputs and targets as `standardisation` maps them, of data that are kept so.
        """
        self.url = url
        self.raw_feature_names, self.target_names = tuple(feature_names), tuple(target_names)
        self.standardisation, self.fingerprint, self.encoding = standardisation, fingerprint, encoding
        self.n_samples, self.chunk_rows = int(n_samples), int(chunk_rows)
        self.classes, self.class_counts = classes, class_counts
        self.weight_name, self.noise_name = weight_name, noise_name
        widths: Mapping[str, int] = ids[0] if ids else {}
        self.id_names, self._id_widths, self._id_array = tuple(widths), tuple(widths.values()), ids[1] if ids else None
        self._input_array = arrays["X"]
        # Inputs without targets have no array of them.
        self._target_array = arrays.get("y") if self.target_names else None
        self._weight_array, self._noise_array = arrays.get("w"), arrays.get("noise")
        self._standard_inputs: RowArray | None
        self._standard_targets: RowArray | None
        self._standard_inputs, self._standard_targets = standard or (None, None)
        # Whether the rows lie in a store of this data set, which other processes can open too.
        self.is_stored = standard is None
        # Which stored columns a read takes, in which order, before anything is dropped by the standardisation.
        self._input_columns: IntArray | None = None
        self._target_columns: IntArray | None = None
        # How a read turns targets into codes of another training set's classes: by stored code (-1: none), or by name.
        self._recoding: IntArray | Literal["by name"] | None = None
        # Number of classes whose codes a read turns into signs; None where it does not.
        self._signs: int | None = None

    @classmethod
    def from_manifest(cls, url: Location, manifest: Manifest) -> Dataset:
        """Return the data set that a manifest describes; errors as of `described_whole`."""
        address, metadata = normalise_url(url), manifest["metadata"]
        typed(metadata, fingerprint=str, n_samples=int, chunk_rows=int)
        targets, n_samples = texts(metadata["target_names"]), metadata["n_samples"]
        # Stores of format 1 have no classes.
        classes = plain_names(metadata.get("classes"))
        counts = None if classes is None else tuple(map(int, metadata["class_counts"]))
        if classes is not None and (
            len(counts or ()) != len(classes) or sum(counts or ()) != n_samples or len(targets) != 1
        ):
            raise StoreError(
                f"The manifest of '{address}' has {len(classes)} classes, which do not fit its samples or its "
                f"{len(targets)} targets; write the store again."
            )
        named = {"w": metadata.get("weight_name"), "noise": metadata.get("noise_name"), "ids": metadata.get("ids")}
        names = ["X", *(["y"] if targets else []), *(name for name, value in named.items() if value)]
        arrays = {name: StoredArray.from_manifest(address, name, manifest) for name in names}
        widths = {column["name"]: int(column["bytes"]) for column in named["ids"] or ()}
        return cls(
            address,
            arrays,
            feature_names=texts(metadata["feature_names"]),
            target_names=targets,
            standardisation=Standardisation.from_json(metadata["standardisation"]),
            fingerprint=metadata["fingerprint"],
            n_samples=n_samples,
            chunk_rows=metadata["chunk_rows"],
            classes=classes,
            class_counts=counts,
            weight_name=named["w"],
            noise_name=named["noise"],
            encoding=metadata.get("encoding"),
            ids=(widths, arrays["ids"]) if widths else None,
        )

    @property
    def standard(self) -> tuple[RowArray, RowArray] | None:
        """Standardised inputs and targets, where they are kept so."""
        if self._standard_inputs is None or self._standard_targets is None:
            return None
        return self._standard_inputs, self._standard_targets

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features kept, length d."""
        names = self.raw_feature_names
        if self._input_columns is not None:
            names = tuple(names[column] for column in self._input_columns)
        return tuple(name for name, keep in zip(names, self.standardisation.kept, strict=True) if keep)

    @property
    def n_features(self) -> int:
        """Number of features kept, d."""
        return sum(self.standardisation.kept)

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """Names of the columns that enter the mean alone, length c."""
        return self.standardisation.covariate_names

    @property
    def n_targets(self) -> int:
        """Number of targets, p."""
        return len(self.target_names)

    @property
    def n_bytes(self) -> int:
        """Size in memory of the kept inputs and the targets in float64."""
        return 8 * self.n_samples * (self.n_features + self.n_targets)

    _panel, _repr_html_ = dataset_panel, html_repr

    def __repr__(self) -> str:
        return (
            f"Dataset('{self.url}', n_samples={self.n_samples}, n_features={self.n_features}, "
            f"n_targets={self.n_targets}, chunk_rows={self.chunk_rows})"
        )

    def row_chunks(self) -> list[tuple[int, int]]:
        """Row ranges [start, stop) of the chunks, in order."""
        return row_ranges(self.n_samples, self.chunk_rows)

    def reads(self, url: str) -> bool:
        """Return True if inputs or targets lie in the store at an address."""
        return any(rows is not None and rows.reads(url) for rows in (self._input_array, self._target_array))

    def inputs(self, start: int, stop: int, standardised: bool = True) -> FloatArray:
        """Inputs of the samples [start, stop).

        Parameters
        ----------
        start, stop
            0 <= start <= stop <= n.
        standardised
            Whether to apply the standardisation; if not, the values are in the units of the source.

        Returns
        -------
        (stop - start, d) float64

        Raises
        ------
        InputError
            The range is outside the data.
        StoreError
            A chunk is missing or damaged; the message names it.
        """
        if standardised and self._standard_inputs is not None:
            return self._features(self._standard_inputs.read(start, stop))
        return self._map_inputs(self._input_array.read(start, stop), standardised)

    def rows(self, start: int, stop: int) -> FloatArray:
        """Standardised features and covariates of the samples [start, stop), (stop - start, d + c). Errors as there."""
        if self._standard_inputs is not None:
            return self._standard_inputs.read(start, stop)
        return self._map_rows(self._input_array.read(start, stop))

    def input_rows(self, indices: IntArray, standardised: bool = True) -> FloatArray:
        """Inputs of the samples at `indices`, in that order; reads only the chunks touched.

        Returns (len(indices), d) float64, bit-identical to the same rows of `inputs`. Errors as there.
        """
        if standardised and self._standard_inputs is not None:
            return self._features(self._standard_inputs.rows(indices))
        return self._map_inputs(self._input_array.rows(indices), standardised)

    def rows_at(self, indices: IntArray) -> FloatArray:
        """Standardised features and covariates of the samples at `indices`, (len(indices), d + c)."""
        if self._standard_inputs is not None:
            return self._standard_inputs.rows(indices)
        return self._map_rows(self._input_array.rows(indices))

    def targets(self, start: int, stop: int, standardised: bool = True) -> FloatArray:
        """Targets of the samples [start, stop), shape (stop - start, p) float64. Errors as for `inputs`."""
        if self._target_array is None:
            return np.empty((stop - start, 0))
        if standardised and self._standard_targets is not None:
            values = self._standard_targets.read(start, stop)
            return values[:, None] if values.ndim == 1 else values
        raw = self._target_array.read(start, stop)
        raw = raw[:, None] if raw.ndim == 1 else raw
        if self._target_columns is not None:
            raw = raw[:, self._target_columns]
        raw = self._recoded(raw)
        return self.standardisation.targets(raw) if standardised else raw

    def all_targets(self, standardised: bool = True) -> FloatArray:
        """Targets of all samples, read chunk by chunk, shape (n, p) float64. Errors as for `inputs`."""
        return np.concatenate([self.targets(start, stop, standardised) for start, stop in self.row_chunks()])

    def labels(self, start: int, stop: int) -> IntArray:
        """Labels of the samples [start, stop) as codes into `classes`, (stop - start,) int64.

        Raises
        ------
        InputError
            The data set has no labels, a label is of no class of these, or the range is outside the data.
        """
        if self.classes is None or self.n_targets != 1:
            raise InputError(
                f"'{self.url}' has no labels: {'its target is a number' if self.n_targets else 'it has no target'}. "
                "Ingest it with `labels` instead of `target`."
            )
        targets = self.targets(start, stop, standardised=False)
        return codes_of_targets(targets[:, 0], len(self.classes), f"'{self.url}'")

    def all_labels(self) -> IntArray:
        """Labels of all samples, read chunk by chunk, (n,) int64. Errors as for `labels`."""
        return np.concatenate([self.labels(start, stop) for start, stop in self.row_chunks()])

    def weights(self, start: int, stop: int) -> FloatArray | None:
        """Weights of the samples [start, stop), (stop - start,), positive; None where all count alike."""
        return None if self._weight_array is None else self._weight_array.read(start, stop)

    def sample_noise(self, start: int, stop: int, standardised: bool = True) -> FloatArray | None:
        """Known noise variances of the samples [start, stop), (stop - start,), none negative; None where none are.

        As `targets`: on the standardised scale, or in the target's units squared.
        """
        if self._noise_array is None:
            return None
        variances = self._noise_array.read(start, stop)
        return standardised_noise(variances, self.standardisation.target_std) if standardised else variances

    def all_sample_noise(self, standardised: bool = True) -> FloatArray | None:
        """Known noise variances of all samples, (n,); as `sample_noise`."""
        return self.sample_noise(0, self.n_samples, standardised)

    def ids(self, start: int, stop: int) -> NDArray[np.object_]:
        """Text that identifies the samples [start, stop), (stop - start, columns), a column for each of `id_names`."""
        if self._id_array is None:
            return np.empty((stop - start, 0), dtype=object)
        return texts_of_bytes(self._id_array.read_as_stored(start, stop), self._id_widths)

    def all_weights(self) -> FloatArray | None:
        """Weights of all samples, (n,); None where all count alike."""
        return self.weights(0, self.n_samples)

    def with_standardisation(self, standardisation: Standardisation) -> Dataset:
        """Return the data under another map, such as the training set's.

        Raises `InputError` where it is for another number of raw features or targets.
        """
        n_raw = len(self.raw_feature_names) if self._input_columns is None else len(self._input_columns)
        if standardisation.n_raw_features != n_raw:
            raise InputError(
                f"'{self.url}' has {n_raw} features; the standardisation is for {standardisation.n_raw_features}."
            )
        if self.n_targets and standardisation.target_mean.size != self.n_targets:
            raise InputError(
                f"'{self.url}' has {self.n_targets} targets; the standardisation is for "
                f"{standardisation.target_mean.size}."
            )
        mapped = copy.copy(self)
        mapped.standardisation, mapped._standard_inputs, mapped._standard_targets = standardisation, None, None
        return mapped

    def about_targets(self, value: float) -> Dataset:
        """Return the data with targets standardised about a known mean, in their units, and not their average."""
        p = self.n_targets
        mean = self.standardisation.transformed(np.full((1, p), float(value)))[0]
        if np.array_equal(mean, self.standardisation.target_mean):
            return self
        moved = copy.copy(self)
        moved.standardisation = dataclasses.replace(self.standardisation, target_mean=mean)
        moved._standard_targets = None
        return moved

    def with_covariates(self, names: Sequence[str]) -> Dataset:
        """Return the data with some features as covariates, which enter the mean alone.

        Raises `InputError`: names that are no features, or constant, or all features.
        """
        if not names:
            return self
        earlier = (*self.feature_names, *self.covariate_names)
        seen = copy.copy(self)
        seen.standardisation = self.standardisation.with_covariates(names, self.raw_feature_names)
        if self._standard_inputs is not None:
            order = [earlier.index(name) for name in (*seen.feature_names, *seen.covariate_names)]
            rows = self._standard_inputs.read(0, self.n_samples)
            seen._standard_inputs = MemoryArray(np.ascontiguousarray(rows[:, order]))
        return seen

    def as_seen_by(
        self,
        feature_names: Sequence[str],
        target_names: Sequence[str],
        standardisation: Standardisation,
        classes: Sequence[str] | None = None,
    ) -> Dataset:
        """Return the data with the features and the map of another training set, matched by name.

        Parameters
        ----------
        feature_names
            The kept features of the training set (or model), in its order.
        target_names
            Its targets. Where this store has none of them, the result has no targets.
        standardisation
            Its map.
        classes
            Its classes, where its target is a label: labels here become codes among these, by the classes' names. A
            target that is a number is a label by the name of the number ("1" for 1.0), which is seen when it is read.

        Raises
        ------
        InputError
            A feature is missing here, or `classes` lack a class that has samples here; the message lists the ones here.
        """
        wanted = (*feature_names, *standardisation.covariate_names)
        missing = [name for name in wanted if name not in self.raw_feature_names]
        if missing:
            kind = "feature" if set(missing) <= set(feature_names) else "column"
            raise InputError(
                f"'{self.url}' lacks the {kind}{'s' if len(missing) > 1 else ''} {quoted(missing)}; "
                f"it has {quoted(self.raw_feature_names)}. Ingest data with the {kind}s of the training set."
            )
        stored_targets = self._stored_target_names
        shared = set(target_names) & set(stored_targets)
        if shared and shared != set(target_names):
            raise InputError(
                f"'{self.url}' has the targets {quoted(stored_targets)}; expected all of {quoted(target_names)}."
            )
        seen = copy.copy(self)
        seen._standard_inputs = seen._standard_targets = None
        seen._input_columns = np.array([self.raw_feature_names.index(name) for name in wanted], dtype=np.int64)
        seen.standardisation = standardisation.in_order()
        if shared:
            seen.target_names = tuple(target_names)
            seen._target_columns = np.array([stored_targets.index(name) for name in target_names], dtype=np.int64)
        else:
            seen.target_names, seen._target_array = (), None
            seen.noise_name, seen._noise_array = None, None
        if classes is not None:
            seen._recode(tuple(classes))
        return seen

    def _recode(self, classes: tuple[str, ...]) -> None:
        """Have labels read as codes among another training set's classes."""
        if self.n_targets == 1:
            if self.classes is None:
                self._recoding = "by name"
            elif self.classes != classes:
                self._recoding = code_map(self.classes, classes, self.class_counts, f"'{self.url}'")
        self.classes, self.class_counts = classes, None
        p = self.n_targets
        self.standardisation = dataclasses.replace(self.standardisation, target_mean=np.zeros(p), target_std=np.ones(p))

    def as_signs(self) -> Dataset:
        """Return the data for a regression on its labels: t targets of -1 and 1, as `dkgp.data.classes.signs_of`.

        Reads that standardise centre them, which takes the place of an intercept, and leave their scale.

        Raises
        ------
        InputError
            The data set has no labels, or of one class only.
        """
        self.labels(0, 0)
        classes = self.classes or ()
        counts = self.class_counts or np.bincount(self.all_labels(), minlength=len(classes))
        shares = np.array(counts, dtype=np.float64) / self.n_samples
        if (shares == 1.0).any():
            raise InputError(f"'{self.url}' has samples of one class only, '{classes[int(np.argmax(shares))]}'.")
        signs = copy.copy(self)
        if len(classes) > 2:
            signs.target_names = classes
        signs.classes, signs.class_counts, signs._signs, signs._standard_targets = None, None, len(classes), None
        mean = 2.0 * (shares[1:] if len(classes) == 2 else shares) - 1.0
        signs.standardisation = dataclasses.replace(
            self.standardisation, target_mean=mean, target_std=np.ones(len(mean))
        )
        return signs

    def _recoded(self, raw: FloatArray) -> FloatArray:
        """Codes as they are stored in the form that reads give: among other classes, or as signs."""
        codes = self._among_other_classes(raw)
        if self._signs is None:
            return codes
        return signs_of(codes_of_targets(codes[:, 0], self._signs, f"'{self.url}'"), self._signs)

    def _among_other_classes(self, raw: FloatArray) -> FloatArray:
        if self._recoding is None or self.classes is None:
            return raw
        if isinstance(self._recoding, str):
            return codes_of_numbers(raw[:, 0], self.classes, f"'{self.url}'")[:, None].astype(np.float64)
        codes = codes_of_targets(raw[:, 0], len(self._recoding), f"'{self.url}'")
        return self._recoding[codes][:, None].astype(np.float64)

    @property
    def _stored_target_names(self) -> tuple[str, ...]:
        if self._target_columns is None:
            return self.target_names
        raise InputError("A data set that is already seen by another training set cannot be matched again.")

    def _map_inputs(self, raw: FloatArray, standardised: bool) -> FloatArray:
        if self._input_columns is not None:
            raw = raw[:, self._input_columns]
        return self.standardisation.inputs(raw) if standardised else self.standardisation.keep(raw)

    def _map_rows(self, raw: FloatArray) -> FloatArray:
        return self.standardisation.rows(raw if self._input_columns is None else raw[:, self._input_columns])

    def _features(self, rows: FloatArray) -> FloatArray:
        """Return the features of standardised rows (r, d + c): (r, d)."""
        return rows if not self.standardisation.covariates else np.ascontiguousarray(rows[:, : self.n_features])

    def raw_inputs(self, start: int, stop: int) -> FloatArray:
        """Inputs of the samples [start, stop) as stored, dropped features included, shape (stop - start, d_raw)."""
        return self._input_array.read(start, stop)


def open_dataset(url: Location) -> Dataset:
    """Open a dataset store.

    Parameters
    ----------
    url
        Local path or fsspec URL.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk.
    """
    address = normalise_url(url)
    manifest = read_manifest(address, DATASET_KIND)
    check_complete(address, manifest)
    with described_whole(address, "write the store again"):
        dataset = Dataset.from_manifest(address, manifest)
        n, d, p = dataset.n_samples, len(dataset.raw_feature_names), len(dataset.target_names)
        shapes = {"X": (n, d), "y": target_layout(n, p)[0], "w": (n,), "noise": (n,)}
        for name, entry in manifest["arrays"].items():
            if name in shapes and tuple(entry["shape"]) != shapes[name]:
                raise ValueError(f"{n} samples, {d} features and {p} targets, and '{name}' of shape {entry['shape']}")
        if len(dataset.standardisation.kept) != d or dataset.chunk_rows < 1:
            raise ValueError(f"{d} features, a standardisation of {len(dataset.standardisation.kept)}")
        return dataset


@dataclass(frozen=True)
class ColumnNames:
    """Names of features, targets and, where the one target is a label, classes; the weights' where there are such.

    `noise` is the name of the column of the one target's known noise, where there is one.

    `ids` are the columns that identify samples: their names, and how many bytes of UTF-8 their longest texts take.

    `covariates` are features that enter the mean of a model alone.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    weight: str | None = None
    ids: tuple[tuple[str, int], ...] = ()
    noise: str | None = None
    covariates: tuple[str, ...] = ()

    @classmethod
    def checked(
        cls,
        features: Sequence[str],
        targets: Sequence[str],
        classes: Sequence[str] | None = None,
        weight: str | None = None,
        ids: Sequence[tuple[str, int]] = (),
        noise: str | None = None,
    ) -> ColumnNames:
        """The names as tuples; `InputError` where columns share a name, or the classes do not fit the targets."""
        names = cls(tuple(map(str, features)), tuple(map(str, targets)), None, weight, tuple(ids), noise)
        if not names.features:
            raise InputError("There is no feature; expected at least one column besides the target.")
        _require_distinct("feature", names.features)
        _require_distinct("target", names.targets)
        _require_distinct("id", tuple(name for name, _ in names.ids))
        for name in (weight, noise):
            if name is not None:
                _require_distinct("feature", (*names.features, name))
        others = {*names.features, weight, noise}
        both = [name for name in names.targets if name in others]
        if both:
            raise InputError(f"The target '{both[0]}' is among the features; leave it out of them.")
        if classes is None:
            return names
        if len(names.targets) != 1:
            raise InputError(f"Labels are one column; got {len(names.targets)} targets and the classes of a label.")
        return replace(names, classes=check_classes(classes))

    @classmethod
    def of_shape(
        cls,
        d: int,
        p: int,
        features: Sequence[str] | None,
        targets: Sequence[str] | None,
        classes: Sequence[str] | None,
    ) -> ColumnNames:
        """The names for d features and p targets; by default x0, x1, ... and y, or y0, y1, ... for several."""
        numbered = ["y"] if p == 1 else [f"y{column}" for column in range(p)]
        if features is None:
            features = [f"x{column}" for column in range(d)]
        return cls.checked(features, numbered if targets is None else targets, classes)

    @property
    def beside(self) -> tuple[tuple[str, str], ...]:
        """The column that each sample counts by, its array's name and its own; none where all samples count alike."""
        if self.noise is not None:
            return (("noise", self.noise),)
        return () if self.weight is None else (("w", self.weight),)

    def to_json(self) -> Json:
        """The names as a store has them; of classes only where there are labels."""
        named: Json = {"feature_names": list(self.features), "target_names": list(self.targets)}
        return named if self.classes is None else {**named, "classes": list(self.classes)}

    def fingerprint_header(self, n_samples: int) -> bytes:
        """The part of a fingerprint beside the values: the names, and how many samples."""
        return json_bytes({**self.to_json(), "n_samples": n_samples})


def _require_distinct(column: str, names: tuple[str, ...]) -> None:
    repeated = min((name for name, count in Counter(names).items() if count > 1), default=None)
    if repeated is not None:
        raise InputError(f"The {column} name '{repeated}' occurs {names.count(repeated)} times; names must differ.")


def text_bytes(texts: NDArray[np.object_], columns: Sequence[tuple[str, int]]) -> NDArray[np.uint8]:
    """Texts (rows, columns) as bytes (rows, total width); `columns` are names and widths.

    `InputError` for another number of columns, or a text that is longer than its column.
    """
    if texts.ndim != 2 or texts.shape[1] != len(columns):
        raise InputError(f"The ids have shape {texts.shape}; expected (rows, {len(columns)}).")
    parts = [np.empty((len(texts), 0), dtype=np.uint8)]
    for position, (name, width) in enumerate(columns):
        encoded = [str(text).encode() for text in texts[:, position]]
        longest = max(map(len, encoded), default=0)
        if longest > width:
            raise InputError(f"An id of '{name}' takes {longest} bytes; its column has {width}.")
        parts.append(np.array(encoded, dtype=f"S{width}").view(np.uint8).reshape(len(texts), width))
    return np.concatenate(parts, axis=1)


def texts_of_bytes(rows: NDArray[np.uint8], widths: Sequence[int]) -> NDArray[np.object_]:
    """The texts (rows, columns) that `text_bytes` made bytes of."""
    texts = np.empty((len(rows), len(widths)), dtype=object)
    start = 0
    for position, width in enumerate(widths):
        column = np.ascontiguousarray(rows[:, start : start + width]).view(f"S{width}").reshape(len(rows))
        texts[:, position] = [text.decode() for text in column.tolist()]
        start += width
    return texts


@dataclass(frozen=True)
class TrainingColumns:
    """Names, encoding and standardisation of a training set.

    Attributes
    ----------
    features, targets
        Names; of a model the features that it keeps.
    encoding
        Rules for columns of text, dates and gaps; None where all columns were numbers.
    classes
        Names of classes, where the target is a label; else None.
    standardisation
        Of the features that are kept, and of the targets.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    encoding: Json | None
    classes: tuple[str, ...] | None
    standardisation: Standardisation

    @classmethod
    def read(cls, url: Location) -> TrainingColumns:
        """Read the columns from a dataset or model store; `StoreError` where there is no such store."""
        address = normalise_url(url)
        kind = recognise(address)
        metadata = read_manifest(address, kind or "dataset")["metadata"]
        if not {"feature_names", "target_names", "standardisation"} <= set(metadata):
            raise StoreError(
                f"'{address}' is a {kind} store; expected a dataset or a model store, which know their columns."
            )
        with described_whole(address, "write the store again"):
            features, standardisation = (
                texts(metadata["feature_names"]),
                Standardisation.from_json(metadata["standardisation"]),
            )
            if len(features) == standardisation.input_mean.size:  # of a model, whose covariates are no features
                features += standardisation.covariate_names
            return cls(
                features,
                texts(metadata["target_names"]),
                metadata.get("encoding"),
                plain_names(metadata.get("classes")),
                standardisation,
            )

    def standardisation_of(self, features: Sequence[str], targets: Sequence[str]) -> Standardisation | None:
        """Return the standardisation of columns in the given order; None where a column of the training set lacks."""
        mapped, kept = self.standardisation, self.features
        if len(kept) == mapped.n_raw_features:
            kept = tuple(name for name, keep in zip(kept, mapped.kept, strict=True) if keep)
        kept = tuple(name for name in kept if name not in mapped.covariate_names)
        if not set(mapped.covariate_names) <= set(features):
            return None
        position = {name: index for index, name in enumerate(kept)}
        target_position = {name: index for index, name in enumerate(self.targets)}
        chosen = [position[name] for name in features if name in position]
        if len(chosen) < mapped.input_mean.size or set(targets) != set(self.targets):
            return None
        if mapped.target_mean.size != len(self.targets):
            return None
        order = np.array([target_position[name] for name in targets], dtype=np.int64)
        return replace(
            mapped,
            input_mean=mapped.input_mean[chosen],
            input_std=mapped.input_std[chosen],
            target_mean=mapped.target_mean[order],
            target_std=mapped.target_std[order],
            kept=tuple(name in position for name in features),
            covariates=tuple(replace(each, column=list(features).index(each.name)) for each in mapped.covariates),
            transforms=tuple(mapped.transforms[index] for index in order.tolist()) if mapped.transforms else (),
        )
