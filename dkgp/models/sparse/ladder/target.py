"""The target of a ladder, and what is kept of a rung: bounds on the risk that say how far the target is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.operators.base import FloatArray

__all__ = ["LadderTarget", "Rung", "Step"]


@dataclass(frozen=True)
class LadderTarget:
    """A proof to be reached: of a distance, of a gap, or of both.

    Parameters
    ----------
    distance : float, optional
        Root mean square of the mean's distance from the exact one over the training samples, in standard deviations of
        the target: that of the worst target.
    gap : float, optional
        Duality gap, `SparseCertificate.total_gap`: of all targets together.
    largest : int, optional
        Basis samples at most. Who says so wants a sparse model up to that size, whatever the exact one costs; otherwise
        no rung is climbed to that costs more than it.
    """

    distance: float | None = None
    gap: float | None = None
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

    def said(self, certificate: SparseCertificate) -> str:
        """In words: what is proven, beside what was asked for."""
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
    """A step that raised the bound.

    Attributes
    ----------
    kind : {"product", "solve"}
        A product with the residual of a rung, or some more of the exact model's solve.
    size : int
        Of the rung, m.
    passes : float
        Products or column passes.
    rise : float
        Of the bound, summed over targets.
    """

    kind: str
    size: int
    passes: float
    rise: float


@dataclass(frozen=True)
class Rung:
    """A size of the basis, as it was left.

    Attributes
    ----------
    size : int
        m.
    risk, least : list of p floats
        R of the means at most, min R at least: by what was known then.
    best : list of p str
        The bounds that won.
    distance : float
    gap : float or None
        Proven: of the worst target, of all together; no gap where the bounds say nothing.
    elbo : float or None
    passes : float
        Column passes spent on bounds so far.
    entries : int
        Kernel entries evaluated so far.
    seconds : float
        Since the start.
    """

    size: int
    risk: list[float]
    least: list[float]
    best: list[str]
    distance: float
    gap: float | None
    elbo: float | None
    passes: float
    entries: int
    seconds: float

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
