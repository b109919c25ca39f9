"""The last few block steps, to which the next one is made conjugate, and its length exact.

A step is remembered as its direction p_j and its image q_j = Kbar p_j. That costs no kernel evaluation: the images are
the updates of their own rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.types import block_rows
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.block_descent.recursions import advance_gradient, advance_solution

# A step that the memory all but cancels is worth nothing: drop the memory for it rather than divide by rounding.
LEAST_CONJUGATE_SHARE = 1e-4


@dataclass(frozen=True)
class BlockStep:
    """A block step whose scalars are known: what turns Kbar[:, B] delta into the new gradient.

    - `indices`, `delta` (m,), (m, p): the active set B, and the minimiser over it.
    - `used`, `coefficients` (k,), (k, p): the remembered steps that take part, by slot, and c_j: p = delta - sum_j c_j
      p_j.
    - `step` (p,): its length: alpha moves by step * p.
    - `slot`: where p and its image go.
    """

    indices: IndexArray
    delta: FloatArray
    used: IndexArray
    coefficients: FloatArray
    step: FloatArray
    slot: int


class ConjugateMemory:
    """A ring of remembered steps.

    - `steps`: how many are remembered; without any, steps are taken as they come (the paper's method).
    - `directions`, `images` (steps + 1, n, p): p_j and q_j; one slot more than is remembered, since a new step is
      written while the old ones are read.
    - `curvatures` (steps + 1, p): p_j' q_j.
    - `held`: the filled slots, oldest first.
    """

    def __init__(self, n: int, p: int, steps: int) -> None:
        self.steps = steps
        self.directions, self.images = np.zeros((steps + 1, n, p)), np.zeros((steps + 1, n, p))
        self.curvatures = np.zeros((steps + 1, p))
        self.held: list[int] = []

    def conjugate(
        self, indices: IndexArray, delta: FloatArray, gradient: FloatArray, images: FloatArray | None = None
    ) -> BlockStep:
        """Make a block's step conjugate to the remembered ones, before any product with it is known, and remember it.

        p = delta - sum_j c_j p_j with c_j = p_j' Kbar delta / p_j' q_j = q_j[B]' delta / p_j' q_j. Since Kbar_BB
        delta = -g_B, delta' Kbar delta = -g_B' delta; since earlier exact steps left g orthogonal to every p_j, g' p
        = g_B' delta.

        - `indices`, `delta`, `gradient` (m,), (m, p) and (m, p): B, the minimiser over it, and g_B.
        - `images` (steps + 1, m, p): `self.images` at B, where this memory is not up to date.
        """
        p = delta.shape[1]
        slope = -np.einsum("bt,bt->t", gradient, delta)
        used = np.asarray(self.held, dtype=np.intp)
        coefficients = np.zeros((len(used), p))
        for row, slot in enumerate(used):
            curvature = self.curvatures[slot]
            image = self.images[slot, indices] if images is None else images[slot]
            along = np.einsum("bt,bt->t", image, delta)
            coefficients[row] = np.divide(along, curvature, out=np.zeros(p), where=curvature > 0.0)
        curvature = slope - np.einsum("jt,jt->t", coefficients**2, self.curvatures[used])
        poor = curvature <= LEAST_CONJUGATE_SHARE * slope
        coefficients[:, poor] = 0.0
        curvature = np.where(poor, slope, curvature)
        step = np.divide(slope, curvature, out=np.zeros(p), where=curvature > 0.0)
        return BlockStep(indices.copy(), delta, used, coefficients, step, self._slot(curvature))

    def _slot(self, curvature: FloatArray) -> int:
        """Make room for a step: the oldest is forgotten from the next one on."""
        slot = next(slot for slot in range(self.steps + 1) if slot not in self.held)
        self.curvatures[slot] = curvature
        if self.steps:
            if len(self.held) == self.steps:
                self.held.pop(0)
            self.held.append(slot)
        return slot

    def move(self, alpha: FloatArray, step: BlockStep, rows: int | None = None) -> FloatArray:
        """Take the step in alpha; return its squared length by target, (p,), added up by blocks.

        - `rows`: of a block; by default those of a training set of so many samples.
        """
        direction, rows = self.directions[step.slot], rows or block_rows(len(alpha))
        direction[:] = 0.0
        direction[step.indices] = step.delta
        used, coefficients = step.used, step.coefficients
        return np.asarray(advance_solution(alpha, direction, self.directions, used, coefficients, step.step, rows))

    def settle(self, gradient: FloatArray, step: BlockStep, product: FloatArray) -> None:
        """Take the step in the gradient, from the product Kbar[:, B] delta (n, p)."""
        image = self.images[step.slot]
        advance_gradient(gradient, product, self.images, step.used, step.coefficients, step.step, image)

    def settled_at(self, indices: IndexArray, gradient: FloatArray, step: BlockStep, product: FloatArray) -> FloatArray:
        """Return what the gradient will be at a few samples, from `product` there; the bits are those of `settle`."""
        return settled(step, product, gradient[indices], np.ascontiguousarray(self.images[:, indices]))[0]

    def clear(self) -> None:
        """Forget all steps."""
        self.held.clear()

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return {
            "directions": self.directions[self.held],
            "images": self.images[self.held],
            "curvatures": self.curvatures[self.held],
        }

    def restore(self, arrays: dict[str, FloatArray]) -> None:
        """Remember a checkpoint's steps."""
        self.held = list(range(len(arrays["directions"])))
        for name, ring in (("directions", self.directions), ("images", self.images), ("curvatures", self.curvatures)):
            ring[: len(self.held)] = arrays[name]


def settled(
    step: BlockStep, product: FloatArray, gradient: FloatArray, images: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the gradient after a step, and the step's image, at a few samples; the bits are those of `settle`.

    - `product`, `gradient` (r, p): Kbar[:, B] delta and the gradient before the step there; the latter is overwritten.
    - `images` (steps + 1, r, p): the remembered images there.
    """
    image = np.empty_like(gradient)
    advance_gradient(gradient, product, images, step.used, step.coefficients, step.step, image)
    return gradient, image
