"""Settings, steps and result of a refinement of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.refinement.validation import HeldOutScore
from dkgp.models.solver_choice import factor_for
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning

__all__ = ["RefineSettings", "RefineStep", "Refinement", "StepCallback"]


@dataclass(frozen=True)
class RefineSettings:
    """Settings of a refinement of hyperparameters.

    Held out is a tenth of all samples where that is less; with none held out nothing is validated, and the refined
    values are kept.
    """

    steps: int = 15  # at most; each costs one solve with all right-hand sides
    probes: int = 8  # random vectors for the trace: more, smaller errors, and longer solves
    tolerance: float = 0.01  # relative residual of the solves
    max_passes: float = 100.0  # products with the whole kernel matrix that one solve may take
    # Of the preconditioner, see `FactorPreconditioning`: samples that a leaf is conditioned on, 0 for a low-rank factor
    # alone, and the rank of that; where neither is named, chosen by a look at the problem within `memory_bytes`.
    halo: int | None = None
    rank: int | None = None
    memory_bytes: int = 1024**3  # what the preconditioner may take, in all workers together
    held_out: int = 500  # samples held out at most
    seed: int = 0  # of probes, landmarks and held-out samples

    def __post_init__(self) -> None:
        for name, value, least in (
            ("number of steps", self.steps, 1),
            ("number of probes", self.probes, 2),
            ("preconditioner's halo", self.halo or 0, 0),
            ("preconditioner's rank", self.rank or 0, 0),
            ("memory in bytes", self.memory_bytes, 1),
            ("number of held-out samples", self.held_out, 0),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise InputError(f"the {name} of a refinement must be at least {least}; got {value}")
        for name, number in (("tolerance", self.tolerance), ("number of passes", self.max_passes)):
            if not (math.isfinite(number) and number > 0.0):
                raise InputError(f"the {name} of a refinement must be positive and finite; got {number!r}")
        self.preconditioner()
        if self.tolerance >= 1.0:
            raise InputError(f"the tolerance of a refinement is a relative residual, below 1; got {self.tolerance!r}")

    def decided(self, dataset: Dataset, start: Hyperparameters) -> RefineSettings:
        """Return the settings with halo and rank chosen for the values to start from, where neither is named."""
        if self.halo is not None or self.rank is not None:
            return self
        t = dataset.n_targets + self.probes
        found = factor_for(
            dataset,
            start.kernel,
            start.noise_variance,
            t,
            tolerance=self.tolerance,
            memory_bytes=self.memory_bytes,
            seed=self.seed,
        )
        made = found.resolved(dataset.n_samples, dataset.n_features, t)
        return replace(self, halo=int(made.halo), rank=int(made.rank))

    def preconditioner(self) -> FactorPreconditioning:
        """Settings of the solves' preconditioner."""
        return FactorPreconditioning(
            "auto" if self.halo is None else self.halo,
            rank="auto" if self.rank is None else self.rank,
            memory_bytes=self.memory_bytes,
            seed=self.seed,
        )

    def landmarks(self) -> FactorPreconditioning:
        """Settings of the landmarks that held-out samples' variances are bounded with."""
        return FactorPreconditioning(0, memory_bytes=self.memory_bytes, seed=self.seed)


@dataclass(frozen=True)
class RefineStep:
    """One evaluation of the gradient; number 0 is that at the start.

    Dictionaries are by the name of a parameter; the log likelihood's gain is since the start, estimated from gradients.
    """

    step: int
    steps: int  # how many there may be
    accepted: bool  # whether the search went on from here
    gradient_norm: float  # of the parameters that may move, on a logarithmic scale, in nats
    error_norm: float  # of the gradient's errors
    significance: float  # root mean square of the components in units of their errors
    solver_share: float  # largest share that the solver's error has in a component's
    gain: float
    gain_error: float
    noise_variance: float
    values: dict[str, float] = field(repr=False)
    gradient: dict[str, float] = field(repr=False)
    error: dict[str, float] = field(repr=False)
    column_passes: float = 0.0
    contractions: int = 0  # passes over the kernel's derivatives
    relative_residual: float = math.nan
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        """One line for people."""
        taken = "" if self.accepted else ", taken back"
        return (
            f"refine step {self.step} of {self.steps}: |gradient| {self.gradient_norm:.3g}, its error "
            f"{self.error_norm:.2g}, s2 {self.noise_variance:.4g}, log likelihood {self.gain:+.1f} (error "
            f"{self.gain_error:.2g}), {self.column_passes:.0f} passes, {self.seconds:.1f} s{taken}"
        )


StepCallback: TypeAlias = Callable[[RefineStep], None]


@dataclass(frozen=True)
class Refinement:
    """The result of a refinement.

    Column passes are those of all solves, validation's included.
    """

    hyperparameters: Hyperparameters  # the better ones: refined, or those to start from
    kept: str  # which of the two: "refined" or "start"
    reason: str  # why the search stopped
    verdict: str  # what became of it, in a sentence
    history: list[RefineStep]
    before: HeldOutScore | None  # of the held-out samples, with the values to start from
    after: HeldOutScore | None  # and with the refined ones
    settings: RefineSettings
    n_samples: int
    n_held_out: int
    column_passes: float
    contractions: int
    seconds: float
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, without the hyperparameters."""
        parts = {
            "history": [step.to_json() for step in self.history],
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "settings": dict(self.settings.__dict__),
        }
        return {**{name: value for name, value in self.__dict__.items() if name != "hyperparameters"}, **parts}
