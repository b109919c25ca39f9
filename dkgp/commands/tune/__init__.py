"""`dkgp tune`: hyperparameters by maximum likelihood on random subsets of a store, or a sparse model of all of it."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.tune.job import TuneJob
from dkgp.commands.tune.run import run_tune

__all__ = ["TuneJob", "run_tune"]
