"""Sums over weighted points at other inputs, K(T, X) V, each within an error that is proven: the choice and the cache.

A process keeps the points and their weights, made ready, under the run's name. Results depend on the arguments alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import psutil

from dkgp.cluster.cache import worker_cache
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.kernels.terms import terms_of
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cells.cross import SOURCE_LEAF, CrossSlopes, CrossSums, TermSums, morton_order
from dkgp.operators.cells.operator import estimated_bytes

# Rows that are summed at together, and of a region of such pieces.
PIECE_ROWS, REGION_ROWS = 32768, 131072
# Errors allowed to far points, in steps, over the error asked for: bounds from moments are tighter than those of even
# weights. A step that leaves more than this share of the sums beyond the error is followed by the next.
STEPS, SHARE_BEYOND = (8.0, 0.25, 0.008), 0.02
# The one step of derivatives, whose errors are larger than those of values.
SLOPE_STEP = 0.05
# Costs in a forecast, in entries evaluated: tables of a kernel and a tolerance, each piece, each source and each
# target, by the dimension of cells. Sums pay that take this share of all entries at most. Below so many entries no
# reason is noted.
CLASS_ENTRIES, PIECE_ENTRIES = {1: 1e9, 2: 4e9, 3: 4e10}, {1: 1e7, 2: 5e7, 3: 3e8}
SOURCE_ENTRIES, TARGET_ENTRIES = 3e3, {1: 3e3, 2: 2e4, 3: 2e5}
SHARE_OF_ENTRIES, NOTED_ENTRIES = 0.5, 1e11
# Entries in all below which sums never pay: tables of a kernel cost more.
LEAST_ENTRIES = min(CLASS_ENTRIES.values()) / SHARE_OF_ENTRIES
# Largest part of this machine's free memory that one process may keep for them.
SHARE_OF_MEMORY = 0.5
# The least error relative to the weights' magnitudes that roundings leave room for.
LEAST_SHARE = 1e-12


def near_order(context: BlockContext, inputs: FloatArray) -> IndexArray:
    """Return an order of points (r, d) in which neighbours by the kernel's distance stand together: (r,)."""
    terms = terms_of(context.kernel).terms
    if not terms:
        return np.arange(len(inputs))
    return morton_order(inputs[:, list(terms[0].features)] * np.array(terms[0].scale))


def _points(context: BlockContext) -> FloatArray:
    """Return all inputs X of a context: (n, d)."""
    return np.concatenate([context.source.inputs(*context.bounds(block)) for block in range(context.n_blocks)])


