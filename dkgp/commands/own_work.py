"""Recognition of a job's own work at its outputs: what `--resume` may take for done, or replace.

A process may be killed at any moment: while it writes its output, and between the last byte of that and its end. The
same command with `--resume` then goes on as if it had not been; what belongs to another run it leaves alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dkgp.commands.reporting.documents import plain
from dkgp.data import Dataset, ModelRecord, is_committed, open_model, recognise
from dkgp.data.remote.storage import exists, join, read_object
from dkgp.data.stores.model_store import MODEL_KIND
from dkgp.data.stores.sparse.sparse_store import SPARSE_MODEL_KIND, SparseRecord, open_sparse_model
from dkgp.errors import InputError, StoreError
from dkgp.operators.base import FloatArray

__all__ = ["difference", "is_unfinished_model", "model_difference", "warm_start"]

# The stores of models, and what opens each.
_OPENERS: Mapping[str, Callable[[str], ModelRecord | SparseRecord]] = {
    MODEL_KIND: open_model,
    SPARSE_MODEL_KIND: open_sparse_model,
}


def difference(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Say in which name two runs differ first; None where they are the same. A name that one lacks counts, too."""
    expected = plain(wanted)
    for name in {**expected, **held}:
        if held.get(name) != expected.get(name):
            if name == "fingerprint":
                return "data set"
            what = name.replace("_", " ")
            return f"{what} (its {what}: {held.get(name)!r}; this run's: {expected.get(name)!r})"
    return None


def model_difference(
    model: ModelRecord, identity: Mapping[str, Any], settings: Mapping[str, Any], by_reference: bool
) -> str | None:
    """Say what a model has otherwise than the run that would make it; None where it is that run's.

    Parameters
    ----------
    identity : dict
        The run's, as checkpoints hold it (`run_identity`).
    settings : dict
        Its solver's.
    by_reference : bool
        Whether it would leave the inputs where they are.
    """
    held = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    held |= {"tree_error": model.summary["tree_error"]} if "tree_error" in model.summary else {}
    wanted = {**identity, **settings, "by_reference": by_reference}
    return difference({**held, **model.summary.get("settings", {}), "by_reference": model.by_reference}, wanted)


def is_unfinished_model(url: str, dataset: Dataset, kind: str = MODEL_KIND) -> bool:
    """True if a model of these data is there that resuming may replace: it stopped short, or its writing did."""
    if not exists(url) or recognise(url) != kind:
        return False
    try:
        model = _OPENERS[kind](url)
    except StoreError:
        return _was_begun(url, dataset)
    return model.fingerprint == dataset.fingerprint and not model.summary.get("converged", True)


def warm_start(url: str, dataset: Dataset, identity: Mapping[str, Any]) -> tuple[FloatArray, FloatArray | None]:
    """Coefficients to start from, and their gradient where the model knows it: finding it takes a float64 product.

    Raises `InputError` where the model is of other samples.
    """
    model = open_model(url)
    if model.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the model '{url}' was trained on other data than '{dataset.url}'; a warm start needs a model of the same "
            "samples. Leave --warm-start out, or name such a model"
        )
    held = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    state = model.training_state() if difference(held, identity) is None else None
    return model.alpha, None if state is None else state[1]


def _was_begun(url: str, dataset: Dataset) -> bool:
    """True if the writing of a model of these data began there and did not end; no manifest is there yet."""
    if is_committed(url):
        return False  # finished, and damaged since: that is for the user to look at
    try:
        begun = json.loads(read_object(join(url, "zarr.json")))["attributes"]
    except FileNotFoundError:
        return True  # on an object store, the claim alone, which says that it is a model's place
    except (ValueError, KeyError):
        return False
    return bool(begun.get("fingerprint") == dataset.fingerprint)
