"""Memory that a kd-tree takes in each process, and a check that the process can keep it."""

from __future__ import annotations

from dkgp.cluster.cache import worker_cache
from dkgp.errors import MemoryBudgetError
from dkgp.operators.tree.kd_tree import LEAF_ROWS


def tree_bytes(n: int, d: int) -> int:
    """Bytes of the tree over n samples that each process keeps: points, their order and places, and the nodes."""
    nodes = 2 * -(-n // LEAF_ROWS)
    return n * (8 * d + 16) + nodes * (16 * d + 24) + 8 * nodes


def building_bytes(n: int, d: int) -> int:
    """Bytes that making the tree takes besides: the inputs in blocks, joined, and by node."""
    return 3 * 8 * n * d


def require_room(n: int, d: int) -> None:
    """Refuse a tree over n samples that this process's cache cannot keep, so that each product would build it anew."""
    needed, budget = tree_bytes(n, d), worker_cache().budget_bytes
    if needed > budget:
        raise MemoryBudgetError(
            f"the tree over {n:,} samples takes {needed:,} bytes in each process; its cache holds {budget:,}. Allow a "
            "larger cache, or leave tree sums out"
        )
