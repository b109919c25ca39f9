"""Random candidates of greedy choices: subsets without repetition of the samples that are not chosen yet.

GBCD paper, Algorithm 2, step 6: "randomly choose a subset O of size kappa from N", from which every variable that
joins the active set is taken. Smola and Bartlett's M, a subset of those that have not been selected, is the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.operators.base import IndexArray

# Numbers drawn at a time beyond those that a round was expected to take, at least.
LEAST_MORE = 1024


def round_generator(seed: int, iteration: int) -> np.random.Generator:
    """Return the random numbers of one round: a resumed solve draws what the interrupted one would have drawn."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, iteration])))


class Draws:
    """The candidates of one round.

    They are dealt from one sequence of uniform sample numbers, by seed and round alone; a sample that is chosen
    already, or in the subset, is passed over. So all subsets of N are as likely, what a round will look at can be
    foreseen, and a candidate costs a number or a few, whatever n is.

    - `choices`, `candidates`: subsets that the round will take, and kappa.
    - `sequence` (l,): as much as the round is expected to look at; what it takes beyond that is drawn when it is
      needed.
    """

    def __init__(self, n: int, choices: int, candidates: int, seed: int, iteration: int) -> None:
        self._n, self._candidates = n, candidates
        self._generator = round_generator(seed, iteration)
        # On average half of the choices, and half of the subset, are there when a candidate is drawn: allow for both.
        drawn = choices * candidates
        self.sequence = self._more(drawn + drawn * (choices + candidates) // n + 64)
        self._position = 0
        self._marks = np.zeros(n, dtype=np.int32)
        self._subsets = 0

    def take(self, subsets: int, out: NDArray[np.bool_], remaining: int) -> IndexArray:
        """Return the next subsets, one after the other: (subsets * min(kappa, remaining),).

        - `out` (n,): samples that are not in N.
        - `remaining`: how many the others are.
        """
        if remaining <= self._candidates:
            return np.tile(np.flatnonzero(~out).astype(np.intp), subsets)
        dealt = np.empty((subsets, self._candidates), dtype=np.intp)
        held, first = 0, self._subsets + 1
        while True:
            held, self._position = _deal(dealt, held, self.sequence, self._position, out, self._marks, first)
            if held == dealt.size:
                break
            self.sequence = self._more(max(LEAST_MORE, len(self.sequence) // 4))
            self._position = 0
        self._subsets += subsets
        return dealt.ravel()

    def _more(self, count: int) -> IndexArray:
        return self._generator.integers(0, self._n, count, dtype=np.intp)


@cached_njit(nogil=True)
def _deal(dealt, held, sequence, position, out, marks, first):  # type: ignore[no-untyped-def]
    """Fill the rows of `dealt` from `sequence`; return how many numbers they hold, and where the sequence goes on.

    `marks` has for every sample the last subset that it was dealt to; the first row's is `first`.
    """
    length, size = dealt.shape[1], dealt.size
    while held < size and position < sequence.shape[0]:
        sample = sequence[position]
        position += 1
        subset = held // length
        if not out[sample] and marks[sample] != first + subset:
            marks[sample] = first + subset
            dealt[subset, held - subset * length] = sample
            held += 1
    return held, position
