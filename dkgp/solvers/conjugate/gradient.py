"""Conjugate gradients on Kbar alpha = y, plain (the GBCD paper's CG) or preconditioned by a partial Cholesky factor.

Block conjugate gradients solve Kbar X = B for all right-hand sides together, by one full kernel product an iteration.
The residuals R of all columns, preconditioned, span the next directions P, which are made conjugate to the last ones
and nearly orthonormal. One product Q = Kbar P serves every column, and each takes the step along P that is the best for
it: X += P A, R -= Q A with A = (P'Q)^-1 P'R. For one column these are conjugate gradients.

Three rules keep the recursion together in rounded arithmetic:

* Directions that others span are left out, as are those along which the matrix, as rounded, has no curvature.
* The last directions are taken out of the next ones by their products with Q, not by ratios of residuals: so the
  preconditioner may be rounded, or change, and the residual may be computed anew, without a loss of conjugacy.
* A step is exact for the current residual, along any directions. P and Q belong to no column: columns
  may leave, or stay where they are, between any two iterations.

`dkgp.solvers.method_run` watches the drift of float32 products: when it recomputes the gradient, the search goes on
from its directions, with exact steps for the true residual, so no conjugacy is lost.

References
----------
D. P. O'Leary, The block conjugate gradient algorithm and related methods (1980).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.registry import Option, whole_or_auto
from dkgp.solvers.base import Method, SolverState, nothing
from dkgp.solvers.conjugate.preconditioner import (
    FactorPreconditioning,
    Growth,
    Landmarks,
    Preconditioner,
    Preconditioning,
)
from dkgp.solvers.method_run import opens_in_double
from dkgp.solvers.prices import Expected, Phase, Sizes
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver
from dkgp.solvers.stopping import Progress

# Directions that the others span to this share of their length are left out; of float32 ones little more is there.
DEPENDENT, DEPENDENT_SINGLE = 1e-7, 1e-5
# Shorter ones of float32 are zero: their scale factor would overflow.
SHORTEST_SINGLE = 1e-30
# Tall arrays are worked through a piece of their rows at a time, so that nothing as tall is made on the way; threads
# share the pieces of a tall result, and so many columns of a small one.
PIECE_ROWS, PIECE_COLUMNS = 4096, 256


def row_pieces(n: int) -> Iterator[slice]:
    """Rows 0 to n, a piece at a time."""
    return (slice(start, start + PIECE_ROWS) for start in range(0, n, PIECE_ROWS))


def add_product(target: NDArray[Any], tall: NDArray[Any], small: FloatArray, threads: int = 1) -> None:
    """Add A B to the target (n, t), in place and in its type, for A (n, k) and B (k, t)."""
    right, pieces = small.astype(target.dtype, copy=False), list(row_pieces(len(tall)))

    def add(index: int) -> None:
        rows = pieces[index]
        target[rows] += tall[rows].astype(target.dtype, copy=False) @ right

    in_parallel(add, len(pieces), threads)


@dataclass
class BlockDirections:
    """The directions of the last iteration.

    - `vectors` (n, k): P, nearly orthonormal; empty before the first iteration. Any will do, so float32 may round them.
    - `images` (n, k): Kbar P. If both are float32, so is their algebra, apart from sums of pieces.
    - `threads`: of this process, to share the work; results do not depend on their number.
    """

    vectors: NDArray[Any] = field(default_factory=nothing)
    images: NDArray[Any] = field(default_factory=nothing)
    threads: int = 1
    _curvature: _Curvature | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, arrays: Mapping[str, FloatArray]) -> BlockDirections:
        """Return those of a checkpoint; none of an old version, whose search starts anew."""
        return cls(arrays["directions"], arrays["images"]) if "images" in arrays else cls()

    def advance(
        self, preconditioned: NDArray[Any], residual: NDArray[Any], product: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> FloatArray:
        """Find the next directions and the steps along them; the caller moves, by `vectors` and `images` times these.

        - `preconditioned` (n, c): M^-1 R, with any preconditioner M, of all columns or some; overwritten.
        - `residual` (n, t): R = B - Kbar X; not looked at before the product, which may compute it anew, in place.
        - `product`: Kbar V for V (n, k), any k up to c: (n, k).

        The steps A are (k, t). With k = 0 there is nothing to gain: no residual is left, or the matrix has no curvature
        along any direction.
        """
        self.conjugate(preconditioned)
        # As large as the images to come, for which there shall be room.
        self.images, self._curvature = np.zeros((0, 0), self.images.dtype), None
        self.vectors = _independent(preconditioned, self.vectors.dtype, self.threads)
        if self.vectors.size:
            images = product(self.vectors)
            curvature = _Curvature(self._cross(self.vectors, images))
            if curvature.rank:
                self.images, self._curvature = images, curvature
                return curvature.solve(self._cross(self.vectors, residual))
        self.vectors = np.zeros((0, 0), self.vectors.dtype)
        return np.zeros((0, residual.shape[1]))

    def conjugate(self, vectors: NDArray[Any]) -> None:
        """Take the last directions out of vectors (n, c), in place, so that they are conjugate to them."""
        if self.images.size:  # of a checkpoint, perhaps, which has no curvature: it comes to the same bits
            last = self._curvature or _Curvature(self._cross(self.vectors, self.images))
            add_product(vectors, self.vectors, -last.solve(self._cross(self.images, vectors)), self.threads)

    def _cross(self, left: NDArray[Any], right: NDArray[Any]) -> FloatArray:
        return _cross(left, right, np.result_type(left, right), self.threads)


@dataclass
class BlockState(SolverState):
    """A solve between two iterations, of a solver whose rounds are these."""

    directions: BlockDirections = field(default_factory=BlockDirections)

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        searched = {"directions": self.directions.vectors, "images": self.directions.images}
        return {**super().arrays(), **searched}

    def restore(self, arrays: Mapping[str, FloatArray], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint's arrays and scalars."""
        super().restore(arrays, metadata)
        self.directions = BlockDirections.of(arrays)


