"""Conjugate gradients on Kbar alpha = y, plain (the GBCD paper's CG) or preconditioned by a partial Cholesky factor.

Every iteration is one full product with the kernel matrix, shared by all targets, along directions that they share too
(`dkgp.solvers.conjugate.block`). The float32 product's drift is the driver's business: when it recomputes the gradient,
the search goes on from the directions it has, with exact steps for the true residual, so no conjugacy is thrown away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.registry import Option, whole_or_auto
from dkgp.solvers.base import Method
from dkgp.solvers.conjugate.block import BlockState, iterate
from dkgp.solvers.conjugate.preconditioner import (
    FactorPreconditioning,
    Growth,
    Landmarks,
    Preconditioner,
    Preconditioning,
)
from dkgp.solvers.method_run import opens_in_double
from dkgp.solvers.prices import Phase, Sizes
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver
from dkgp.solvers.stopping import Progress


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
        if not isinstance(self.preconditioner, FactorPreconditioning):
            return super().phases(sizes, count)
        return self.preconditioner.phases(sizes, count, checks=checks, spilled=spilled, kept=kept)

    def advance(self, operator: KernelOperator, state: ConjugateGradientState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        return self._iterate(operator, state)

    def renews_in_rounds(self, operator: KernelOperator) -> bool:
        """True but for products that are off by more than rounding: what bounds them is of a product with alpha."""
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
    "Samples that each leaf of pcg's factor is conditioned on; 0: a low-rank factor alone.",
    whole_or_auto,
    "auto",
    metavar="S|auto",
)
LEAF = Option(
    "leaf", "Samples of a leaf of pcg's factor; auto: half of `halo`.", whole_or_auto, "auto", metavar="G|auto"
)
RANK = Option("rank", "Of pcg's low-rank factor; 0: none, a halo alone.", whole_or_auto, "auto", metavar="R|auto")
LANDMARKS = Option(
    "landmarks",
    "How pcg draws the low-rank factor's samples: randomly pivoted Cholesky, or at random (Nystrom); or nodes of local "
    "polynomials in their place, for up to three features.",
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
    SolverDeclaration("cg", "conjugate gradients", _plain, memory=_memory, bench_turn=5, label="CG", paper={})
)
register_solver(
    SolverDeclaration(
        "pcg",
        "preconditioned by a Vecchia factor, or a low-rank one",
        _preconditioned,
        options=(HALO, LEAF, RANK, LANDMARKS),
        needs=frozenset({Need.ROUNDS}),
        memory=_memory,
        bench_turn=2,
        resuming=_resuming,
    )
)
