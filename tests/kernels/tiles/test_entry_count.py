"""Counting kernel entries: by every method of the evaluator, on any thread, for whoever asked."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dkgp.cluster.threads import in_parallel
from dkgp.kernels import EntryCount, SquaredExponential, TileEvaluator, count_entries, counting
from dkgp.kernels.tiles.evaluator import Precision

KERNEL = SquaredExponential(gamma=(0.5, 0.2))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_every_method_counts_its_entries(precision: Precision, rng: np.random.Generator) -> None:
    entries = EntryCount()
    evaluator = TileEvaluator(KERNEL, precision, entries=entries)
    A, B = evaluator.prepare(rng.standard_normal((37, 2))), evaluator.prepare(rng.standard_normal((21, 2)))
    assert entries.value == 0
    evaluator.matmat(A, B, np.ones((21, 3)))
    assert entries.value == 37 * 21
    evaluator.pair(A, B, np.ones((21, 2)), np.ones((37, 2)))
    assert entries.value == 2 * 37 * 21
    evaluator.tile(A.first(5), B.take(np.arange(4)))
    assert entries.value == 2 * 37 * 21 + 20


def test_without_a_count_of_its_own_the_innermost_open_one_gets_them(rng: np.random.Generator) -> None:
    own = EntryCount()
    evaluator = TileEvaluator(KERNEL, entries=own)
    sent = pickle.loads(pickle.dumps(evaluator))  # as to a worker, where nobody holds the count
    A = sent.prepare(rng.standard_normal((10, 2)))
    sent.tile(A, A)
    with counting() as outer:
        sent.tile(A, A)
        with counting() as inner:
            sent.tile(A, A)
            sent.tile(A, A)
            evaluator.tile(A, A)
        count_entries(7)
    sent.tile(A, A)
    assert (outer.value, inner.value, own.value) == (107, 200, 100)


def test_threads_lose_nothing(rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(KERNEL)
    A = evaluator.prepare(rng.standard_normal((16, 2)))
    with counting() as count:
        in_parallel(lambda piece: [evaluator.tile(A, A) for _ in range(200)] and None, 16, threads=4)
    assert count.value == 16 * 200 * 256

    def one(number: int) -> int:
        with counting() as own:  # tasks that share a process
            for _ in range(number):
                evaluator.tile(A, A)
        return own.value

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(20))) == [number * 256 for number in range(20)]