def iterate(
    operator: KernelOperator,
    state: BlockState,
    preconditioned: FloatArray,
    moving: Callable[[Progress], bool] | None = None,
    double: bool = False,
) -> dict[str, float]:
    """One iteration in place, given M^-1 r of the state's residual r = -g; seconds by phase.

    With `double` its product is one of float64, for rounds of any precision, so that an exact gradient stays exact;
    like one that verifies, it counts as no column pass.
    With `moving` its product is one of float64 with [alpha, P], entries evaluated once: the gradient is computed anew,
    and the step along P is exact for it, so that the gradient after it is exact, too. It is taken if `moving` says so
    of where the solve stands before it.

    - `preconditioned` (n, p): overwritten.

    Raises `NumericalError`: the matrix has no curvature along the true gradient, in float64.
    """
    started, seconds, multiplied, onward = time.perf_counter(), 0.0, False, True
    directions, residual, p = state.directions, -state.gradient, state.gradient.shape[1]

    def product(vectors: NDArray[Any]) -> FloatArray:
        nonlocal seconds, multiplied, onward
        before, multiplied = time.perf_counter(), True
        if moving is None:
            images = operator.matmat(vectors, "double" if double else state.precision)
        else:
            both = operator.matmat(np.hstack([state.alpha, vectors]))
            state.take_gradient(operator, both[:, :p] - state.rhs)
            onward = moving(state.verified or state.measured(operator))
            np.negative(state.gradient, out=residual)
            images = np.ascontiguousarray(both[:, p:])
        seconds = time.perf_counter() - before
        return images

    # A round from the true gradient alone, in float64, would repeat itself.
    last_resort = state.precision == "double" and state.exact and not directions.vectors.size
    step = directions.advance(preconditioned, residual, product)
    state.iteration += 1
    if moving is None and not double:
        state.columns += operator.n
    if not len(step):
        if last_resort and multiplied:
            raise NumericalError(
                f"after {state.iteration} rounds the kernel matrix, in float64, has no curvature along the gradient: "
                "it is not positive definite, or not finite. Raise the noise variance, or choose another kernel"
            )
        state.stuck = last_resort  # no direction is left: one that is not finite, or too short to be told from zero
        # Tiles in float32 need not form a positive definite matrix; those in float64 may do. Steps along such
        # tiles have come to, the recursion does not know: it may be worse than the start.
        if not state.exact:
            state.renew_gradient(operator)
        state.precision = "double"
    elif onward:
        add_product(state.alpha, directions.vectors, step)
        add_product(state.gradient, directions.images, step)
        if moving is None and not (double and state.exact):
            state.note_step(np.einsum("kt,kt->t", step, step))
        else:
            state.stepped = np.zeros_like(state.alpha)
            add_product(state.stepped, np.abs(directions.vectors), np.abs(step))
    return {
        "check" if double or moving is not None else "product": seconds,
        "update": time.perf_counter() - started - seconds,
    }


