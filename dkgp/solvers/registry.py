"""Solvers by the names that users type, each declared in the file that defines it.

A declaration states how a solver is built from its options, its memory and its requirements of the operator. Every
surface with a choice of solvers reads it here: the command line, the jobs service, the memory plan, the estimators, the
benchmarks and `dkgp warm-up`. The modules of `dkgp.solvers` are found by themselves, and so are those that installed
packages name under the entry point group "dkgp.solvers"; any other module counts from when it is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from dkgp.errors import UsageError
from dkgp.registry import Option, Registry
from dkgp.solvers.base import Solver

if TYPE_CHECKING:
    from dkgp.operators.product_error import ProductError

# The name that lets `dkgp.solvers.auto` choose a solver for the problem.
AUTO = "auto"
# Names of settings that all solvers share; no solver's own option may have one.
_GENERAL = (
    *("solver", "precision", "seed", "tolerance", "duality_gap", "max_passes", "max_seconds"),
    *("dataset", "hyper", "out", "folder", "tiles", "product_error"),
)


class Need(Enum):
    """A solver's demand beyond products with the matrix or some of its columns."""

    ENTRIES = "entries of the matrix itself, for which products that are approximate cannot stand in"
    INPUTS = "the inputs of all samples in the coordinator's memory"
    ROUNDS = "rounds of its own tasks on the workers: `dkgp.operators.BlockedKernelOperator`"
    FOLDER = "a folder for data that outgrow memory, which `build` takes as `folder`"


@dataclass(frozen=True)
class SolverMemory:
    """Memory that a solver takes besides alpha, g and y, its automatic choices made; `dkgp.models.memory` adds it up.

    - `memory`: directions of n p numbers that it remembers, each with its image.
    - `block_size`, `candidates`: variables of its dense subproblem, and candidates drawn for each.
    - `own_bytes`, `factor_bytes`: further memory at the coordinator, and in the workers.
    - `cached_bytes`: further data that workers keep within their caches; the rest lies on disk or is made again.
    - `repeats_products`: whether it takes products with the whole matrix in single precision again and again, so that
      workers may keep tiles of it.
    """

    memory: int = 1
    block_size: int = 0
    candidates: int = 0
    own_bytes: int = 0
    factor_bytes: int = 0
    cached_bytes: int = 0
    repeats_products: bool = False


@dataclass(frozen=True)
class SolverDeclaration:
    """One solver, as users choose it.

    - `name`, `help`: the name that users type, and a short description.
    - `build`: returns the solver; takes each of `options` by its name and, where it has parameters of these names,
      `precision` ("mixed" or "double"), `seed`, and the `folder` of `Need.FOLDER`, which may be None.
    - `options`: its own. Solvers that share one list the same `Option`; in a help, `name` in backticks is another
      option.
    - `ignores`: names of options of other solvers that may be set and mean nothing here.
    - `needs`: its requirements of the operator and the process.
    - `memory`: from the solver, resolved, n and the number of features to its memory.
    - `bench_turn`: its turn in `dkgp bench solvers`, the quicker the sooner; None for one that runs there only when
      named.
    - `label`, `paper`: its name in the GBCD paper, and the fields of the solver that differ there from the
      defaults here; None for one that is not among the paper's.
    - `compiles`: whether it has compiled code of its own, to be compiled beforehand by `dkgp warm-up`.
    - `resuming`: from settings that a checkpoint of any version holds to the values of `options` that resume
      it.
    """

    name: str
    help: str
    build: Callable[..., Solver]
    options: tuple[Option, ...] = ()
    ignores: tuple[str, ...] = ()
    needs: frozenset[Need] = frozenset()
    memory: Callable[[Any, int, int], SolverMemory] = field(default=lambda solver, n, d: SolverMemory())
    bench_turn: int | None = None
    label: str = ""
    paper: Mapping[str, Any] | None = None
    compiles: bool = False
    resuming: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=lambda settings: {})


class _Solvers(Registry[SolverDeclaration]):
    def add(self, declared: SolverDeclaration) -> SolverDeclaration:
        """Add a declaration whose options mean nothing else elsewhere."""
        if declared.name == AUTO:
            raise UsageError(f"'{AUTO}' means the solver that suits the problem; give the new solver another name")
        if not _is_own(declared):
            self.all()  # dkgp's own come first: a name that they have is not another's to take
        others = {option.name: (option, before.name) for before in self._found.values() for option in before.options}
        for option in declared.options:
            other, owner = others.get(option.name, (option, ""))
            if option.name in _GENERAL or option != other:
                meaning = f"as an option of {owner!r}" if owner else "for all solvers"
                raise UsageError(
                    f"the solver {declared.name!r} has an option '{option.name}', which means something else "
                    f"{meaning}; list the same `Option`, or rename it"
                )
        return super().add(declared)


# Rooms and modules of `dkgp.solvers` that declare no solver.
WITHOUT = ("auto", "basis_risk", "conjugate.probe", "greedy_basis", "linear_system", "losses", "pursuit", "risk")
_DECLARED = _Solvers("solver", "dkgp.solvers", "dkgp.solvers", WITHOUT)


