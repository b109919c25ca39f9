"""Intervals of variances from a Cholesky factor of the whole Kbar, by a proven bound on its roundings.

A float64 factor L, as computed, is the exact one of a matrix near Kbar: L L' = Kbar + E, |E_ij| <= eps_L d_i d_j with
d_i = sqrt(largest) w_i, the weights of `RowScales`. So is f as computed from L f = k_x: L f = k_x + rho, |rho_i| <= tau
d_i. With v = L^-T f, a = sum d_i |v_i| and D^2 = sum d_i^2, Theorem 2 for this v comes to

    |f|^2 - 2 tau a - eps_L a^2 <= k_x' Kbar^-1 k_x <= |f|^2 + 2 tau a + eps_L a^2 + D^2 (eps_L a + tau)^2 / s2,

without a kernel entry but those of k_x, and without a product with K. The proof, and where each rounding is counted:
docs/proofs.md. a is at most D |f| / sqrt(s2 - eps_L D^2), and is found from v itself where this leaves too much.

References
----------
N. J. Higham, Accuracy and Stability of Numerical Algorithms (2002), lemma 8.4, theorems 8.5 and 10.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.threads import in_parallel
from dkgp.models.rounding import EPS, EVALUATION, UNIT, highest_prior
from dkgp.models.variance.batch import BatchVariance, VarianceBounds
from dkgp.models.variance.row_scales import RowScales
from dkgp.models.variance.search import ProductTally
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.cholesky.factor_tasks import TileContext, TileLayout
from dkgp.solvers.cholesky.substitution import substitute

# Rows of a tile: what is proven is in proportion to them, and to n over them.
TILE_ROWS, LARGE_TILE_ROWS, LARGE_FROM = 512, 1024, 40_000
# BLAS adds what a tile's product comes to in so many parts at most: its kernels take 128 columns at a time, or more.
PARTS = 8
# Of s2, the most that E may take for anything to be proven by it.
LARGEST_SHARE = 0.1


def whole_layout(n: int) -> TileLayout:
    """The cut of n samples' factor into tiles: by n alone, and so are its bits."""
    rows = TILE_ROWS if n < LARGE_FROM else LARGE_TILE_ROWS
    return TileLayout(n, min(rows, n), "double")


@dataclass(frozen=True)
class WholeRoundings:
    """Bounds on a factor's roundings, known before it is there.

    Attributes
    ----------
    layout : TileLayout
    scales : RowScales
    noise_variance : float
        s2.
    """

    layout: TileLayout
    scales: RowScales
    noise_variance: float

    @property
    def gamma(self) -> float:
        """Roundings that a term of an entry of L, or of f, passes through, in any order of a tile's sums."""
        layout = self.layout
        return EVALUATION * (2.0 * layout.rows + PARTS * layout.n_panels + 8.0) * UNIT

    @property
    def entry(self) -> float:
        """Errors of an entry of Kbar, noise included, in units of d_i d_j."""
        return EVALUATION * (self.scales.entry_error * EPS + UNIT)

    @property
    def backward(self) -> float:
        """eps_L: of L L' against Kbar, in units of d_i d_j."""
        return self.entry + 2.0 * self.gamma

    @property
    def length(self) -> float:
        """D."""
        return float(np.sqrt(self.scales.largest)) * self.scales.norm * EVALUATION

    @property
    def off(self) -> float:
        """Bound on the eigenvalues of L L' - Kbar."""
        return self.backward * self.length**2

    @property
    def least(self) -> float:
        """Lower bound on the eigenvalues of L L'; zero where nothing is proven."""
        return self.noise_variance - self.off if self.off <= LARGEST_SHARE * self.noise_variance else 0.0


