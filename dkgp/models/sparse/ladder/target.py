"""The target of a ladder, and what is kept of a rung: bounds on the risk that say how far the target is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.operators.base import FloatArray


@dataclass(frozen=True)
class LadderTarget:
    """The distance or the gap that a ladder has to prove, or both."""

    # Root mean square of the mean's distance from the exact one over the training samples, in standard deviations of
    # the target; the largest over targets
    distance: float | None = None
    gap: float | None = None  # duality gap of all targets together, `SparseCertificate.total_gap`
    # Basis samples at most: then the basis grows up to that size, whatever the exact model costs. Without it no rung
    # is begun that costs more than the exact model.
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.distance is None and self.gap is None:
            raise InputError("a basis that grows by itself needs a target: a `target_distance`, or a `gap`")
        for name, value in (("target_distance", self.distance), ("gap", self.gap)):
            if value is not None and not (np.isfinite(value) and value > 0.0):
                raise InputError(f"`{name}` must be positive; got {value}")
        if self.largest is not None and self.largest < 1:
            raise InputError(f"the largest basis has one sample at least; got {self.largest}")

    def missed(self, certificate: SparseCertificate) -> float:
        """The factor by which the proven excess of the risk has to fall, of the worst target; 1 at most if met."""
        parts = [0.0]
        if self.distance is not None:
            parts.append(float((certificate.rms_bound.max() / self.distance) ** 2))
        if self.gap is not None:
            parts.append(certificate.total_gap / self.gap)
        return max(parts)

    def status(self, certificate: SparseCertificate) -> str:
        """The proven distance and gap beside those asked for, in words."""
        parts = []
        if self.distance is not None:
            parts.append(f"distance {certificate.rms_bound.max():.3g} (asked for: {self.distance:g})")
        if self.gap is not None:
            parts.append(f"duality gap {certificate.total_gap:.3g} (asked for: {self.gap:g})")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Step:
    """A step that raised the bound."""

    kind: str  # "product" with the residual of a rung, or "solve": some more of the exact model's solve
    size: int  # of the rung, m
    passes: float  # products or column passes
    rise: float  # of the bound, summed over targets


@dataclass(frozen=True)
class Rung:
    """The record of a rung: a size of the basis, and what was proven when the ladder went on."""

    size: int  # m
    # (p,): R of the means at most, min R at least: by what was known then
    risk: list[float]
    least: list[float]
    best: list[str]  # (p,): the bounds that won
    distance: float  # proven, of the worst target
    gap: float | None  # proven, of all targets together; None where the bounds say nothing
    elbo: float | None
    passes: float  # column passes spent on bounds so far
    entries: int  # kernel entries evaluated so far
    seconds: float  # since the start

    @classmethod
    def of(cls, certificate: SparseCertificate, passes: float, entries: int, seconds: float) -> Rung:
        """Sum up what a certificate says."""
        return cls(
            certificate.m,
            list(certificate.risk),
            certificate.least.tolist(),
            list(certificate.best),
            float(certificate.rms_bound.max()),
            certificate.total_gap if math.isfinite(certificate.total_gap) else None,
            None if certificate.evidence is None else float(certificate.evidence.lower),
            passes,
            entries,
            round(seconds, 3),
        )

    @property
    def total_risk(self) -> float:
        """R summed over targets."""
        return float(np.sum(self.risk))

    def excess(self, least: FloatArray) -> float:
        """R above what is known of min R now, summed over targets."""
        return float(np.sum(np.maximum(np.asarray(self.risk) - least, 0.0)))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)