def register_solver(declaration: SolverDeclaration) -> SolverDeclaration:
    """Make a solver known by its name; at the end of the module that defines it.

    Raises `UsageError`: its name, or an option's, means something else already.
    """
    return _DECLARED.add(declaration)


def _declarations() -> list[SolverDeclaration]:
    """All there are, by module: which one was imported first says nothing."""
    return sorted(_DECLARED.all().values(), key=lambda solver: (not _is_own(solver), solver.build.__module__))


def _is_own(declaration: SolverDeclaration) -> bool:
    return declaration.build.__module__.startswith(f"{__package__}.")


def solver_names() -> tuple[str, ...]:
    """Return the names of all solvers, dkgp's own first."""
    return tuple(solver.name for solver in _declarations())


def declaration_of(name: str) -> SolverDeclaration:
    """Return the declaration of a solver; `UsageError` lists those that there are."""
    return _DECLARED.find(name)


def own_options() -> dict[str, Option]:
    """Return the options of all solvers by name."""
    return {option.name: option for solver in _declarations() for option in solver.options}


def owners(option: str) -> tuple[str, ...]:
    """Return the solvers that have an option of this name."""
    return tuple(solver.name for solver in _declarations() if option in {known.name for known in solver.options})


def solvers_that_need(need: Need) -> tuple[str, ...]:
    """Return the names of the solvers that ask for something."""
    return tuple(solver.name for solver in _declarations() if need in solver.needs)


def products_conflict(error: ProductError, solver: str) -> str | None:
    """Return words on a bound of products beside a solver that takes none; None where there is no conflict."""
    # The bound would serve them for the gradient at the end alone.
    if error.number is None or solver not in solvers_that_need(Need.ENTRIES):
        return None
    return (
        f"`product_error` {error.number:g} is for solvers that work by kernel products; {solver} evaluates the entries "
        "themselves. Leave it out, or take `solver` gbcd or pcg, say"
    )


def said(names: Sequence[str]) -> str:
    """Say which solvers: "the solver gbcd", "the solvers gbcd, bcdc"."""
    return f"the solver{'s' if len(names) > 1 else ''} {', '.join(names)}"


def annotation(option: Option) -> Any:
    """Return the type that an option's values have in Python and JSON."""
    if option.choices:
        kind: Any = Literal[option.choices]
    elif isinstance(option.type, type):
        kind = option.type
    else:
        kind = get_type_hints(option.type)["return"]
    return kind | None if option.default is None else kind


def check_options(name: str, values: Mapping[str, Any]) -> None:
    """Refuse options that a solver, or "auto", does not have and that are not at their defaults; `UsageError`."""
    declared = None if name == AUTO else declaration_of(name)
    known = own_options()
    allowed = set() if declared is None else {option.name for option in declared.options}.union(declared.ignores)
    for option, value in values.items():
        if option not in known:
            near = get_close_matches(option, known, n=1)
            advice = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"no solver has an option '{option}'; {advice}")
        if option not in allowed and value != known[option].default:
            raise UsageError(f"`{option}` belongs to {said(owners(option))}; got `solver` {name}")


def build_solver(
    name: str,
    values: Mapping[str, Any] | None = None,
    *,
    precision: Literal["mixed", "double"] = "mixed",
    seed: int = 0,
    folder: str | None = None,
) -> Solver:
    """Return the solver of this name; its own options have their defaults where `values` has no other.

    Raises `UsageError`: there is no such solver, or it has no such option; `InputError`: a value out of range.
    """
    declared, options = declaration_of(name), values or {}
    check_options(name, options)
    arguments = {option.name: options.get(option.name, option.default) for option in declared.options}
    general = {"precision": precision, "seed": seed, "folder": folder}
    parameters = inspect.signature(declared.build).parameters
    return declared.build(**arguments, **{name: value for name, value in general.items() if name in parameters})


def resuming(settings: Mapping[str, Any]) -> str:
    """Say which options resume a checkpoint, as far as they are its solver's own: "`solver` pcg, `halo` 0"."""
    declared = _DECLARED.all().get(str(settings.get("solver")))
    if declared is None:
        return "the same solver and options"
    values = {"solver": declared.name, **declared.resuming(settings)}
    return ", ".join(f"`{name}` {value}" for name, value in values.items())


def needs_rounds(solver: Solver) -> bool:
    """Return True for a solver that runs tasks of its own, and so takes an operator by blocks alone."""
    declared = _DECLARED.all().get(solver.name)
    return declared is not None and Need.ROUNDS in declared.needs


def solver_memory(solver: Solver, n: int, d: int) -> SolverMemory:
    """Return the memory of a solver, its automatic choices made; of an undeclared one that of a direction."""
    declared = _DECLARED.all().get(solver.name)
    return SolverMemory() if declared is None else declared.memory(solver, n, d)