class _Curvature:
    """P'Q, factored."""

    def __init__(self, matrix: FloatArray) -> None:
        symmetric = (matrix + matrix.T) / 2.0
        self._lower: FloatArray | None = None
        self._root = np.zeros((len(symmetric), 0))
        if not np.isfinite(symmetric).all():
            return
        lower, trouble = scipy.linalg.lapack.dpotrf(symmetric, lower=1)
        if not trouble:
            self._lower = lower
            return
        values, vectors = np.linalg.eigh(symmetric)
        kept = values > len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)
        self._root = vectors[:, kept] / np.sqrt(values[kept])

    @property
    def rank(self) -> int:
        """Return the number of directions that are linearly independent."""
        return self._root.shape[1] if self._lower is None else len(self._lower)

    def solve(self, right: FloatArray) -> FloatArray:
        """(P'Q)^-1 B, in the space along which there is curvature."""
        if self._lower is not None:
            return np.asarray(scipy.linalg.lapack.dpotrs(self._lower, right, lower=1)[0])
        return np.asarray(self._root @ (self._root.T @ right))


def _cross(left: NDArray[Any], right: NDArray[Any], dtype: np.dtype[Any], threads: int) -> FloatArray:
    """A'B: pieces in the type given, their sum in float64."""
    total = np.zeros((left.shape[1], right.shape[1]))

    def add(index: int) -> None:
        columns = slice(index * PIECE_COLUMNS, (index + 1) * PIECE_COLUMNS)
        for rows in row_pieces(len(left)):
            piece = right[rows, columns].astype(dtype, copy=False)
            total[:, columns] += left[rows].T.astype(dtype, copy=False) @ piece

    in_parallel(add, -(-right.shape[1] // PIECE_COLUMNS), threads)
    return total


def _independent(z: NDArray[Any], dtype: np.dtype[Any], threads: int) -> NDArray[Any]:
    """Return nearly orthonormal directions with the span of z (n, t): (n, at most t)."""
    gram = _cross(z, z, np.dtype(np.float64), threads)
    if not np.isfinite(gram).all():
        return np.zeros((len(z), 0), dtype)
    lengths = gram.diagonal()
    scale = 1.0 / np.sqrt(np.maximum(lengths, np.finfo(np.float64).tiny))
    if z.dtype == np.float32:
        scale[lengths < SHORTEST_SINGLE**2] = 0.0
    scaled = scale[:, None] * gram * scale
    values, vectors = (scaled[0], np.ones((1, 1))) if len(scaled) == 1 else np.linalg.eigh(scaled)
    dependent = DEPENDENT_SINGLE if z.dtype == np.float32 else DEPENDENT
    kept = values > dependent**2 * values[-1]
    mixing = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    if z.dtype == np.float32:
        mixing = mixing.astype(np.float32)
    directions = np.empty((len(z), mixing.shape[1]), dtype)
    pieces = list(row_pieces(len(z)))

    def mix(index: int) -> None:
        directions[pieces[index]] = z[pieces[index]] @ mixing

    in_parallel(mix, len(pieces), threads)
    return directions


@dataclass
class ConjugateGradientState(BlockState):
    """A solve between two iterations.

    - `preconditioner`: M^-1; not part of a checkpoint: it is built again, to the same bits.
    - `growth`: of the preconditioner's factor.
    """

    preconditioner: Preconditioner | None = None
    growth: Growth = field(default_factory=Growth)

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        return {**super().metadata(), **self.growth.metadata()}

    def restore(self, arrays: Mapping[str, FloatArray], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint's arrays and scalars."""
        super().restore(arrays, metadata)
        self.growth = Growth.of(metadata)


@dataclass(frozen=True)
class ConjugateGradient(Method[ConjugateGradientState]):
    """Conjugate gradients, one full kernel product an iteration.

    Parameters
    ----------
    preconditioner : Preconditioning, optional
        Such as a `FactorPreconditioning`; without one, this is the CG that the GBCD paper compares with.
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64.
    observe : callable, optional
        Is shown the state before each iteration.

    References
    ----------
    L. Bo and C. Sminchisescu (2008), section 5.1; D. P. O'Leary, The block conjugate gradient algorithm and related
    methods (1980).
    """

    preconditioner: Preconditioning | None = None
    precision: Literal["mixed", "double"] = "mixed"
    observe: Callable[[ConjugateGradientState], None] | None = None

    state_type = ConjugateGradientState

    @property
    def name(self) -> str:
        """Short name, as on the command line."""
        return "cg" if self.preconditioner is None else "pcg"

    def resolved(self, n: int, d: int, p: int = 1) -> ConjugateGradient:
        """Return the settings with the preconditioner's rank chosen."""
        if self.preconditioner is None:
            return self
        return replace(self, preconditioner=self.preconditioner.resolved(n, d, p))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        preconditioner = None if self.preconditioner is None else self.preconditioner.settings()
        return {**super().settings(), "preconditioner": preconditioner}

    def phases(
        self, sizes: Sizes, count: float, *, checks: float = 1.0, spilled: float = 0.0, kept: float = 0.0
    ) -> list[Phase]:
        """Work of so many products, with a factor; see `Method.phases`."""
        if self.factor is None:
            return super().phases(sizes, count)
        return self.factor.phases(sizes, count, checks=checks, spilled=spilled, kept=kept)

    @property
    def factor(self) -> FactorPreconditioning | None:
        """Settings of the factor that is the preconditioner; None with another one, or without any."""
        return self.preconditioner if isinstance(self.preconditioner, FactorPreconditioning) else None

    @property
    def counted_in(self) -> str:
        """Products."""
        return super().counted_in if self.factor is None else "products"

    def expected(self, probe: Any) -> Expected:
        """Products with the factor."""
        return super().expected(probe) if self.factor is None else self.factor.expected(probe)

    def leaf_bytes(self, n: int, width: int) -> int:
        """Bytes of the factor's leaves."""
        return 0 if self.factor is None else self.factor.leaf_bytes(n, width)

    def advance(self, operator: KernelOperator, state: ConjugateGradientState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        return self._iterate(operator, state)

    def renews_in_rounds(self, operator: KernelOperator) -> bool:
        """True unless products are approximate: their bound is that of a product with alpha."""
        return not operator.approximate

    def renew(
        self, operator: KernelOperator, state: ConjugateGradientState, moving: Callable[[Progress], bool] | None
    ) -> dict[str, float]:
        """Compute the gradient anew in float64, with `moving` by an iteration's own product; seconds by phase."""
        return super().renew(operator, state, None) if moving is None else self._iterate(operator, state, moving)

    def _iterate(
        self,
        operator: KernelOperator,
        state: ConjugateGradientState,
        moving: Callable[[Progress], bool] | None = None,
    ) -> dict[str, float]:
        if self.observe is not None:
            self.observe(state)
        times, double = [time.perf_counter()], False
        preconditioned = -state.gradient
        if self.preconditioner is not None:
            factor = self._factor(operator, state)
            times.append(time.perf_counter())
            preconditioned = factor.apply(preconditioned)
            length = math.sqrt(float(np.einsum("ip,ip->p", preconditioned, preconditioned).max()))
            double = moving is None and opens_in_double(operator, state, length, factor.second_step)
        times.append(time.perf_counter())
        seconds = dict(zip(("precondition", "factor"), reversed(np.diff(times).tolist()), strict=False))
        return {**seconds, **iterate(operator, state, preconditioned, moving, double)}

    def _factor(self, operator: KernelOperator, state: ConjugateGradientState) -> Preconditioner:
        """The preconditioner, built where it is not there, and built anew where a larger one should pay."""
        settings = self.preconditioner
        assert settings is not None
        if isinstance(settings, FactorPreconditioning):
            n, p = state.gradient.shape
            sizes = Sizes(n, operator.kernel.n_features, p, state.precision == "double")
            settings = settings.grown(n, state.growth.level)
            larger = settings.grown(n)
            state.growth.note(float(np.linalg.norm(state.gradient)))
            if larger != settings and state.growth.is_worth(
                state.needed_fall, settings.price(sizes), larger.price(sizes)
            ):
                state.growth.grow()
                state.preconditioner, settings = None, larger
        if state.preconditioner is None:
            state.preconditioner = settings.build(operator)
        return state.preconditioner


HALO = Option(
    "halo",
    "Number of nearby samples on which pcg's Vecchia factor conditions each group of samples. 0: no Vecchia factor, "
    "only a low-rank one.",
    whole_or_auto,
    "auto",
    metavar="S|auto",
)
LEAF = Option(
    "leaf",
    "Number of samples in a group of pcg's Vecchia factor. auto: half of `halo`.",
    whole_or_auto,
    "auto",
    metavar="G|auto",
)
RANK = Option(
    "rank",
    "Rank of pcg's low-rank factor. 0: no low-rank factor, only the Vecchia factor.",
    whole_or_auto,
    "auto",
    metavar="R|auto",
)
LANDMARKS = Option(
    "landmarks",
    "How pcg chooses the landmarks of its low-rank factor. pivoted: samples by randomly pivoted Cholesky; uniform: "
    "random samples (Nyström); polynomials: nodes of local polynomials, for at most three features.",
    default="pivoted",
    choices=get_args(Landmarks),
)


def _plain(precision: Literal["mixed", "double"]) -> ConjugateGradient:
    return ConjugateGradient(None, precision)


def _preconditioned(
    halo: int | Literal["auto"],
    leaf: int | Literal["auto"],
    rank: int | Literal["auto"],
    landmarks: Landmarks,
    precision: Literal["mixed", "double"],
    seed: int,
) -> ConjugateGradient:
    return ConjugateGradient(FactorPreconditioning(halo, leaf, rank, landmarks, seed=seed), precision)


def _memory(solver: ConjugateGradient, n: int, d: int) -> SolverMemory:
    """Directions, one more of them in the round that verifies the gradient, and the factor."""
    if not isinstance(solver.preconditioner, FactorPreconditioning):
        return SolverMemory(memory=2, repeats_products=True)
    return replace(solver.preconditioner.memory(n, d), memory=2, repeats_products=True)


def _resuming(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint of before there was a halo, or of a low-rank factor alone, tells of none."""
    saved = settings.get("preconditioner") or {}
    names = ("leaf", "rank", "landmarks") if saved.get("landmarks") == "polynomials" else ("leaf", "rank")
    return {"halo": saved.get("halo", 0), **{name: saved[name] for name in names if name in saved}}


register_solver(
    # Float32 products cost conjugacy: on 10,000 samples this solver needs 1.4 to 2.3 times as many as in float64.
    SolverDeclaration(
        "cg",
        "conjugate gradients",
        _plain,
        memory=_memory,
        bench_turn=5,
        label="CG",
        paper={"precision": "double"},
    )
)
register_solver(
    SolverDeclaration(
        "pcg",
        "preconditioned conjugate gradients, with a Vecchia or low-rank factor",
        _preconditioned,
        options=(HALO, LEAF, RANK, LANDMARKS),
        needs=frozenset({Need.ROUNDS}),
        memory=_memory,
        bench_turn=2,
        resuming=_resuming,
    )
)
