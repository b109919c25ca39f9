"""Proofs: what certificates of every kind of model share. They are JSON in a store, and a panel in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from dkgp.codec import from_json, to_json
from dkgp.errors import InputError
from dkgp.html import html_repr


class Proof(ABC):
    """Proven bounds: a dataclass of numbers."""

    # Fields with a number for each target or decision function.
    by_target: ClassVar[tuple[str, ...]] = ()

    _repr_html_ = html_repr

    @property
    @abstractmethod
    def statement(self) -> str:
        """The proven statement, in one line."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with the derived bounds for readers."""
        document: dict[str, Any] = to_json(self)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the certificate that `to_json`, or an older version, wrote; `InputError` for anything else."""
        try:
            proof = from_json(cls, document, older=cls._older, called="a certificate")
            proof._check()
        except InputError as error:
            raise InputError(
                f"{error}. Its file was written by something else than dkgp, or damaged; train again"
            ) from error
        return proof

    @classmethod
    def _older(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of an earlier version as one of today's."""
        return document

    def _check(self) -> None:
        """Raise `InputError` if fields have numbers for different targets."""
        lengths = {name: len(getattr(self, name)) for name in self.by_target}
        if len(set(lengths.values())) > 1:
            raise InputError(f"a certificate has numbers for different targets: {lengths}; expected one count")