def cross_sums(
    context: BlockContext, inputs: FloatArray, weights: FloatArray, errors: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return K(inputs, X) @ weights in float64, and bounds on the errors of its entries, roundings included: (r, t).

    This process keeps the tree of the context's X and the moments of the `weights` (n, t), which must be the same at
    each call. Where a bound is above `errors` (t,), the caller evaluates every entry.
    """
    cache = worker_cache()
    # Each piece of inputs takes the same tree and moments.
    cache.make_room(estimated_bytes(context.kernel, context.n, weights.shape[1])[0])

    def build() -> CrossSums:
        return CrossSums(terms_of(context.kernel), _points(context), weights)

    def within(tolerance: float) -> TermSums:
        made: TermSums = cache.get((context.run_id, "sums", tolerance), lambda: points.within(tolerance))
        return made

    points = cache.get((context.run_id, "weighted points"), build)
    share = float(np.min(errors / np.maximum(points.masses, 1e-300)))
    for step in STEPS:
        sums, bounds = points.at(inputs, within(step * share))
        within_errors = np.count_nonzero((bounds <= errors).all(axis=1))
        if within_errors >= (1.0 - SHARE_BEYOND) * len(bounds):
            break
    return sums, bounds


def cross_slopes(
    context: BlockContext, evaluator: SlopeEvaluator, inputs: FloatArray, weights: FloatArray, errors: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """Return derivatives of K(inputs, X) @ weights in the inputs, and bounds on their errors: (r, t, d) both.

    The evaluator's roundings are the caller's to count, as of a sum over all entries. Where a bound is above `errors`
    (r, t, d) the caller evaluates every entry. None where that is quicker for all, or the only way. The `weights` (n,
    t) are the same at each call.
    """
    try:
        terms = terms_of(context.kernel).terms
    except InputError:
        return None
    if len(terms) != 1:
        return None
    features = list(terms[0].features)
    steps = terms[0].amplitude * np.array(terms[0].scale) * np.abs(weights).sum(axis=0)[:, None]
    share = float((errors[:, :, features] / np.maximum(steps, 1e-300)).min())
    if not LEAST_SHARE <= share < math.inf or not forecast_sums(context, len(inputs), np.ones(1), np.ones(1)).pays:
        return None

    def build() -> CrossSlopes:
        return CrossSlopes(terms_of(context.kernel), evaluator, _points(context), weights, tolerance)

    # A power of four, so that calls with other errors find the same.
    tolerance = terms[0].amplitude * 4.0 ** math.floor(math.log(share * SLOPE_STEP, 4.0))
    sums = worker_cache().get((context.run_id, "slopes", tolerance), build)
    return sums.at(inputs)


@dataclass(frozen=True)
class Forecast:
    """A forecast of sums within an error: if they pay, and a line on why where it matters."""

    pays: bool
    reason: str | None = None


def forecast_sums(context: BlockContext, tests: int, masses: FloatArray, errors: FloatArray) -> Forecast:
    """Compare sums at `tests` inputs within `errors` (t,) with those of all entries, by counts and free memory.

    `masses` (t,) are the sums of the magnitudes of the weights. One unit is an entry that is evaluated.
    """
    entries = float(context.n) * tests

    def declined(why: str) -> Forecast:
        noted = entries >= NOTED_ENTRIES
        return Forecast(False, f"sums evaluate every kernel entry, {entries:.1e} in all: {why}" if noted else None)

    try:
        terms = terms_of(context.kernel)
    except InputError as error:
        return declined(str(error))
    if not (errors >= LEAST_SHARE * terms.magnitude * masses).all():
        return declined("no other bound is as small as these need")
    rows = min(tests, PIECE_ROWS)
    work = 0.0
    for term in terms.terms:
        d = len(term.features)
        near = 3.0**d * (SOURCE_LEAF[d] + 2.0 * context.n / rows)
        each = CLASS_ENTRIES[d] + PIECE_ENTRIES[d] * -(-tests // rows)
        work += each + masses.size * (SOURCE_ENTRIES * context.n + tests * (near + TARGET_ENTRIES[d]))
    pays = work < SHARE_OF_ENTRIES * entries
    if not pays:
        return Forecast(False)
    needed, free = estimated_bytes(context.kernel, context.n, masses.size)[0], psutil.virtual_memory().available
    if needed > SHARE_OF_MEMORY * free:
        return declined(f"other sums need {needed:,} bytes in each process, and {int(free):,} are free here")
    return Forecast(True, f"sums within proven errors: about {work / entries:.1%} of the work of {entries:.1e} entries")


def require_cross_sums(kernel: Kernel, weights: FloatArray, error: float | None) -> None:
    """Refuse a kernel whose sums have no proven bound but the exact one, and an error below roundings; `InputError`.

    `weights` (n, t) are those of the sums. `error` is the number that a user gave; None where a forecast chose.
    """
    least = LEAST_SHARE * terms_of(kernel).magnitude * float(np.abs(weights).sum(axis=0).max(initial=0.0))
    if error is not None and error < least:
        raise InputError(
            f"`product_error` {error:g} is below the roundings of sums over this model's {len(weights):,} samples, for "
            f"which {least:.2g} is proven at best. Give that or more, or auto or none"
        )
