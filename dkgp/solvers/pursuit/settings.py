"""Settings of a pursuit, and what its rounds tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import IndexArray
from dkgp.solvers.block_descent.draws import round_generator
from dkgp.solvers.greedy_basis.scores import SCORES, Score


@dataclass(frozen=True)
class PursuitSettings:
    """Settings that determine a path.

    Parameters
    ----------
    size : int, optional
        Nonzero numbers at most; all D by default.
    candidates : int, optional
        rho: each choice is the best of its own random draw of so many regressors that are not chosen yet (SCDPP). By
        default the best of all (SCDP). 59 are the paper's.
    per_round : int, default 1
        Choices a round, by the gradient before it. 1 is the paper's; more spare passes over data.
    score : {"gradient", "single", "refit"}, default "gradient"
        Sizes that the best is chosen by, see `dkgp.solvers.greedy_basis.scores`: the gradient, the paper's (19) and
        orthogonal matching pursuit's; its fall of the objective with the others held; or refitted, which is orthogonal
        least squares.
    first : tuple of int
        Regressors that the path begins with, in this order, in one round: an intercept.
    residual : float, optional
        Stop where the squared residual, summed over right-hand sides, is at most this.
    tolerance : float, optional
        Stop where max |g| is; of a pursuit without random draws.
    stagnation : (int, float), optional
        Stop by (38): where the last score differs from the mean of so many before it by less than this share of it.
        Scores are squared residuals, or what `pursue` is given to judge the path by.
    memory_bytes : int, optional
        What columns of A may take at the coordinator; half of what is free by default.
    seed : int
        Of draws: they depend on it and on the round alone, so that folds and hyperparameters share them (Remark 8).
    """

    size: int | None = None
    candidates: int | None = None
    per_round: int = 1
    score: Score = "gradient"
    first: tuple[int, ...] = ()
    residual: float | None = None
    tolerance: float | None = None
    stagnation: tuple[int, float] | None = None
    memory_bytes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("candidates", 1), ("per_round", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or int(value) < least):
                raise InputError(f"`{name}` must be a whole number, at least {least}; got {value!r}")
        if self.score not in SCORES or self.score == "residual":
            raise InputError(f"`score` must be gradient, single or refit; got {self.score!r}")
        for name in ("residual", "tolerance"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0.0):
                raise InputError(f"`{name}` must be a number that is not negative; got {value}")
        if self.tolerance is not None and self.candidates is not None:
            raise InputError(
                "`tolerance` bounds the whole gradient, of which random `candidates` show a part; leave out one of them"
            )
        if self.stagnation is not None:
            window: Any = self.stagnation[0]
            share = self.stagnation[1]
            if not isinstance(window, Integral) or int(window) < 1:
                raise InputError(f"`stagnation` looks back at least 1 step, a whole number of them; got {window!r}")
            if not (np.isfinite(share) and share >= 0.0):
                raise InputError(f"`stagnation` has a share that is a number and not negative; got {share}")
        object.__setattr__(self, "first", tuple(int(index) for index in self.first))
        if len(set(self.first)) < len(self.first):
            raise InputError(f"`first` names a regressor twice: {self.first}")

    def most(self, size: int) -> int:
        """Nonzero numbers at most, of `size` regressors.

        Raises
        ------
        InputError
            More than there are regressors, or than come first, were asked for.
        """
        most = size if self.size is None else self.size
        if most > size:
            raise InputError(f"a path of {most:,} nonzero numbers was asked for; there are {size:,} regressors")
        if len(self.first) > most:
            raise InputError(f"{len(self.first)} regressors come first; the path ends after {most}")
        if any(not 0 <= index < size for index in self.first):
            raise InputError(f"`first` names regressors {self.first}; expected numbers from 0 to {size - 1:,}")
        return most

    def identity(self) -> dict[str, Any]:
        """Settings that a pursuit must share with one that it goes on from: all that its choices depend on."""
        settings = {name: value for name, value in asdict(self).items() if name not in ("size", "memory_bytes")}
        for name in ("residual", "tolerance", "stagnation"):
            settings.pop(name)
        return {**settings, "first": list(self.first)}


@dataclass(frozen=True)
class PursuitProgress:
    """State after a round.

    - `round`, `size`: rounds done, nonzero numbers.
    - `objective`: w'A w / 2 - b'w, summed over right-hand sides.
    - `residual`: squared residual, where the system knows it.
    - `steepest`: max |g| of what is not chosen; None of random draws.
    - `score`: the path was judged by this, where it was.
    """

    round: int
    size: int
    objective: float
    residual: float | None
    steepest: float | None
    score: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)


def drawn(seed: int, number: int, groups: int, candidates: int, out: Any) -> IndexArray:
    """Candidates of a round in equal runs, each sorted: of those that are not `out` (D,) bool, without replacement.

    A random key of each regressor depends on the seed and the round alone: paths that differ in what they chose see the
    same draws, but for that.
    """
    runs = []
    generator = round_generator(seed, number)
    remaining = np.flatnonzero(~out)
    count = min(candidates, len(remaining))
    for _ in range(groups):
        keys = generator.random(len(out))[remaining]
        subset = remaining[np.argpartition(keys, count - 1)[:count]] if count else remaining
        runs.append(np.sort(subset))
    return np.concatenate(runs).astype(np.intp) if runs else np.empty(0, dtype=np.intp)


def stagnates(scores: Any, window: int, share: float) -> bool:
    """True if (38) holds: |mean(f^(k-1), ..., f^(k-window)) - f^(k)| < share |f^(k)|; not before there are so many."""
    if len(scores) <= window:
        return False
    last = float(scores[-1])
    return bool(abs(float(np.mean(np.asarray(scores[-1 - window : -1]))) - last) < share * abs(last))
