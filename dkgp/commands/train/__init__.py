"""`dkgp train`: an exact Gaussian process, by any solver."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.train.job import TrainJob
from dkgp.commands.train.run import finished_training, run_train

__all__ = ["TrainJob", "finished_training", "run_train"]
