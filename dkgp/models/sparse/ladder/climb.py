"""A ladder of bases: m, 2 m, 4 m, ... until the target is proven, or something says that it is not worth while.

Cost is geometric: the last rung takes most of it. What is proven of a rung is R of its mean less a bound on min R from
below, and both may be what is in the way. A larger basis lowers R. Products with all of K raise the bound, which is the
same for all rungs, and so is kept: one with the rung's own residual where that is expected to be near the solution, or
else some by the solver that "auto" would take for the exact model. Each time the step is
taken that promises most for its price: of growing, that R goes on falling as it did; of products, what all further
growing would not account for, and later a fifth of what the last ones gained. Prices are nominal, and made of counts
(`costs`): a seeded run takes the same steps everywhere.

A ladder ends without its target where the next step would take longer than the exact model, or where the target, from
how the last rungs fell, lies so far up that the climb would; where a rung does not fit the memory; at the size that a
user allows, at n, or where no sample is left that adds anything. Bases are nested where they can be: a greedy choice
goes on from the last one, uniform and pivoted ones begin anew and start alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.options import ClusterOptions
from dkgp.data.types import Progress
from dkgp.errors import InputError
from dkgp.models.context import RunContext
from dkgp.models.sparse.ladder.costs import ExactModel
from dkgp.models.sparse.ladder.plan import LadderPlan
from dkgp.models.sparse.ladder.state import Ladder
from dkgp.models.sparse.ladder.target import LadderTarget, Rung
from dkgp.models.sparse.problem import SparseProblem, TrainedSparse
from dkgp.models.sparse.settings import SparseSettings
from dkgp.operators.block_tasks import feature_width
from dkgp.solvers.driver import Loop


def climb(
    problem: SparseProblem,
    context: RunContext | BlockExecutor,
    settings: SparseSettings,
    target: LadderTarget,
    *,
    rung_callback: Callable[[Rung], None] | None = None,
    memory_bytes: int | None = None,
    cache_bytes: int = ClusterOptions.cache_bytes,
) -> TrainedSparse:
    """Train sparse models of growing bases until the target is proven; return the last, all rungs in its summary.

    Checkpoints are saved between rungs, between steps that raise the bound, and within a greedy choice. A ladder that
    is resumed ends in the same bits. Of the settings `basis_size` is not looked at, and the gap is the target's;
    `per_round` is by default that of each rung's size; `certify_passes`, where it is positive, is all that may be
    spent on bounds. `rung_callback` is called after every rung. `memory_bytes` is what the coordinator's process may
    still take: no rung is begun that is projected to need more; `cache_bytes` is the budget of a worker's feature
    cache.

    Raises `InputError`, `NumericalError`, `InterruptedRunError`: see `train_sparse`; `MemoryBudgetError`: not even the
    first rung fits.
    """
    settings.refuse_target()
    if settings.gap is not None:
        raise InputError("the `gap` of a basis that grows by itself is its target's; it was given twice")
    dataset, kernel, run = problem.dataset, problem.kernel, problem.context(context)
    loop = Loop(run, LadderPlan.identity(settings, target))

    def within(progress: Progress) -> None:
        loop.heed_within(progress)
        if run.within is not None:
            run.within(progress)

    with problem.operator(run) as operator, operator.watched(within):
        exact = ExactModel.of(problem, run.executor, memory_bytes=memory_bytes, cache_bytes=cache_bytes)
        n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets

        def needed(size: int) -> int:
            rung = plan.settings_of(size)
            return rung.memory(n, d, p, run.executor, cache_bytes, feature_width(kernel)).coordinator_bytes

        plan = LadderPlan(n, d, p, settings, target, exact, needed, memory_bytes)
        ladder = Ladder(problem, operator, plan, within, rung_callback)
        with closing(ladder):
            return ladder.trained(loop.run(ladder))