@dataclass(frozen=True)
class WholeFactor:
    """A factor that is there.

    Attributes
    ----------
    tiles : TileContext
    roundings : WholeRoundings
    """

    tiles: TileContext
    roundings: WholeRoundings

    def solve(self, inputs: FloatArray, gap: float, *, latent: bool = False, threads: int = 1) -> BatchVariance:
        """Bound the variances at standardised test inputs (t, d); `passes` are none."""
        kernel = self.tiles.context.kernel
        prior = np.asarray(kernel.diagonal(inputs), dtype=np.float64)
        highest = highest_prior(kernel, prior)
        known, scales = self.roundings, self.roundings.scales
        noise = 0.0 if latent else known.noise_variance
        bounds = VarianceBounds(highest, noise, gap)
        reported = np.zeros(len(inputs)), ProductTally()
        if known.least <= 0.0:
            return bounds.reported(*reported)
        f = self._columns(inputs, threads)
        substitute(self.tiles, f, threads)
        square = self._squares(f)
        share = scales.share(highest, inputs) * np.sqrt(scales.largest)
        everything = np.arange(len(inputs))
        spread = known.length * np.sqrt(square / known.least) * EVALUATION
        self._tighten(bounds, everything, (prior, highest), square, share, spread)
        wide = bounds.unfinished()
        if len(wide):
            v = np.ascontiguousarray(f[:, wide])
            substitute(self.tiles, v, threads, transposed=True)
            spread = np.fmin(spread[wide], self._spread(v, square[wide]))
            self._tighten(bounds, wide, (prior[wide], highest[wide]), square[wide], share[wide], spread)
        return bounds.reported(*reported)

    def weights(self, inputs: FloatArray, *, threads: int = 1) -> tuple[FloatArray, FloatArray]:
        """w near Kbar^-1 k_x at standardised inputs (t, d), (n, t), and a bound on each |Kbar w - k_x|, (t,).

        Infinite where nothing is proven of the factor. docs/proofs.md, Theorem 18, has the proof.
        """
        known, scales = self.roundings, self.roundings.scales
        highest = highest_prior(self.tiles.context.kernel, np.asarray(self.tiles.context.kernel.diagonal(inputs)))
        w = self._columns(inputs, threads)
        substitute(self.tiles, w, threads)
        share = scales.share(highest, inputs) * np.sqrt(scales.largest)
        tau = (known.entry + known.gamma) * share + known.gamma * np.sqrt(self._squares(w))
        substitute(self.tiles, w, threads, transposed=True)
        spread = np.sqrt(scales.largest) * (scales.weights @ np.abs(w))
        residual = EVALUATION * known.length * ((known.backward + known.gamma) * spread + tau)
        return w, np.asarray(residual if known.least > 0.0 else np.full_like(residual, np.inf))

    def _columns(self, inputs: FloatArray, threads: int) -> FloatArray:
        """k_x of the test samples, float64: (n, t)."""
        layout, evaluator = self.tiles.layout, self.roundings.scales.evaluator
        test = evaluator.prepare(inputs)
        columns = np.empty((layout.n, len(inputs)))

        def fill(k: int) -> None:
            columns[slice(*layout.bounds(k))] = evaluator.tile(self.tiles.features(k), test)

        in_parallel(fill, layout.n_panels, threads)
        return columns

    def _squares(self, f: FloatArray) -> FloatArray:
        layout = self.tiles.layout
        parts = [f[slice(*layout.bounds(k))] for k in range(layout.n_panels)]
        return np.asarray(np.sum([np.einsum("it,it->t", part, part) for part in parts], axis=0))

    def _spread(self, v: FloatArray, square: FloatArray) -> FloatArray:
        """a, from v as computed, off by L^-T times gamma (|L|'|v| + |f|); the norm of L^-T is 1 / sqrt(least)."""
        known, scales = self.roundings, self.roundings.scales
        absolute = np.sqrt(scales.largest) * (scales.weights @ np.abs(v))
        off = known.gamma * (absolute + np.sqrt(square)) / np.sqrt(known.least)
        return np.asarray(EVALUATION * (absolute + known.length * off))

    def _tighten(
        self,
        bounds: VarianceBounds,
        which: IndexArray,
        priors: tuple[FloatArray, FloatArray],
        square: FloatArray,
        share: FloatArray,
        spread: FloatArray,
    ) -> None:
        known, (prior, highest) = self.roundings, priors
        tau = EVALUATION * ((known.entry + known.gamma) * share + known.gamma * np.sqrt(square))
        either = 2.0 * tau * spread + known.backward * spread**2
        either += (self.tiles.layout.rows + self.tiles.layout.n_panels + 6.0) * UNIT * square
        # k(x, x) as computed, and two differences.
        either += (highest - prior) + 4.0 * UNIT * (highest + square)
        residual = (known.length * (known.backward * spread + tau)) ** 2 / known.noise_variance
        lower = prior - square - EVALUATION * (either + residual)
        upper = prior - square + EVALUATION * either
        bounds.tighten(which, lower, upper, upper - lower)
