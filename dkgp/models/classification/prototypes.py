"""Prototypes by name: the samples, or centres, whose kernel columns a fixed-size classifier is a sum of.

| name | chosen |
|---|---|
| k-centre | each the farthest from those before, by the kernel's length scales |
| uniform | at random |
| entropy | to raise the quadratic Renyi entropy, one swap after the other (the paper's) |
| k-means | centres of Lloyd's iterations, which are no samples |
| pivoted | in proportion to the residual of k(x, x): randomly pivoted Cholesky |
| variance | where most of k(x, x) is left |
| greedy | by the labels: the fall of the squared error and of the norm |

All but greedy are the bases of sparse Gaussian processes (`dkgp.models.sparse.bases`), and are drawn from as those are.
Duplicates are taken once, so that there may be fewer than were asked for. The choice depends on the data, the kernel
and the seed alone, not on the workers.
"""

from __future__ import annotations

from dkgp.errors import InputError
from dkgp.models.sparse.bases import BLIND_BASES, blind_basis
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import farthest_first
from dkgp.solvers.greedy_basis import GreedySettings, choose_greedily

DEFAULT_PROTOTYPES = "k-centre"
PROTOTYPES = (DEFAULT_PROTOTYPES, *(name for name in BLIND_BASES if name != DEFAULT_PROTOTYPES), "greedy")
# Bases of logistic and gp, the default first.
DEFAULT_BASIS = "pivoted"
BASES = (DEFAULT_BASIS, *(name for name in PROTOTYPES if name != DEFAULT_BASIS))
# Rounds of a greedy choice, for any number of prototypes, and how many of each draw are scored after refitting.
ROUNDS, SCREEN = 50, 2


def check_prototypes(name: str) -> None:
    """Refuse a name that is none of `PROTOTYPES`; `InputError` with those that there are."""
    if name not in PROTOTYPES:
        raise InputError(f"unknown prototypes {name!r}; there are {', '.join(PROTOTYPES)}")


def choose_prototypes(
    name: str,
    operator: BlockedKernelOperator,
    size: int,
    seed: int = 0,
    *,
    targets: FloatArray | None = None,
) -> tuple[IndexArray | None, FloatArray]:
    """Choose M = `size` prototypes among the samples, or centres of them: all distinct samples where there are no more.

    Their indices (M,), None where they are no samples, and their standardised inputs (M, d). The operator's kernel
    gives distances, and its noise variance that of greedy choices; greedy prototypes alone look
    at `targets` (n, t), the signs of the classes, less their means. `InputError` for an unknown name, no prototype
    asked for, or greedy ones without targets.
    """
    check_prototypes(name)
    if size < 1:
        raise InputError(f"a classifier has at least one prototype; got {size:,}")
    size = min(size, operator.n)
    if name == "greedy":
        indices = _greedily(operator, size, seed, targets)
    elif name == "k-centre":
        indices = farthest_first(operator, size, seed)
    else:
        basis = blind_basis(operator, name, size, seed)
        return basis.indices, basis.inputs
    return indices, operator.inputs(indices)


def _greedily(operator: BlockedKernelOperator, size: int, seed: int, targets: FloatArray | None) -> IndexArray:
    if targets is None:
        raise InputError("greedy prototypes are chosen by the labels: give `targets`, or choose others")
    per_round = max(1, size // ROUNDS)
    settings = GreedySettings(size, per_round=per_round, screen=SCREEN if per_round > 1 else 0, seed=seed)
    centred = targets - targets.mean(axis=0)
    return choose_greedily(operator, centred, settings).indices
