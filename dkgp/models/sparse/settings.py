"""Settings of a sparse model, with their flags and helps, and the memory that a fit takes: refused with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.models.memory import MATRICES, Memory, Part
from dkgp.models.sparse.bases import BLIND_BASES
from dkgp.models.sparse.model import METHODS, SparseMethod, method_named
from dkgp.models.sparse.vif import HALO, LEAF, SEARCHED, Neighbours, vif_bytes
from dkgp.operators.cross.tasks import cross_bytes, slab_bytes
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import FURTHER, Group, Option
from dkgp.solvers.greedy_basis import CANDIDATES, CANDIDATES_AT_ONCE, GreedySettings

# m x m matrices that are there at once while a fit is certified: L, C, C C', a fit with more noise, and while L's
# inverse is judged, that, its absolute value and two pieces.
COORDINATOR_MATRICES = 8


def plan_sparse(
    n: int,
    d: int,
    m: int,
    p: int,
    executor: BlockExecutor,
    cache_bytes: int,
    *,
    width: int | None = None,
    greedy: GreedySettings | None = None,
) -> Memory:
    """Project the peak of a fit of m of n samples with d features and p targets, and of its certificate.

    `cache_bytes` is the budget of a worker's feature cache, `width` the kernel's `feature_width`, by default d.
    `greedy` are the settings of a greedy choice: its sums have k columns for each of q candidates, and its tasks'
    pieces a row, of `CANDIDATES_AT_ONCE` at most.
    """
    threads = executor.threads_per_process
    candidates = factors = 0
    if greedy is not None:
        candidates = n if greedy.exhaustive else min(n, greedy.per_round * (greedy.candidates + greedy.kept))
        factors = 1 + greedy.tracks_gap
    cross = cross_bytes(n, d, m, 3 * p)
    # A greedy choice looks at candidates in float32, too.
    features = min(cache_bytes, (12 if candidates else 8) * n * ((width or d) + 1))
    sums, every = (8 * q * (m + p + 2) for q in (min(candidates, CANDIDATES_AT_ONCE), candidates))
    choice, working = factors * 8 * m * m + 2 * sums + 2 * every, cross.worker(threads) + (3 * threads + 6) * sums
    parts = {
        "matrices_bytes": Part(COORDINATOR_MATRICES * 8 * m * m, words=MATRICES),
        "vectors_bytes": Part(8 * n * (8 * p + 10), words="vectors {}"),
        "choice_bytes": Part(choice, words="choice {} (less with a smaller `per_round`, and not `exhaustive`)"),
        "worker_bytes": Part(working + features, "worker", "workers {}"),
        # Workers keep columns during the choice, which are gone before the fit.
        "kept_bytes": Part(0, "worker"),
    }
    return Memory(
        f"a sparse model of {m:,} basis samples",
        parts,
        executor.shares_memory,
        {"basis_size": m},
        kept="the basis' columns",
        useful_bytes=slab_bytes(n, m) if candidates else 0,
    )


# Defaults: rounds of a choice for any m, and candidates of a draw that are scored after refitting.
ROUNDS, SCREEN = 50, 2
# Of matching pursuit: earlier candidates that are scored again.
KEPT = 59
# Settings of models with neighbours alone, by default.
NEAR_SETTINGS = {"neighbours": LEAF + HALO, "search_samples": SEARCHED}
# Of a basis that is chosen greedily.
GREEDY = Group("Options of a greedy basis")


BY_METHOD = ", ".join(
    f"{basis} for {', '.join(name for name, method in METHODS.items() if method.basis == basis)}"
    for basis in dict.fromkeys(method.basis for method in METHODS.values())
)
METHOD = Option(
    help="; ".join(f"{name}: {method.help}" for name, method in METHODS.items()) + ".", choices=tuple(METHODS)
)
BASIS = Option(
    help=f"How basis samples are chosen. Only greedy uses the targets.  [default: {BY_METHOD}]",
    choices=(*BLIND_BASES, "greedy"),
)
CANDIDATE_COUNT = Option(help="Number of random candidates for each greedy choice.", least=1, group=GREEDY)
PER_ROUND = Option(
    help="Number of samples to choose before the weights are fitted again. The papers use 1.  [default: a fiftieth "
    "of the basis]",
    least=1,
    group=GREEDY,
)
EXHAUSTIVE = Option(
    help="Score all samples at every choice instead of random candidates. For small data.", group=GREEDY
)
SCREENED = Option(
    help="Score only the best K candidates of each choice in full, ranked by a cheaper score. 0: score all in full.  "
    "[default: 2; all for sggp with `per_round` 1]",
    metavar="K",
    least=0,
    group=GREEDY,
)
SCORE_ROWS = Option(
    help="Number of random rows from which the cheaper score of `screen` is computed.  [default: all]",
    metavar="ROWS",
    least=1,
    group=GREEDY,
)
NEIGHBOURS = Option(
    help="For vif: number of nearest samples that each prediction uses.",
    metavar="SAMPLES",
    least=1,
)
SEARCH_SAMPLES = Option(
    help="For vif: largest number of samples that a search for neighbours examines, the most promising first. The "
    "search is exact if this is the number of all samples.",
    metavar="SAMPLES",
    least=1,
    group=FURTHER,
)
CERTIFY_PASSES = Option(
    help="Spend this number of passes of block coordinate descent over the kernel matrix on a tighter proven "
    "distance to the exact model. With `basis_size` auto: largest number of products with the kernel matrix.",
    metavar="PASSES",
    least=0,
)


@documented
@dataclass(frozen=True)
class SparseSettings:
    """Settings of a sparse model: its method, its basis (by default as the method says), passes for its certificate.

    The basis has `basis_size` samples at most, 1,000 by default; a greedy choice ends at the duality gap `gap`, where
    that is given. With several choices a round, the best two of each draw are scored after refitting by default.
    """

    method: Annotated[str, METHOD] = "vfe"
    basis_size: int = 1000
    basis: Annotated[str | None, BASIS] = None
    gap: float | None = None
    candidates: Annotated[int, CANDIDATE_COUNT] = CANDIDATES
    per_round: Annotated[int | None, PER_ROUND] = None
    exhaustive: Annotated[bool, EXHAUSTIVE] = False
    screen: Annotated[int | None, SCREENED] = None
    score_rows: Annotated[int | None, SCORE_ROWS] = None
    certify_passes: Annotated[float, CERTIFY_PASSES] = 0.0
    neighbours: Annotated[int, NEIGHBOURS] = LEAF + HALO
    search_samples: Annotated[int, SEARCH_SAMPLES] = SEARCHED
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.gap is not None and self.basis_name != "greedy":
            raise InputError(
                f"a duality gap is reached by a greedy basis; this one is {self.basis_name}. Choose `basis` greedy, "
                "or leave out the gap"
            )
        for name, default in NEAR_SETTINGS.items():
            if getattr(self, name) != default and not self.sparse_method.neighbours:
                raise InputError(f"`{name}` belongs to method vif; got method {self.method}. Leave it out")

    @property
    def sparse_method(self) -> SparseMethod:
        """The method."""
        return method_named(self.method)

    @property
    def basis_name(self) -> str:
        """The name of the basis: the user's, or the method's default."""
        return self.basis or self.sparse_method.basis

    @property
    def near(self) -> Neighbours:
        """Sizes of leaves and halos, and of searches for these."""
        return Neighbours.of(self.neighbours, self.search_samples)

    def greedy(self) -> GreedySettings:
        """Settings of the greedy choice: by the risk after refitting, or for matching pursuit with the others held."""
        pursuit = self.method == "mpgp"
        per_round = self.per_round or max(1, self.basis_size // ROUNDS)
        screened = per_round > 1 and not (pursuit or self.exhaustive)
        return GreedySettings(
            self.basis_size,
            "single" if pursuit else "refit",
            self.candidates,
            per_round,
            self.exhaustive,
            KEPT if pursuit else 0,
            (SCREEN if screened else 0) if self.screen is None else self.screen,
            self.score_rows,
            self.gap,
            seed=self.seed,
        )

    def memory(self, n: int, d: int, p: int, executor: BlockExecutor, cache_bytes: int, width: int) -> Memory:
        """Project the memory of training."""
        greedy = self.greedy() if self.basis_name == "greedy" else None
        m = min(self.basis_size, n)
        plan = plan_sparse(n, d, m, p, executor, cache_bytes, width=width, greedy=greedy)
        if not self.sparse_method.neighbours:
            return plan
        of_tasks = vif_bytes(n, d, m, p, executor.threads_per_process, self.near)
        # The inputs go to the store as a whole.
        return plan.plus(worker_bytes=of_tasks, vectors_bytes=8 * n * (d + p))

    def refuse_target(self) -> None:
        """Refuse a proof that is asked for of a method whose own mean is proven where it predicts; `InputError`."""
        if self.sparse_method.neighbours:
            raise InputError(
                f"`basis_size` auto and `target_distance` need a bound at the training samples, and {self.method} has "
                f"bounds only where it predicts: give a `basis_size`, or use vfe"
            )
