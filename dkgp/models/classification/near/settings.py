"""Settings of a Gaussian process classifier on a basis with neighbours, and the memory that training takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dkgp.errors import InputError
from dkgp.models.classification.basis.settings import BasisSettings, NewtonMemory
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.memory import TrainingSizes
from dkgp.models.sparse.vif.objective import HALO, LEAF, SEARCHED, Neighbours, kept_bytes, vif_bytes


@dataclass(frozen=True)
class NearSettings(BasisSettings):
    """Settings of a basis with neighbours.

    Parameters
    ----------
    size, basis, seed
        As of `BasisSettings`; 200 basis samples by default.
    tolerance : float, default 1e-3
        Of decisions: the largest change of one at a sample in the last of Newton's steps.
    max_iterations : int, default 100
        Steps of one latent function.
    neighbours : int, default 128
        Nearest samples that a prediction stands on; in the fit a quarter of them are in a leaf.
    searched : int, default 32768
        Samples that a search for them looks at, at most.

    Raises
    ------
    InputError
        A setting out of range, or a certificate, which there is none of.
    """

    size: int = 200
    tolerance: float = 1e-3
    max_iterations: int = 100
    neighbours: int = LEAF + HALO
    searched: int = SEARCHED

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("neighbours", "searched"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        if self.certify:
            raise InputError("nothing is proven of a basis with `neighbours`: leave `certify` out, or the neighbours")

    @property
    def near(self) -> Neighbours:
        """Sizes of leaves and halos, and of searches for these."""
        return Neighbours.of(self.neighbours, self.searched)

    def memory(self, sizes: TrainingSizes, *, coupled: bool = False) -> NewtonMemory:
        """Project what training takes; columns are never `coupled`, and have their steps one after the other."""
        n, d, t, executor = sizes.n, sizes.d, sizes.t, sizes.executor
        plan = super().memory(replace(sizes, t=1))
        m, threads = min(self.size, n), executor.threads_per_process
        # Each column's factor, values, weights, targets and noise, and a record's inputs and copies of these.
        matrices, vectors = plan.matrices_bytes + 2 * t * 8 * m * m, 8 * n * (12 * t + 2 * d + 8)
        worker, kept = plan.worker_bytes + vif_bytes(n, d, m, 1, threads, self.near), kept_bytes(n, m, self.near)
        return replace(plan, matrices_bytes=matrices, vectors_bytes=vectors, worker_bytes=worker, useful_bytes=kept)


def refuse_coupled(likelihood: Likelihood) -> None:
    """Refuse a likelihood whose latent functions hang together; `InputError`."""
    if likelihood.coupled:
        raise InputError(
            "softmax couples the classes, and neighbours are of one latent function: take the classes one against the "
            "rest (`multi_class` ovr), or leave out the `neighbours`"
        )
