"""Settings, steps and result of a refinement of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dkgp.errors import InputError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.refinement.validation import HeldOutScore
from dkgp.solvers.conjugate.preconditioner import PartialCholesky

__all__ = ["RefineSettings", "RefineStep", "Refinement", "StepCallback"]


@dataclass(frozen=True)
class RefineSettings:
    """Settings of a refinement of hyperparameters.

    Attributes
    ----------
    steps : int
        Steps at most; each costs one solve with all right-hand sides.
    probes : int
        Random vectors for the trace: more, smaller errors, and longer solves.
    tolerance : float
        Relative residual of the solves.
    max_passes : float
        Products with the whole kernel matrix that one solve may take.
    rank : int, optional
        Of the preconditioner; by default 10 sqrt(n), or what `memory_bytes` allows.
    memory_bytes : int
        What the preconditioner may take, in all workers together.
    held_out : int
        Samples held out at most, a tenth of all where that is less; with 0 nothing is validated, and the refined values
        are kept.
    seed : int
        Of probes, landmarks and held-out samples.
    """

    steps: int = 15
    probes: int = 8
    tolerance: float = 0.01
    max_passes: float = 100.0
    rank: int | None = None
    memory_bytes: int = 1024**3
    held_out: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("number of steps", self.steps, 1),
            ("number of probes", self.probes, 2),
            ("preconditioner's rank", 1 if self.rank is None else self.rank, 1),
            ("memory in bytes", self.memory_bytes, 1),
            ("number of held-out samples", self.held_out, 0),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise InputError(f"the {name} of a refinement must be at least {least}; got {value}")
        for name, number in (("tolerance", self.tolerance), ("number of passes", self.max_passes)):
            if not (math.isfinite(number) and number > 0.0):
                raise InputError(f"the {name} of a refinement must be positive and finite; got {number!r}")
        if self.tolerance >= 1.0:
            raise InputError(f"the tolerance of a refinement is a relative residual, below 1; got {self.tolerance!r}")

    def preconditioner(self) -> PartialCholesky:
        """Settings of the preconditioner."""
        return PartialCholesky(self.rank or "auto", memory_bytes=self.memory_bytes, seed=self.seed)


@dataclass(frozen=True)
class RefineStep:
    """One evaluation of the gradient; number 0 is that at the start.

    Attributes
    ----------
    step, steps : int
        Its number, and how many there may be.
    accepted : bool
        Whether the search went on from here.
    gradient_norm, error_norm : float
        Of the gradient of the parameters that may move, on a logarithmic scale, in nats; and of its errors.
    significance : float
        Root mean square of the components in units of their errors.
    solver_share : float
        Largest share that the solver's error has in a component's.
    gain, gain_error : float
        By how much the log marginal likelihood has risen since the start, estimated from gradients, in nats.
    noise_variance : float
    values : dict
        Of all parameters, by name.
    gradient, error : dict
        By name.
    column_passes : float
        Of its solve.
    contractions : int
        Passes over the kernel's derivatives.
    relative_residual : float
    seconds : float
    """

    step: int
    steps: int
    accepted: bool
    gradient_norm: float
    error_norm: float
    significance: float
    solver_share: float
    gain: float
    gain_error: float
    noise_variance: float
    values: dict[str, float] = field(repr=False)
    gradient: dict[str, float] = field(repr=False)
    error: dict[str, float] = field(repr=False)
    column_passes: float = 0.0
    contractions: int = 0
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

    Attributes
    ----------
    hyperparameters : Hyperparameters
        The better ones: refined, or those to start from.
    kept : {"refined", "start"}
        Which of the two.
    reason : str
        Why the search stopped.
    verdict : str
        What became of it, in a sentence.
    history : list of RefineStep
    before, after : HeldOutScore or None
        Of the held-out samples, with the values to start from and the refined ones.
    settings : RefineSettings
    n_samples, n_held_out : int
    column_passes : float
        Of all solves, validation's included.
    contractions : int
    seconds : float
    interrupted : bool
    """

    hyperparameters: Hyperparameters
    kept: str
    reason: str
    verdict: str
    history: list[RefineStep]
    before: HeldOutScore | None
    after: HeldOutScore | None
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
