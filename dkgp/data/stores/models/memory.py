"""Models of any kind, by address."""

from __future__ import annotations

from typing import TypeAlias

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.manifest import recognise
from dkgp.data.stores.models.classifier import ClassifierRecord
from dkgp.data.stores.models.model import resident_model
from dkgp.data.stores.models.regression import ModelRecord, SparseRecord
from dkgp.data.types import Location

AnyModel: TypeAlias = ModelRecord | SparseRecord | ClassifierRecord

_KINDS: tuple[type[AnyModel], ...] = (ModelRecord, SparseRecord, ClassifierRecord)


def find_any_model(url: str, *, reference: str | None = None) -> AnyModel:
    """Return the model of any kind at an address; parameters and errors as for `Model.find`."""
    model = resident_model(url)
    return model if isinstance(model, _KINDS) else open_any_model(url, reference=reference)


def open_any_model(url: Location, *, reference: str | None = None) -> AnyModel:
    """Open the store of a model of any kind; parameters and errors as for `Model.open`."""
    found = recognise(normalise_url(url))
    kind = next((kind for kind in _KINDS if kind.kind == found), ModelRecord)
    return kind.open(url, reference=reference)
