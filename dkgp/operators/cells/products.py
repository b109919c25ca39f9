"""Products with all terms of a kernel by cells, in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.operators.base import FloatArray
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.terms import Terms


@dataclass(frozen=True)
class Cost:
    """Counts of a product by cells: entries evaluated, floating-point operations across, bytes of the plan."""

    near_entries: int
    flops: int
    nbytes: int


class CellProducts:
    """K V and K(targets, X) V with a proven bound on each entry.

    Parameters
    ----------
    terms : Terms
        Of the kernel; see `terms_of`.
    inputs : (n, n_features) array_like
    tolerance : float
        Default tolerance of a product, relative to the sum of the magnitudes of a column of V.
    """

    def __init__(self, terms: Terms, inputs: FloatArray, tolerance: float) -> None:
        self.terms = terms
        self.inputs = np.asarray(inputs, np.float64)
        self.tolerance = tolerance
        self._plans: dict[float, list[Plan]] = {}

    def matmat(self, V: FloatArray, tolerance: float | None = None) -> tuple[FloatArray, FloatArray]:
        """Return K V and a bound on the error of each entry: (n, t) and (n, t)."""
        return self._product(self._own_plans(tolerance), len(self.inputs), V)

    def cross(
        self, targets: FloatArray, V: FloatArray, tolerance: float | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return K(targets, X) V and a bound on the error of each entry: (r, t) and (r, t)."""
        rows = np.asarray(targets, np.float64)
        return self._product(self._new_plans(tolerance, rows), len(rows), V)

    def cost(self, tolerance: float | None = None) -> Cost:
        """Count the work of a product with one column."""
        plans = self._own_plans(tolerance)
        return Cost(
            sum(plan.near_entries for plan in plans),
            sum(plan.flops for plan in plans),
            sum(plan.nbytes for plan in plans),
        )

    def _own_plans(self, tolerance: float | None) -> list[Plan]:
        key = self.tolerance if tolerance is None else tolerance
        if key not in self._plans:
            self._plans[key] = self._new_plans(key, None)
        return self._plans[key]

    def _new_plans(self, tolerance: float | None, targets: FloatArray | None) -> list[Plan]:
        allowed = self.tolerance if tolerance is None else tolerance
        share = allowed / max(self.terms.magnitude, 1e-300)
        return [Plan(term, self.inputs, share, targets) for term in self.terms.terms]

    def _product(self, plans: list[Plan], rows: int, V: FloatArray) -> tuple[FloatArray, FloatArray]:
        columns = np.asarray(V, np.float64)
        result, bounds = np.zeros((rows, columns.shape[1])), np.zeros((rows, columns.shape[1]))
        for t in range(columns.shape[1]):
            column = np.ascontiguousarray(columns[:, t])
            magnitude = float(np.abs(column).sum())
            result[:, t] = self.terms.constant * float(column.sum())
            bounds[:, t] = abs(self.terms.constant) * 2.0**-53 * (len(column) + 4) * magnitude
            for plan in plans:
                part, bound = plan(column)
                amplitude = plan.term.amplitude
                result[:, t] += amplitude * part
                bounds[:, t] += abs(amplitude) * bound
            # Roundings of the sums over terms, and of their amplitudes.
            bounds[:, t] += 2.0**-53 * (4 + 2 * len(plans)) * self.terms.magnitude * magnitude
        return result, bounds * (1.0 + 1e-12)
