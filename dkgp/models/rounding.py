"""Every rounding that a proof counts: one small function for each term, with its lemma.

Throughout u = eps / 2 is the unit roundoff of float64, and a computed operation is exact (1 + delta), |delta| <= u
(Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, chapter 2). Bounds are themselves computed in float64:
their terms of the order of u are multiplied by `EVALUATION`, which is more than their own roundings come to.
`docs/proofs.md` says where each term is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import numpy as np

from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.tiles.slope_loops import SLOPE_COLUMNS
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import InputSource, centre_of

P = ParamSpec("P")

EPS = float(np.finfo(np.float64).eps)
UNIT = 0.5 * EPS
# A bound's terms in u are sums of up to n numbers that are not negative, and a few products: their relative error is
# below n u + 100 u, and gamma_k = k u / (1 - k u) exceeds k u by less than k^2 u^2; one percent is far above either.
EVALUATION = 1.01
# A few times the largest error of a product or a quotient below the smallest normal number.
LOST = 2.0**-1070
# Columns, or rows, that the tile loops add up in one run, the shortest run, and rows of a block at most.
LONGEST_RUN, SHORTEST_RUN, BLOCK_ROWS = 512, 64, 8208


def product_roundings(n: int) -> float:
    """Return the roundings of one term k_j alpha_j in a product with all of K, over n samples.

    A sum in which each term passes through at most m additions has an error of at most gamma_m sum |terms| (Higham,
    section 4.2). The loops add runs of up to 512 within a tile, and then the runs of a block (of at least 64 terms);
    there are never more than n terms. Blocks are added exactly, as fixed-point words, whose roundings are
    `fixed_roundings`. Six more roundings: the weight times the amplitude, the product, the noise's own product and
    sum, the final subtraction, and one as a margin.
    """
    return min(float(n), LONGEST_RUN + BLOCK_ROWS / SHORTEST_RUN) + fixed_roundings(n) + 6.0


def fixed_roundings(n: int) -> float:
    """Roundings of the fixed-point words of the blocks' sums (Lemma 2a), in units of u sum |terms|.

    One for the result; of N additions half a unit of the last word each, and a rounding of the low word: together at
    most 2^-22 N up to N = 2^13 blocks. Beyond, the low word has a bit less for each doubling.
    """
    blocks = max(8.0, n / 8192 + 1.0)
    return 1.0 + 2.0**-22 * blocks * max(1.0, blocks / 2.0**12)


def mean_roundings(n: int) -> float:
    """Roundings as in `product_roundings` of a sum over n samples for a test sample, whose blocks are added in turn."""
    return min(float(n), LONGEST_RUN + BLOCK_ROWS / SHORTEST_RUN + max(8.0, n / 8192 + 1.0)) + 6.0


def step_roundings(p: int) -> float:
    """Further roundings where a step P A was taken with the gradient: alpha + P A, g + Q A, Q = Kbar P as computed.

    With k <= p directions, (Kbar P) A and P A are off by (k + 1) u |Q| |A| and (k + 1) u |P| |A|; alpha and g as they
    are after the step by u of themselves each, and g before it, once more, by u (|g| + |Q| |A|). By |Q| <= Kbar |P| all
    but |g| are in proportion to the product's own roundings. One rounding is a margin, and two are of second order.
    """
    return p + 6.0


def sum_roundings(n: int, run: int, runs: int | None = None) -> float:
    """Additions on the way of one term into a sum over n terms by runs of at most `run`, added up one by one.

    A run may be added in any order, for instance by BLAS. `runs` is the number of runs, by default that of full runs.
    Six more roundings: the product, a share of the noise, a later addition or subtraction, and one as a margin.
    """
    return float(min(n, run)) + (math.ceil(n / run) if runs is None else runs) + 6.0


def slope_roundings(n: int, leaves: int) -> float:
    """Roundings of one term of a sum of derivatives over n samples by `SlopeEvaluator.sums`, block by block.

    A coordinate has `SLOPE_COLUMNS` lanes; into each go, for every leaf, its terms of a block of up to 8,208 columns;
    then the lanes are added up, then the blocks. Twelve more: the weight times the amplitude, the weight times the
    slope, twice w, the difference, the products; of a periodic input the chain rule's; and one to spare.
    """
    blocks = max(8.0, n / 8192 + 1.0)
    return min(float(n * leaves), SLOPE_COLUMNS + leaves * (BLOCK_ROWS / SLOPE_COLUMNS + 1.0) + blocks) + 12.0


def bounding(bound: Callable[P, FloatArray]) -> Callable[P, FloatArray]:
    """Decorate a bound on errors: where it is NaN or overflows, it is infinite, and so proves nothing."""

    @wraps(bound)
    def bounded(*arguments: P.args, **options: P.kwargs) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            return known(bound(*arguments, **options))

    return bounded


def known(bounds: FloatArray) -> FloatArray:
    """Return the bounds, with infinity for NaN, which an outlier's infinite error times a size of zero gives."""
    return np.where(np.isnan(bounds), np.inf, bounds)


