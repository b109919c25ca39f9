"""A minimisation on a basis between two steps, and as a checkpoint holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.basis_risk.problem import Evaluated, Factor
from dkgp.solvers.stopping import Progress

# Steps and changes of the gradient that are remembered.
MOST_PAIRS = 12


@dataclass
class BasisRiskState:
    """Everything that determines how a minimisation goes on.

    - `theta` (q, t): coefficients.
    - `factor`: of a Hessian.
    - `prototypes` (m, d): the basis, and which samples it is of: `indices` (m,) or None.
    - `fresh`, `stuck`, `ended` (p,): problems whose factor is of this very point; whose last step was of no use; and
      that are done with.
    - `idle` (p,): steps in a row that have gained nothing.
    - `least` (p,): the least bound on the distance so far.
    - `pairs`: steps since the factor, and what they changed of the gradient.
    - `before`: bounds on the distance before each of these steps.
    """

    theta: FloatArray
    evaluated: Evaluated
    factor: Factor
    prototypes: FloatArray
    indices: IndexArray | None
    fresh: NDArray[np.bool_]
    stuck: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    idle: NDArray[np.int64]
    least: FloatArray
    pairs: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)
    before: list[FloatArray] = field(default_factory=list)
    iteration: int = 0
    passes: int = 0
    gram_passes: int = 0
    entries: int = 0
    seconds: float = 0.0
    history: list[Progress] = field(default_factory=list)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        q, t = self.theta.shape
        arrays = {
            "theta": self.theta,
            **{name: getattr(self.evaluated, name) for name in ("values", "risk", "gradient")},
            **self.factor.arrays(),
            "prototypes": self.prototypes,
            **{name: getattr(self, name).astype(np.int64) for name in (*_MASKS, "idle")},
            "least": self.least,
        }
        if self.indices is not None:
            arrays["indices"] = self.indices
        if self.pairs:
            arrays["steps"] = np.array([step for step, _ in self.pairs]).reshape(-1, q, t)
            arrays["changes"] = np.array([change for _, change in self.pairs]).reshape(-1, q, t)
            arrays["before"] = np.array(self.before)
        return arrays

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "explained": self.evaluated.explained,
            "factor": [self.factor.kind, self.factor.coupled, self.factor.regularisation],
            "history": [progress.to_json() for progress in self.history],
        }

    @classmethod
    def restored(cls, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> BasisRiskState:
        """Rebuild from a checkpoint."""
        kind, coupled, regularisation = metadata["factor"]
        steps, changes = arrays.get("steps", ()), arrays.get("changes", ())
        masks: dict[str, Any] = {name: arrays[name].astype(bool) for name in _MASKS}
        return cls(
            theta=arrays["theta"],
            evaluated=Evaluated(
                arrays["values"], arrays["risk"], arrays["gradient"], float(metadata["explained"] or 0.0)
            ),
            factor=Factor.restored(kind, arrays["lowers"], bool(coupled), float(regularisation)),
            prototypes=arrays["prototypes"],
            indices=arrays.get("indices"),
            **masks,
            idle=arrays["idle"],
            least=arrays["least"],
            pairs=list(zip(steps, changes, strict=True)),
            before=list(arrays.get("before", ())),
            **{name: metadata[name] for name in _NUMBERS},
            history=[Progress(**record) for record in metadata["history"]],
        )


_MASKS = ("fresh", "stuck", "ended")
_NUMBERS = ("iteration", "passes", "gram_passes", "entries", "seconds")
