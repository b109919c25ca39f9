"""The job of `dkgp bench sparse`: methods, bases and sizes on one problem, and how its contenders are described."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dkgp.bench.problem import FRIEDMAN1, PreparedProblem, ProblemJob
from dkgp.cluster import ClusterOptions
from dkgp.errors import UsageError
from dkgp_benchmarks.sparse.specs import SparseSpec

CONTENDERS_MODULE = "dkgp_benchmarks.sparse.contenders"


@dataclass(frozen=True)
class BenchSparseJob(ProblemJob):
    """A comparison of sparse models with each other and the exact one, or of their speed with BLAS's.

    Attributes
    ----------
    methods
        Each with settings of its own if need be: "sggp,screen=2".
    bases
        For methods that name none and do not choose greedily; their own by default.
    sizes
        Basis samples.
    cluster
        Where they run.
    repeats
        Turns that every contender takes; medians are reported.
    null
        Whether the baseline is raced against its own copy too, for the noise of the ratios.
    with_exact
        Whether the exact model takes part.
    peers, peer_names, peer_pythons
        Whether all of other libraries' models do, or which of them, and the interpreters of environments that may have
        them.
    plot
        Where errors and coverage by size are drawn.
    """

    methods: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    repeats: int = 1
    null: bool = False
    with_exact: bool = True
    peers: bool = False
    peer_names: tuple[str, ...] = ()
    peer_pythons: tuple[str, ...] = ()
    plot: str | None = None
    overwrite: bool = False

    def specs(self, default: tuple[str, ...]) -> list[SparseSpec]:
        """Methods on bases, each once."""
        found = [SparseSpec.read(text) for text in self.methods or default]
        if len({spec.text for spec in found}) < len(found):
            raise UsageError(f"name different methods; got {', '.join(spec.text for spec in found)}")
        if self.bases:
            found = [on for spec in found for basis in self.bases if (on := spec.on(basis)).is_possible]
        return list({spec.text: spec for spec in found}.values())

    def describe(self, spec: SparseSpec, size: int, prepared: PreparedProblem) -> dict[str, Any]:
        """Description of a sparse model for its process, but for where its predictions go."""
        return {
            "contender": "sparse",
            **prepared.to_json(),
            "settings": spec.sized(size, self.problem.seed),
            "cluster": asdict(self.cluster),
        }

    def check_sizes(self, sizes: tuple[int, ...], n: int) -> None:
        """Refuse bases of no samples, or of more than there are."""
        if min(sizes) < 1 or max(sizes) > n:
            raise UsageError(f"bases have 1 to {n:,} samples here; got {', '.join(map(str, sizes))}")

    @property
    def noise_free(self) -> bool:
        """True if test targets have no noise: the function itself is what intervals are to cover."""
        return self.problem.data == FRIEDMAN1
