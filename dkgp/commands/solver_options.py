"""Conversion of a command's options to a solver and a stopping rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from dkgp.commands.job_options import MAX_PASSES, MAX_SECONDS
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError, UsageError
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.options import SEED
from dkgp.registry import FURTHER, Group, Option
from dkgp.solvers import DualityGap, GradientInfNorm, MaxPasses, MaxSeconds, Solver, StoppingRule
from dkgp.solvers.registry import (
    AUTO,
    Need,
    annotation,
    build_solver,
    check_options,
    declaration_of,
    own_options,
    owners,
    products_conflict,
    said,
    solver_names,
    solvers_that_need,
)

if TYPE_CHECKING:
    from dkgp.models import Hyperparameters
    from dkgp.models.problem import Problem
    from dkgp.solvers import Choice
    from dkgp.solvers.conjugate.probe import Probe

GREEDY = "gbcd"


def _solvers() -> dict[str, Any]:
    helps = {AUTO: "the solver with the shortest forecast time for this problem"}
    helps |= {name: declaration_of(name).help for name in solver_names()}
    return {"choices": tuple(helps), "help": "; ".join(f"{name}: {text}" for name, text in helps.items()) + "."}


SOLVER = Option(late=_solvers)
PRECISION = Option(
    help="Floating-point precision of the solve. mixed: kernel entries in float32, vectors in float64, and the last "
    "rounds in float64; double: float64 throughout.",
    group=FURTHER,
)
TOLERANCE = Option(
    help="Tolerance: the run has converged when the largest residual of the n equations, computed in float64, is at "
    "most this.",
    spellings=("--tol",),
    above=0,
)
DUALITY_GAP = Option(
    help="Second stopping rule: the run has also converged when the regularised risk is proven to be within this "
    "relative distance of its minimum.",
    metavar="SHARE",
    above=0,
    group=FURTHER,
)


def _of_solvers() -> dict[str, Option]:
    """Return the options that solvers declare; solvers of one kind share a heading."""
    kinds: dict[str, dict[str, None]] = {}
    for name in own_options():
        kinds.setdefault(owners(name)[0], {}).update(dict.fromkeys(owners(name)))
    return {
        name: replace(option, group=option.group or Group(f"Options of {said(tuple(kinds[owners(name)[0]]))}"))
        for name, option in own_options().items()
    }


@dataclass(frozen=True, init=False)
class SolverOptions:
    """A solver, the settings of all solvers, and the options that the solver declares, as on the command line.

    Options that solvers declare are also keywords and attributes:
    `SolverOptions("gbcd", block_size=500).block_size`.

    With options that only some solvers have, the solver "auto" is the first of these solvers. `own` contains the
    declared options that differ from their defaults, as pairs of name and value.
    """

    solver: Annotated[str, SOLVER] = AUTO
    precision: Annotated[Literal["mixed", "double"], PRECISION] = "mixed"
    tolerance: Annotated[float, TOLERANCE] = 1e-4
    duality_gap: Annotated[float | None, DUALITY_GAP] = None
    max_passes: Annotated[float | None, MAX_PASSES] = None
    max_seconds: Annotated[float | None, MAX_SECONDS] = None
    seed: Annotated[int, SEED] = 0
    own: tuple[tuple[str, Any], ...] = ()

    def __init__(
        self,
        solver: str = AUTO,
        *,
        precision: Literal["mixed", "double"] = "mixed",
        seed: int = 0,
        tolerance: float = 1e-4,
        max_passes: float | None = None,
        max_seconds: float | None = None,
        duality_gap: float | None = None,
        own: Iterable[tuple[str, Any]] = (),
        **declared: Any,
    ) -> None:
        defaults = {name: option.default for name, option in own_options().items()}
        values_by_name = {**dict(own), **declared}
        changed = sorted((name, value) for name, value in values_by_name.items() if value != defaults.get(name, ...))
        if solver == AUTO and changed:
            solver = _owner({name for name, _ in changed})
        limits = {"max_passes": max_passes, "max_seconds": max_seconds, "duality_gap": duality_gap}
        values = {"solver": solver, "precision": precision, "seed": seed, "tolerance": tolerance, **limits}
        for name, value in {**values, "own": tuple(changed)}.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Return the value of an option that a solver declares."""
        if not name.startswith("_") and name not in self.__dataclass_fields__:
            option = own_options().get(name)
            if option is not None:
                return dict(self.own).get(name, option.default)
        raise AttributeError(f"no solver has an option '{name}'")

    @classmethod
    def option_types(cls) -> dict[str, tuple[Any, Any]]:
        """Return the type and the default of every option, by name."""
        hints, plain = get_type_hints(cls), cls()
        general = {name: (hints[name], getattr(plain, name)) for name in plain._general()}
        general["solver"] = (Literal[(AUTO, *solver_names())], plain.solver)
        return general | {name: (annotation(option), option.default) for name, option in own_options().items()}

    @classmethod
    def more_options(cls) -> dict[str, Option]:
        """Return the options that solvers declare."""
        return _of_solvers()

    def _general(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "own"}

    def to_json(self) -> dict[str, Any]:
        """Return keywords, in plain JSON types, that rebuild these options; they include the solver's defaults."""
        declared = () if self.solver == AUTO else declaration_of(self.solver).options
        return {**self._general(), **{option.name: option.default for option in declared}, **dict(self.own)}

    def changed(self, **values: Any) -> SolverOptions:
        """Return these options with some changed."""
        return SolverOptions(**{**self._general(), "own": self.own, **values})

    def decided(
        self,
        dataset: Any,
        hyperparameters: Hyperparameters,
        *,
        problem: Problem | None = None,
        product_error: ProductError = EVERY_ENTRY,
        memory_bytes: int | None = None,
        one_arithmetic: bool = True,
        probe: Probe | None = None,
    ) -> tuple[SolverOptions, Choice | None]:
        """Return the options with "auto" replaced by a solver, and the reason; other solvers stay unchanged.

        Parameters
        ----------
        problem : Problem, optional
            The problem to solve; by default that of the hyperparameters, with a centred mean.
        product_error : ProductError
            Allowed error of products.
        memory_bytes : int, optional
            Memory limit of the run.
        one_arithmetic : bool
            Whether all workers produce identical bits.
        probe : Probe, optional
            Probe of the problem with this tolerance and seed.
        """
        if self.solver != AUTO:
            return self, None
        self.check()
        self.stopping()
        from dkgp.data import Dataset
        from dkgp.models.noise import Noise
        from dkgp.models.problem import Problem
        from dkgp.models.solver_choice import choose_solver_for

        if problem is None:
            known = isinstance(dataset, Dataset)
            noise = hyperparameters.noise_of(dataset) if known else Noise(hyperparameters.noise_variance)
            problem = Problem(dataset, hyperparameters.kernel, noise)
        choice = choose_solver_for(
            problem,
            tolerance=self.tolerance,
            double=self.precision == "double",
            product_error=product_error,
            memory_bytes=memory_bytes,
            one_arithmetic=one_arithmetic,
            seed=self.seed,
            probe=probe,
        )
        precision = choice.precision if self.precision == "mixed" else self.precision
        return self.changed(solver=choice.solver, precision=precision, **choice.options), choice

    def build(self, n: int, d: int, p: int, reporter: Reporter, folder: str | None = None) -> Solver:
        """Return the solver with its automatic settings resolved; warn of sizes that exceed the number of samples.

        `folder` is the folder for data that exceed the memory, for solvers that need one. The default is a temporary
        folder.

        Raises `InputError`, `UsageError`: settings are out of range or do not belong to the selected solver.
        """
        self.check()
        declared = dict(self.own)
        solver = build_solver(self.solver, declared, precision=self.precision, seed=self.seed, folder=folder)
        resolved = solver.resolved(n, d, p)
        settled = resolved.settings()
        for name, value in declared.items():
            if isinstance(value, int) and value > n and settled.get(name) == n:
                what = name.replace("_", " ")
                reporter.warn(f"the {what} {value:,} exceeds the {n:,} samples; it is reduced to {n:,}")
        return resolved

    def stopping(self) -> StoppingRule:
        """Return the stopping rule; `InputError` for a limit that is not positive."""
        rule: StoppingRule = GradientInfNorm(self.tolerance)
        if self.duality_gap is not None:
            rule |= DualityGap(self.duality_gap)
        if self.max_passes is not None:
            rule |= MaxPasses(self.max_passes)
        if self.max_seconds is not None:
            rule |= MaxSeconds(self.max_seconds)
        return rule

    def is_met(self, summary: Mapping[str, Any]) -> bool:
        """Return True if a converged model with this training record also satisfies these options."""
        gap = summary.get("duality_gap")
        return summary["gradient_inf_norm"] <= self.tolerance or (
            self.duality_gap is not None and gap is not None and gap <= self.duality_gap
        )

    def needs(self, need: Need) -> bool:
        """Return True if the solver has the given requirement."""
        return self.solver in solvers_that_need(need)

    def check(self) -> None:
        """Refuse settings that the solver does not have; `UsageError` or `InputError`."""
        if self.seed < 0:
            raise InputError(f"the seed must not be negative; got {self.seed}")
        check_options(self.solver, dict(self.own))


def _owner(options: set[str]) -> str:
    """Return the first solver with all these options, greedy block descent first; "auto" if there is none."""
    common = set.intersection(*({*owners(name)} for name in options)) if options <= own_options().keys() else set()
    return next((name for name in (GREEDY, *solver_names()) if name in common), AUTO)


def check_product_error(error: ProductError, tolerance: float, solver: str) -> None:
    """Refuse a bound that contradicts the tolerance or the named solver; `UsageError`."""
    if (conflict := error.conflict(tolerance) or products_conflict(error, solver)) is not None:
        raise UsageError(conflict)


def check_decisions(error: ProductError, limit: float | None, tolerance: float) -> None:
    """Refuse a bound that is too large for decisions within a tolerance; `UsageError`."""
    if (conflict := error.decision_conflict(limit, tolerance)) is not None:
        raise UsageError(conflict)
