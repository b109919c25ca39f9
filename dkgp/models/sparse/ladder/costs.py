"""Costs of the next steps of a ladder: a rung, products with K, the exact model; by the prices that "auto" goes by.

Costs are core seconds of a nominal machine, computed from counts. Only their ratios decide, and these are the same on
every machine. Messages scale them by the time that the rungs so far took, over the time projected for them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.models.memory import Processes, plan_within
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import choose_solver_for
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.vif.foreseen import factors_phase, leaves_phase, search_phase
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.exact_sums import unit_count
from dkgp.solvers import Choice, Solver
from dkgp.solvers.auto import GREEDY_OVERHEAD
from dkgp.solvers.block_descent.block_size import automatic_block_size, descent_phases
from dkgp.solvers.cholesky.in_memory import cholesky_phases
from dkgp.solvers.conjugate.preconditioner import conjugate_phases
from dkgp.solvers.greedy_basis import GreedySettings
from dkgp.solvers.prices import Phase, Prices, Sizes, Work, core_seconds
from dkgp.solvers.registry import build_solver, solver_memory

# Passes over the entries of K_nm: whitening, what verifies the fit, and the certificate.
FIT_PASSES = 3
# Cubes of m that a fit and its certificate take at the coordinator: factors, the subset's own model, L's inverse.
COORDINATOR_CUBES = 4.0
# Of a draw of candidates, as for `GreedyBlockCoordinateDescent`.
DESCENT_CANDIDATES = 60
LARGEST_BUDGET = 1 << 62


def rung_seconds(n: int, d: int, size: int, before: int = 0, greedy: GreedySettings | None = None) -> float:
    """Choice, fit and certificate of `size` basis samples, of which a greedy choice has `before` already."""
    return core_seconds(rung_phases(n, size, before, greedy), Prices.nominal(d))


def rung_phases(n: int, size: int, before: int = 0, greedy: GreedySettings | None = None) -> list[Phase]:
    """The work of a rung; a greedy choice is the work of one more basis sample, times their number."""
    samples, m = float(n), float(size)
    phases = [
        Phase("fit", 1.0, Work(double_entries=FIT_PASSES * samples * m, double_operations=2.0 * samples * m**2)),
        Phase("algebra", 1.0, threaded=Work(double_operations=COORDINATOR_CUBES * m**3)),
    ]
    if greedy is not None:
        new, middle = m - before, (m + before) / 2.0
        looked_at = float(greedy.candidates if not greedy.exhaustive else n) + greedy.kept / greedy.per_round
        refitted = min(looked_at, float(greedy.screen)) if greedy.screen else looked_at
        rows = samples if greedy.score_rows is None else min(samples, float(greedy.score_rows))
        products = refitted if greedy.score == "refit" else 1.0
        scored = rows * looked_at if greedy.screen else samples * looked_at
        phases.append(
            Phase(
                "choice",
                new,
                Work(
                    double_entries=samples * middle / greedy.per_round + scored + samples * (refitted + 1.0),
                    double_operations=2.0 * samples * middle * products,
                ),
            )
        )
    return phases


def sparse_phases(settings: SparseSettings, n: int, d: int, p: int) -> list[Phase]:
    """The work of a model whose size is settled, in its order, with its messages; a sum's leaves are its tasks."""
    m = settings.basis_size
    greedy = settings.greedy() if settings.basis_name == "greedy" else None
    basis_bytes = 8.0 * m * (d + p)
    fit, algebra, *choices = rung_phases(n, m, greedy=greedy)
    phases = [
        replace(
            fit,
            rounds=FIT_PASSES,
            pieces=unit_count(n),
            sent_to_each=basis_bytes + 8.0 * m * m,
            returned=8.0 * m * m,
        ),
        algebra,
    ]
    if settings.sparse_method.neighbours:
        near = settings.near
        phases += [
            search_phase(near, n, d),
            leaves_phase(1.0, near, n, m),
            factors_phase("sums", 1.0, near, n, d, m, p),
        ]
    if greedy is not None:
        each, count = choices[0], greedy.per_round
        looked_at = count * greedy.candidates + greedy.kept
        choice = Phase(
            "choice",
            each.times / count,
            Work(**{name: count * value for name, value in asdict(each.shared).items()}),
            # Scores of many are taken first, then sums of those that were chosen.
            rounds=1 if count == 1 else 2,
            pieces=unit_count(n),
            sent_to_each=0.5 * basis_bytes + 8.0 * looked_at * d,
            returned=8.0 * looked_at * 0.5 * m,
        )
        phases.insert(0, choice)
    return phases


def product_seconds(n: int, d: int, p: int) -> float:
    """A product with all of K in float64."""
    return Prices.nominal(d).seconds(Sizes(n, d, p).whole(double=True))


def passes_seconds(n: int, d: int, p: int, choice: Choice, passes: float) -> float:
    """A bound by `passes` products or column passes of the chosen solver; by Cholesky it is the whole factorisation."""
    sizes, prices = Sizes(n, d, p, choice.precision == "double"), Prices.nominal(d)
    if choice.solver == "pcg":
        return core_seconds(_conjugate(sizes, choice, passes), prices)
    if choice.solver == "cholesky":
        return core_seconds(cholesky_phases(sizes), prices)
    block = automatic_block_size(n, d, DESCENT_CANDIDATES)
    return GREEDY_OVERHEAD * core_seconds(descent_phases(sizes, block, DESCENT_CANDIDATES, passes), prices)


def _conjugate(sizes: Sizes, choice: Choice, products: float) -> list[Phase]:
    halo, rank = choice.halo or 0, choice.rank or 0
    return conjugate_phases(sizes, products, halo=halo, leaf=(choice.leaf or 0) if halo else 0, rank=rank)


@dataclass(frozen=True)
class ExactModel:
    """The exact model of the same problem: what it would cost."""

    choice: Choice  # what "auto" would solve it by
    core_seconds: float  # nominal
    memory_bytes: int  # projected peak of the coordinator's process, beside what it holds already

    @classmethod
    def of(
        cls,
        problem: Problem,
        executor: BlockExecutor,
        *,
        memory_bytes: int | None,
        cache_bytes: int,
    ) -> ExactModel:
        """Look at the problem in small, as training with "auto" does."""
        dataset, kernel = problem.dataset, problem.kernel
        n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
        # Known noise of the data set counts, and multiples of s2 do not: these are figures of a plan.
        probed = Problem(dataset, kernel, Noise(problem.noise.common).beside(dataset))
        choice = choose_solver_for(probed, memory_bytes=memory_bytes)
        seconds = choice.projected.get(choice.solver)
        if seconds is None:  # few samples: none but the matrix' factor was looked at
            seconds = core_seconds(cholesky_phases(Sizes(n, d, p)), Prices.nominal(d))
        width = feature_width(kernel)
        solver: Solver = build_solver(choice.solver, choice.options, precision=choice.precision).resolved(n, d)
        plan = plan_within(
            LARGEST_BUDGET,
            n,
            d,
            p,
            solver_memory(solver, n, width),
            Processes(0, executor.shares_memory, executor.overlaps, cache_bytes),
            width=width,
        )
        return cls(choice, seconds, plan.coordinator_bytes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "solver": self.choice.solver,
            "reason": self.choice.reason,
            "core_seconds": self.core_seconds,
            "memory_bytes": self.memory_bytes,
        }
