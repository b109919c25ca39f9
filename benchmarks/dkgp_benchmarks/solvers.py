"""`dkgp bench solvers`: every solver on data sets that a user has, and how near `--solver auto` comes to the best."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dkgp.bench.problem import FRIEDMAN1
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.measurements import (
    ENTRIES,
    Column,
    check_record_file,
    median,
    report,
    with_null,
    write_record,
)
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.errors import InputError, MemoryBudgetError, UsageError
from dkgp.solvers import Choice
from dkgp.solvers.auto import CHOICES
from dkgp.solvers.registry import AUTO, declaration_of, own_options, solver_names
from dkgp_benchmarks.library import Library, PreparedData, prepare_data
from dkgp_benchmarks.papers.runs import Contender, Workbench

# Problems of all kinds: sizes, features from 2 to 256, noise, kernels, several targets.
FIFTEEN = (
    "kin40k,n=30000",
    "kin40k,n=30000,noise=1e-4",
    "kin40k,n=10000",
    "kin40k,n=10000,kernel=matern32",
    "dem_bigtujunga,n=30000",
    "dem_bigtujunga,n=15000,kernel=matern12",
    "california,n=20000",
    "california,n=8000,noise=1e-3",
    "friedman1,n=30000",
    "friedman1,n=10000,noise=1e-3",
    "pumadyn32nm,n=8000",
    "sarcos_test4449,n=4449",
    "sarcos_test4449:Y7,n=4449",
    "abalone,n=4177",
    "usps,n=7000",
)
CUT_OFF = 4.0
LEAST_SECONDS = 2.0

COLUMNS = (
    Column("data", "data set", text=True),
    Column("n", "n", ",d"),
    Column("solver", "solver", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("to_best", "time / best", ".2f"),
    Column("processor_seconds", "processor s", ".2f"),
    Column("processor_to_best", "processor time / best", ".2f"),
    Column("column_passes", "passes", ".1f"),
    ENTRIES,
    Column("note", "", text=True),
)


def rivals() -> tuple[str, ...]:
    """Name the solvers that run by default, the quick ones first: who takes a few times the best's time is cut off."""
    turns = {name: declaration_of(name).bench_turn for name in solver_names()}
    return tuple(sorted((name for name in turns if turns[name] is not None), key=lambda name: turns[name] or 0))


@dataclass(frozen=True)
class ProblemSpec:
    """A data set, and what is not as it comes.

    Attributes
    ----------
    name : str
        Of the data set, target included.
    n : int or None
        Training samples.
    noise : float or None
        Noise variance in place of the tuned one.
    kernel : str or None
        Expression that is tuned in place of a squared exponential.
    """

    name: str
    n: int | None = None
    noise: float | None = None
    kernel: str | None = None

    @classmethod
    def read(cls, text: str, library: Library) -> ProblemSpec:
        """Read "NAME,n=...,noise=...,kernel=..."; `UsageError` where there is no such data set, or no such setting."""
        name, *settings = text.split(",")
        given: dict[str, Any] = {}
        for key, value in _pairs(text, settings, ("n", "noise", "kernel")):
            try:
                given[key] = {"n": int, "noise": float, "kernel": str}[key](value)
            except ValueError:
                raise UsageError(f"'{text}': {key} is a number; got {value!r}") from None
        if not (given.get("n", 2) >= 2 and given.get("noise", 1.0) > 0.0):
            raise UsageError(f"'{text}': n is at least 2, and noise is positive")
        return cls(library.resolve(name), **given)

    @property
    def label(self) -> str:
        """Its name in tables."""
        noise = "" if self.noise is None else f", s2 = {self.noise:g}"
        return f"{self.name}{noise}{'' if self.kernel is None else f', {self.kernel}'}"


def rival_options(options: SolverOptions, text: str) -> SolverOptions:
    """Return options of the solver that "NAME,option=value,..." names; `UsageError` where it has no such option."""
    name, *settings = text.split(",")
    known = own_options()
    values: dict[str, Any] = {}
    for key, value in _pairs(text, settings, tuple(known)):
        try:
            values[key] = known[key].type(value)
        except ValueError as error:
            raise UsageError(f"'{text}': {error}") from None
    return options.changed(solver=name, **values)