def highest_prior(kernel: Kernel, prior: FloatArray) -> FloatArray:
    """Return upper bounds on the exact k(x, x) from the computed `kernel.diagonal`; finite wherever it is finite."""
    with np.errstate(over="ignore"):
        return np.asarray(prior * (1.0 + EVALUATION * UNIT * (kernel.diagonal_roundings + 2.0)))


def column_lengths(columns: FloatArray) -> FloatArray:
    """||a_t|| of the columns of (n, p) or of (n,): to the bits of `np.linalg.norm`, but for squares beyond float64.

    Scaled by powers of two, which round nothing.
    """
    exponent = np.frexp(np.max(np.abs(columns), axis=0, initial=0.0))[1]
    return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(columns, -exponent), axis=0), exponent))


def certified_row_errors(kernel: Kernel, source: InputSource, inputs: FloatArray) -> FloatArray:
    """Errors that the roundings of rows add to the entries that means are made of: (r,), in units of eps.

    See `TileEvaluator.row_errors`; in the form, and about the centre, in which the tasks of `source` evaluate.
    """
    return TileEvaluator(kernel, "double", centre=centre_of(source)).row_errors(inputs)


def outward(lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of an interval, each the result of one rounding, moved outward to the next number."""
    return np.nextafter(lower, -np.inf), np.nextafter(upper, np.inf)


def mean_in_units(
    mean: FloatArray, bound: FloatArray, scale: FloatArray, offset: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the means in the targets' units, fl(fl(mean scale) + offset), and bounds on their errors.

    The error of the product is u |mean scale|, and that of the sum u |result|. The two roundings of the targets'
    standardisation are counted with the residual.

    `mean`, `bound` (r, p): standardised means and bounds on their errors. `scale`, `offset` (p,): the stored values,
    which are exact by definition.
    """
    with np.errstate(over="ignore"):  # beyond the largest number: infinite, and so is its bound
        product = mean * scale
        result = product + offset
        rounded = UNIT * EVALUATION * (np.abs(product) + np.abs(result))
        return result, np.nextafter((bound * scale + rounded) * (1.0 + 4.0 * EPS), np.inf)


def shifted_bound(bound: FloatArray, shifted: FloatArray) -> FloatArray:
    """Bounds (r, ...) on means after one rounded addition, whose results are `shifted`: u |result| more, outward."""
    with np.errstate(over="ignore", invalid="ignore"):
        return known(np.nextafter((bound + UNIT * EVALUATION * np.abs(shifted)) * (1.0 + 4.0 * EPS), np.inf))


def variance_in_units(lower: FloatArray, upper: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends of intervals (r,) in the targets' squared units, (r, p): three roundings each, outward.

    A number below the smallest normal one has a larger relative rounding, so each end also moves to the next number.
    """
    with np.errstate(over="ignore"):  # beyond the largest number: between that and infinity
        squared = np.asarray(scale, dtype=np.float64) ** 2
        low, high = outward(lower[:, None] * squared * (1.0 - 2.0 * EPS), upper[:, None] * squared * (1.0 + 2.0 * EPS))
    return np.maximum(low, 0.0), high


def noise_in_units(noise_variance: float, scale: FloatArray) -> list[float]:
    """The noise variance in the squared units of each of the p targets; infinite beyond the largest number."""
    with np.errstate(over="ignore"):
        scaled: list[float] = (noise_variance * np.asarray(scale, dtype=np.float64) ** 2).tolist()
    return scaled


def middle(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Middles of intervals: the variances that are reported; infinite where the upper end is."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(upper), upper, lower + 0.5 * (upper - lower))


def assumptions(kernel: Kernel) -> str | None:
    """Return the unproven assumptions of a proof, which are about users' functions; None without any."""
    names = sorted({part.unproven for part in kernel.walk() if part.unproven is not None})
    if not names:
        return None
    return (
        f"user function {', '.join(names)}: its positive definiteness was checked on a sample of inputs, not proven; "
        "its own error is taken to be at most 16 roundings, and its slope at most one"
    )
