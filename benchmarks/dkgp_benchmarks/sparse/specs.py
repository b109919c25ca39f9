"""A sparse method with settings of its own, as a user names it: "sggp,screen=2,score_rows=2048"."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from dkgp.errors import InputError, UsageError
from dkgp.models.sparse.bases import BLIND_BASES
from dkgp.models.sparse.settings import SparseSettings

_SETTINGS = {
    "basis": str,
    "gap": float,
    "candidates": int,
    "per_round": int,
    "screen": int,
    "score_rows": int,
    "certify_passes": float,
    "neighbours": int,
}


@dataclass(frozen=True)
class SparseSpec:
    """A method and what is not as it comes.

    Attributes
    ----------
    text : str
        As it was named; its label.
    settings : SparseSettings
        Of some size and seed; `sized` gives others.
    """

    text: str
    settings: SparseSettings = field(default_factory=SparseSettings)

    @classmethod
    def read(cls, text: str) -> SparseSpec:
        """Read "METHOD,setting=value,..."; `UsageError` where there is no such method or setting."""
        name, *settings = text.split(",")
        given: dict[str, Any] = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or key not in _SETTINGS:
                raise UsageError(f"'{text}': expected settings of {', '.join(_SETTINGS)}; got '{setting}'")
            try:
                given[key] = _SETTINGS[key](value)
            except ValueError:
                raise UsageError(f"'{text}': {key} is a number; got {value!r}") from None
        try:
            found = cls(text, SparseSettings(name, **given))
            if found.settings.basis_name == "greedy":
                found.settings.greedy()
        except InputError as error:
            raise UsageError(f"'{text}': {error}") from None
        if not found.is_possible:
            raise UsageError(f"'{text}': centres of k-means are no samples, and a subset of data is of samples")
        return found

    @property
    def is_possible(self) -> bool:
        """False of a subset of the data on points that are no samples."""
        return self.settings.sparse_method.variance != "subset" or self.settings.basis_name != "k-means"

    def on(self, basis: str) -> SparseSpec:
        """Return the specification on the named basis, or on its own one if it names one or selects it greedily."""
        if self.settings.basis is not None or self.settings.basis_name == "greedy":
            return self
        if basis not in BLIND_BASES:
            raise UsageError(f"`bases`: there is no '{basis}'; there are {', '.join(BLIND_BASES)}")
        return SparseSpec(f"{self.text},basis={basis}", replace(self.settings, basis=basis))

    def sized(self, size: int, seed: int) -> dict[str, Any]:
        """Settings for a basis of that size, by name."""
        settings = replace(self.settings, basis_size=size, seed=seed)
        return {each.name: getattr(settings, each.name) for each in fields(settings)}