def _pairs(text: str, settings: Sequence[str], known: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in known:
            raise UsageError(
                f"'{text}': expected settings as in {known[0]}=..., of {', '.join(known)}; got '{setting}'"
            )
        pairs.append((key, value))
    return pairs


@dataclass(frozen=True)
class BenchSolversJob:
    """A comparison of `auto` with other solvers, over data sets and sizes.

    Attributes
    ----------
    data
        Folder of .npz files; without it Friedman1 alone is there.
    problems
        Data sets, each with settings of its own if need be: "kin40k,n=30000,noise=1e-4,kernel=matern32"; Friedman1
        where none is named.
    sizes
        Training samples of problems without `n`; a data set that has fewer runs with all it has.
    solvers
        Rivals of `auto`, with options of their own if need be: "pcg,halo=0".
    cholesky_samples
        A matrix of more samples is not factored for comparison.
    repeats
        Of everything, in turns; medians count.
    null
        Whether the best of each repeat runs once more, for the noise of the ratios.
    subset, seed
        To tune on, and of all draws.
    solver
        Tolerance and limits.
    """

    data: str | None = None
    problems: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (2_000, 10_000)
    solvers: tuple[str, ...] = field(default_factory=rivals)
    cholesky_samples: int = 12_000
    repeats: int = 1
    null: bool = False
    subset: int = 2000
    seed: int = 0
    solver: SolverOptions = field(default_factory=SolverOptions)
    out: str | None = None

    def check(self) -> None:
        """Refuse, before any work, what makes no sense."""
        for name, value, least in (
            ("--sizes", min(self.sizes, default=0), 2),
            ("--repeats", self.repeats, 1),
            ("--subset", self.subset, 2),
        ):
            if value < least:
                raise InputError(f"{name} must be at least {least}; got {value}")
        if AUTO in self.solvers or not self.solvers:
            raise InputError("name at least one solver that 'auto' is compared with, other than itself")
        for name in self.solvers:
            rival_options(self.solver, name).check()
        self.solver.stopping()


def run_bench_solvers(job: BenchSolversJob, reporter: Reporter) -> Document:
    """Measure; the document has a row for each data set, size and solver.

    Raises
    ------
    UsageError, InputError
        A data set that is not here, or settings out of range; before anything is computed.
    """
    job.check()
    check_record_file(job.out)
    library = Library.of(job.data)
    problems = tuple(dict.fromkeys(ProblemSpec.read(text, library) for text in job.problems or (FRIEDMAN1,)))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as folder:
        for number, problem in enumerate(problems):
            sizes = job.sizes if problem.n is None else (problem.n,)
            inside = Path(folder) / str(number)
            inside.mkdir()
            largest = prepare_data(
                library, problem.name, max(sizes), 500, job.subset, job.seed, inside, reporter, kernel=problem.kernel
            )
            if problem.noise is not None:
                largest = replace(largest, found=replace(largest.found, noise_variance=problem.noise))
            for n in sorted({min(size, largest.n) for size in sizes}):
                # The first samples of the draw, as a smaller problem would have them.
                data = replace(largest, inputs=largest.inputs[:n], targets=largest.targets[:n])
                rows += _rows(job, problem, data, reporter)
    automatic = [row for row in rows if row["solver"] == AUTO]
    ratios = [row["to_best"] for row in automatic]
    document = report(
        "solvers",
        f"Solvers, to a largest residual of {job.solver.tolerance:g}, and the choice of auto; medians of {job.repeats}",
        COLUMNS,
        rows,
        {
            "auto_over_best_largest": max(ratios),
            "auto_over_best_median": median(ratios),
            "auto_over_least_processor_largest": max(row["processor_to_best"] for row in automatic),
            "auto_over_least_processor_median": median([row["processor_to_best"] for row in automatic]),
        },
        asked={**asdict(job), "solver": job.solver.to_json()},
    )
    document["warnings"] = list(reporter.warnings)
    return write_record(document, job.out)


@dataclass
class _Taken:
    """Figures of a solver on one problem, repeat by repeat; one that was refused or cut off is not tried again."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    column_passes: float = float("nan")
    entries: float = float("nan")
    note: str = ""
    gave_up: bool = False


def _rows(job: BenchSolversJob, problem: ProblemSpec, data: PreparedData, reporter: Reporter) -> list[dict[str, Any]]:
    """All solvers on one problem, the best first, `auto` last."""
    all_taken = {name: _Taken() for name in (*job.solvers, AUTO)}
    if data.n > job.cholesky_samples and "cholesky" in all_taken:
        all_taken["cholesky"] = _Taken(note=f"left out beyond {job.cholesky_samples:,} samples", gave_up=True)
    choice: Choice | None = None
    bests: list[tuple[float, float]] = []  # seconds of the best of each repeat, and of its second turn
    with open_executor(ClusterOptions(kind="none"), data.n, reporter) as executor:
        bench = Workbench(data, executor, reporter)
        _warm_up(job.solvers, bench)
        for _ in range(job.repeats):
            best, best_name = float("inf"), ""
            for name, taken in all_taken.items():
                if taken.gave_up:
                    continue
                began, own = time.perf_counter(), time.process_time()
                options = rival_options(job.solver, name).changed(seed=job.seed)
                if name == AUTO:
                    options, choice = options.decided(data, data.found)
                elif best < float("inf") and job.solver.max_seconds is None:
                    options = options.changed(max_seconds=max(LEAST_SECONDS, CUT_OFF * best))
                try:
                    run = bench.solve(Contender(name, name, options))
                except MemoryBudgetError as error:
                    taken.gave_up, taken.note = True, f"refused: {error}"
                    continue
                taken.seconds.append(time.perf_counter() - began)
                taken.processor_seconds.append(time.process_time() - own)
                if run.last is not None and run.entries is not None:
                    taken.column_passes, taken.entries = run.last.column_passes, run.entries
                if not run.converged:
                    taken.gave_up, taken.note = True, f"cut off: {run.reason}"
                elif taken.seconds[-1] < best and name != AUTO:
                    best, best_name = taken.seconds[-1], name
            if job.null and best_name:
                began = time.perf_counter()
                options = rival_options(job.solver, best_name).changed(seed=job.seed)
                bench.solve(Contender(best_name, best_name, options))
                bests.append((best, time.perf_counter() - began))
    assert choice is not None
    all_taken[AUTO].note = f"{choice.solver}: {choice.reason}"
    typical = {name: median(taken.seconds) for name, taken in all_taken.items() if taken.seconds}
    best = min(
        (typical[name] for name, taken in all_taken.items() if name != AUTO and not taken.gave_up),
        default=typical[AUTO],
    )
    processor = {name: median(all_taken[name].processor_seconds) for name in typical}
    least = min(
        (processor[name] for name in typical if name != AUTO and not all_taken[name].gave_up),
        default=processor[AUTO],
    )
    order = sorted(typical, key=lambda name: (name == AUTO, all_taken[name].gave_up, typical[name]))
    rows: list[dict[str, Any]] = [
        {
            "solver": name,
            "seconds": typical[name],
            "to_best": _ratio(typical[name], best, bests),
            "processor_seconds": processor[name],
            "processor_to_best": processor[name] / least,
            "column_passes": all_taken[name].column_passes,
            "entries": all_taken[name].entries,
            "converged": not all_taken[name].gave_up,
            "note": all_taken[name].note,
        }
        for name in order
    ]
    refused = [{"solver": name, "note": taken.note} for name, taken in all_taken.items() if not taken.seconds]
    return [{"data": problem.label, "n": data.n, **row} for row in (*rows[:-1], *refused, *rows[-1:])]


def _ratio(seconds: float, best: float, bests: Sequence[tuple[float, float]]) -> float:
    found = seconds / best
    return with_null(found, [again for _, again in bests], [first for first, _ in bests]) if bests else found


def _warm_up(solvers: Sequence[str], bench: Workbench) -> None:
    """Load compiled code before any clock starts, that of auto's look and of what it may pick included."""
    SolverOptions().decided(bench.data, bench.data.found)
    for name in dict.fromkeys((*solvers, *CHOICES)):
        bench.warm_up(Contender(name, name, rival_options(SolverOptions(), name)))
