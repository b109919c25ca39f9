"""What proofs count for sums over samples: no term passes through more additions, however samples are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.sparse.bounds import sample_sum_roundings
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.tasks import piece_rows, runs_of
from dkgp.operators.exact_sums import unit_count


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 1025, 8193, 70_000, 300_000, 530_000, 10**7])
def test_no_term_is_added_more_often_than_is_counted(n: int) -> None:
    """A piece's rows in any order, the pieces of a run, the digits of runs; a few products besides."""
    executor = LocalExecutor(1)
    operator = BlockedKernelOperator(
        SquaredExponential(gamma=(1.0,)), 0.1, ArrayInputs(np.broadcast_to(0.0, (n, 1))), executor
    )
    context, most = operator.context, 0
    runs = runs_of(context, {})
    assert len(runs) <= unit_count(n)
    for prototypes, run in itertools.product((1, 1500, 2048, 5000, 10**6), runs):
        longest, pieces, largest = piece_rows(prototypes), 0, 0
        for block in run.blocks:
            start, stop = context.bounds(block)
            pieces += -(-(stop - start) // longest)
            largest = max(largest, min(longest, stop - start))
        most = max(most, largest + pieces + 3)
    executor.close()
    # Weights of a row, its square root and quotient; the sums of such terms are counted with three more at most.
    assert most + 3 <= sample_sum_roundings(n)
    print(f"\nn = {n:,}: {most} additions at most, {sample_sum_roundings(n):.0f} counted")
