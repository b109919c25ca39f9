"""`dkgp sparse`: a dataset store and hyperparameters to a sparse model with a proven distance to the exact one."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.sparse.job import SparseJob
from dkgp.commands.sparse.run import finished_sparse, run_sparse

__all__ = ["SparseJob", "finished_sparse", "run_sparse"]
