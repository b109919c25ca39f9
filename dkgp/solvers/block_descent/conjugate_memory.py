"""The last few block steps, to which the next one is made conjugate, and its length exact.

A step is remembered as its direction p_j and its image q_j = Kbar p_j. That costs no kernel evaluation: the images are
the updates of their own rounds.

The gradient and the solution after a step, of all samples or of a block, are computed element by element, in a fixed
order and without contraction: a row's value is the same whether all rows are updated or a few, and wherever they stand
in the array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.types import block_rows
from dkgp.kernels.compiler import cached_njit
from dkgp.operators.base import FloatArray, IndexArray

# Rows worked on at a time: a few of these fit the first-level cache, so a step reads each n-vector once.
CHUNK = 1024
# The memory multiplies old directions by small coefficients round after round; left alone they end as denormal numbers,
# which cost a hundred times a normal one and mean nothing.
NEGLIGIBLE = 1e-200


@cached_njit(nogil=True)
def _combine(out, images, used, coefficients, first, last):  # type: ignore[no-untyped-def]
    """`out[first:last] -= sum_j c_j images[used[j], first:last]`, one j after the other."""
    p = out.shape[1]
    for j in range(used.shape[0]):
        slot = used[j]
        if p == 1:  # one long loop instead of many loops of one
            factor = coefficients[j, 0]
            for i in range(first, last):
                out[i, 0] -= factor * images[slot, i, 0]
        else:
            for i in range(first, last):
                for t in range(p):
                    out[i, t] -= coefficients[j, t] * images[slot, i, t]


@cached_njit(nogil=True)
def _add_scaled(total, step, image, first, last):  # type: ignore[no-untyped-def]
    p = total.shape[1]
    if p == 1:
        factor = step[0]
        for i in range(first, last):
            total[i, 0] += factor * image[i, 0]
    else:
        for i in range(first, last):
            for t in range(p):
                total[i, t] += step[t] * image[i, t]


@cached_njit(nogil=True)
def advance_gradient(gradient, product, images, used, coefficients, step, image_out):  # type: ignore[no-untyped-def]
    """`q = product - sum_j c_j q_j; gradient += step * q`, and q to `image_out`; per target.

    - `gradient`, `product`, `image_out` (n, p): g before (in) and after (out) the step; Kbar[:, B] @ delta; where q
      goes.
    - `images` (memory, n, p): q_j = Kbar p_j of the remembered steps.
    - `used` (k,): which of them take part.
    - `coefficients` (k, p).
    """
    n, p = gradient.shape
    for first in range(0, n, CHUNK):
        last = min(first + CHUNK, n)
        # By loops: the check that two slices fit takes seconds to compile.
        for i in range(first, last):
            for t in range(p):
                image_out[i, t] = product[i, t]
        _combine(image_out, images, used, coefficients, first, last)
        _add_scaled(gradient, step, image_out, first, last)


@cached_njit(nogil=True)
def advance_solution(alpha, direction, directions, used, coefficients, step, rows):  # type: ignore[no-untyped-def]
    """`p = delta (on B) - sum_j c_j p_j; alpha += step * p`; per target.

    Return the squared lengths ||step * p||^2, (p,), added up by blocks of so many `rows`.

    - `direction` (n, p): delta on B and zero elsewhere (in), p (out).
    """
    n, p = alpha.shape
    total, moved = np.zeros(p), np.zeros(p)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        moved[:] = 0.0
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            _combine(direction, directions, used, coefficients, first, last)
            for i in range(first, last):
                for t in range(p):
                    value = direction[i, t]
                    value = value if abs(value) > NEGLIGIBLE else 0.0
                    direction[i, t] = value
                    moved[t] += value * value
            _add_scaled(alpha, step, direction, first, last)
        for t in range(p):
            total[t] += moved[t] * step[t] * step[t]
    return total


# A step that the memory all but cancels is worth nothing: drop the memory for it rather than divide by rounding.
LEAST_CONJUGATE_SHARE = 1e-4


@dataclass(frozen=True)
class BlockStep:
    """A block step whose scalars are known: they turn Kbar[:, B] delta into the new gradient.

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
        """Return the coming gradient at a few samples, from `product` there; the bits are those of `settle`."""
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
