"""A watch over a run: what is called on its way, where its state is saved, and who may end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dkgp.data.types import ProgressCallback
from dkgp.solvers.checkpointing import Checkpointing


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The calls that a solve, or another long search, makes on its way.

    Parameters
    ----------
    callback : callable, optional
        Called after every round with its record: a `dkgp.solvers.Progress` of a solve.
    within : callable, optional
        Called with a `dkgp.data.Progress` in the course of what takes long within a round, such as a product.
    checkpointing : Checkpointing, optional
        Where the state is saved, how often, and whether to go on from there.
    interrupted : callable, optional
        Asked between rounds, and where the last one is saved also within one; when it answers true the state is saved
        and `InterruptedRunError` raised.
    """

    callback: Callable[[Any], None] | None = None
    within: ProgressCallback | None = None
    checkpointing: Checkpointing | None = None
    interrupted: Callable[[], bool] | None = None


NOBODY = Watch()
