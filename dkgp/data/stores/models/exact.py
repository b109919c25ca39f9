"""Trained models in a Zarr store: what is needed to predict, and how it came about.

A model carries its support inputs, so that it predicts without its training set, unless it is saved by reference. Those
that also carry targets and gradient can be trained further.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Unpack

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray, open_arrays, row_ranges, target_layout
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.models.description import (
    SHOWN,
    ModelDescription,
    SupportedDescription,
    TrainingFacts,
    about_model,
    require_noise,
    require_shapes,
    require_targets,
    write_inputs,
)
from dkgp.data.stores.models.references import check_reference, referenced_training_set
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, Json, Location
from dkgp.errors import InputError, NumericalError

MODEL_KIND = "model"
# The formats of models without an array of known noise, and without coefficients of a mean.
WITHOUT_SAMPLE_NOISE, WITHOUT_TREND = 2, 3


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelRecord(SupportedDescription):
    """A model as it is stored; picklable.

    Attributes
    ----------
    alpha
        Coefficients, shape (n, p), on the standardised scale; (n, p + q) with those of the q columns of a mean.
    sample_noise
        Known noise variances v_i of the samples, shape (n,), on the same scale: sample i has the noise s2 + v_i. None
        where s2 is all there is.
    """

    alpha: FloatArray
    sample_noise: FloatArray | None = None
    # Standardised targets y and gradient Kbar alpha - y, where the model has them.
    _targets: StoredArray | None = field(default=None, repr=False)
    _gradient: StoredArray | None = field(default=None, repr=False)

    @property
    def n_samples(self) -> int:
        """Number of support inputs, n."""
        return int(self.alpha.shape[0])

    @property
    def noise(self) -> float | FloatArray:
        """The noise of the samples, s2 or s2 + v_i (n,)."""
        return self.noise_variance if self.sample_noise is None else self.noise_variance + self.sample_noise

    def training_state(self) -> tuple[Dataset, FloatArray] | None:
        """The training set and the float64 gradient Kbar alpha - y, as alpha: what training goes on from; None without.

        Raises `StoreError` where a chunk is missing or damaged.
        """
        if self._support is None or self._targets is None or self._gradient is None:
            return None
        gradient = self._gradient.read(0, self.n_samples).reshape(self.n_samples, -1)
        if isinstance(self._support, Dataset):
            return self._support, gradient
        dataset = assembled_dataset(
            self._support, self._targets, self.standardisation, self.feature_names, self.target_names, self.fingerprint
        )
        return dataset, gradient

    def row_chunks(self) -> list[tuple[int, int]]:
        """Row ranges [start, stop) of the chunks of the support inputs, in order."""
        return row_ranges(self.n_samples, self.chunk_rows)


def save_model(
    url: Location,
    *,
    alpha: FloatArray,
    dataset: Dataset,
    gradient: FloatArray | None = None,
    sample_noise: FloatArray | None = None,
    by_reference: bool = False,
    overwrite: bool = False,
    chunk_rows: int | None = None,
    **facts: Unpack[TrainingFacts],
) -> None:
    """Write a model store.

    Parameters
    ----------
    alpha
        Coefficients on the standardised scale, shape (n, p) or (n,) for one target; (n, p + q) with a `trend`.
    dataset
        The training set.
    gradient
        Kbar alpha - y, shape as `alpha`. With it the targets are kept, too, and the model can be trained further.
    sample_noise
        Known noise variances of the samples, shape (n,), beside `noise_variance`.
    by_reference
        Refer to the training set's store instead of copying its inputs. The model is then of use only as long as
        that store is where it is now, unchanged.
    overwrite
        Replace a model store that is there. Anything else that is there is left alone.
    chunk_rows
        Rows of a chunk; default the training set's.
    facts
        `kernel`, the kernel's JSON, and `noise_variance`, s2 on the standardised scale, positive; and, as JSON,
        `history`, a record per round, `certificate`, what is proven about the solution, `summary`, what
        `train --json` prints, `noise_model`, by which known noise was reckoned, and `trend`, a mean with coefficients.

    Raises
    ------
    InputError
        `alpha` or known noise does not fit the training set; the noise variance, or a sample's, is not positive.
    NumericalError
        `alpha` holds a NaN or infinity.
    OutputExistsError, StorageError
        The place is taken, or cannot be written to; what was written is removed.
    """
    coefficients = np.asarray(alpha, dtype=np.float64)
    if coefficients.ndim == 1:
        coefficients = coefficients[:, None]
    n, p = dataset.n_samples, dataset.n_targets
    trend = facts.get("trend")
    columns = p + (0 if trend is None else len(trend["coefficients"]))
    if coefficients.shape != (n, columns):
        raise InputError(f"alpha has shape {np.shape(alpha)}; '{dataset.url}' needs ({n}, {columns}).")
    require_noise(facts["noise_variance"])
    if not np.isfinite(coefficients).all():
        row = int(np.argmax(~np.isfinite(coefficients).all(axis=1)))
        raise NumericalError(f"alpha is not finite (row {row}); the model is not saved. Raise the noise variance.")
    if gradient is not None and np.size(gradient) != coefficients.size:
        raise InputError(f"The gradient has shape {np.shape(gradient)}; expected that of alpha, {coefficients.shape}.")
    if sample_noise is not None:
        sample_noise = _checked_noise(sample_noise, facts["noise_variance"], n)
    if by_reference:
        check_reference(dataset.url)
    content: Json = {
        **ModelDescription(**about_model(dataset, **facts)).described(),
        "by_reference": by_reference,
        "chunk_rows": chunk_rows or dataset.chunk_rows,
    }
    shape, dimensions = target_layout(n, p)
    solved = (shape, dimensions) if trend is None else ((n, columns), ("sample", "column"))
    vectors = {"alpha": (coefficients, solved)}
    if gradient is not None:
        vectors["targets"] = (dataset.all_targets(), (shape, dimensions))
        vectors["gradient"] = (np.asarray(gradient, dtype=np.float64), solved)
    shown = {name: content[name] for name in SHOWN}
    # What knows nothing of noise by sample, or of means, must not predict with such a model, and reads any other.
    version = (WITHOUT_SAMPLE_NOISE if sample_noise is None else WITHOUT_TREND) if trend is None else None
    with new_store(normalise_url(url), MODEL_KIND, shown, overwrite, version) as store:
        for name, (values, layout) in vectors.items():
            store.write_array(name, values.reshape(layout[0]), layout[1])
        if sample_noise is not None:
            store.write_array("sample_noise", sample_noise, ("sample",))
        if not by_reference:
            write_inputs(store, dataset, content["chunk_rows"])
        store.commit(content)


def open_model(url: Location, *, reference: str | None = None) -> ModelRecord:
    """Open a model store; `alpha` is read, the support inputs are read when they are asked for.

    Parameters
    ----------
    reference
        Where the training set lies that a model by reference has to name, "" where it may name none: what another
        process has found and checked. By default whatever `require_reference` lets pass.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk; for a model by reference
        also a training set that is gone, has changed or may not be named.
    """
    address, content, arrays = open_arrays(url, MODEL_KIND)
    with described_whole(address, "save the model again"):
        n = arrays["alpha"].shape[0]
        by_reference = bool(content["by_reference"])
        described = ModelRecord.description_in(address, content)
        vector, _ = target_layout(n, len(described["target_names"]))
        shapes = dict.fromkeys(("alpha", "targets", "gradient"), vector)
        if described["trend"] is not None:  # whose columns come after the targets'
            columns = len(described["target_names"]) + len(described["trend"]["coefficients"])
            shapes |= dict.fromkeys(("alpha", "gradient"), (n, columns))
        shapes |= {"sample_noise": (n,), "inputs": (n, len(described["feature_names"]))}
        require_targets(described)
        require_shapes(address, arrays, shapes)
        chunk_rows, inputs = int(content["chunk_rows"]), None if by_reference else arrays["inputs"]
    return ModelRecord(
        **described,
        alpha=arrays["alpha"].read(0, n).reshape(n, -1),
        sample_noise=arrays["sample_noise"].read(0, n) if "sample_noise" in arrays else None,
        chunk_rows=chunk_rows,
        by_reference=by_reference,
        _support=inputs or referenced_training_set(address, content, reference),
        _targets=arrays.get("targets"),
        _gradient=arrays.get("gradient"),
    )


def _checked_noise(sample_noise: FloatArray, noise_variance: float, n: int) -> FloatArray:
    """Known noise as it is stored, (n,)."""
    values = np.asarray(sample_noise, dtype=np.float64)
    if values.shape != (n,):
        raise InputError(f"sample_noise has shape {values.shape}; expected ({n},), a variance for each sample.")
    noise = noise_variance + values
    if not (np.isfinite(noise) & (noise > 0.0)).all():
        row = int(np.argmin(np.isfinite(noise) & (noise > 0.0)))
        raise InputError(
            f"sample_noise is {values[row]} in row {row}, a noise of {noise[row]} in all; expected a positive one."
        )
    return values
