"""`dkgp classify`: a dataset store of labels to a classifier, of a few prototypes or of all samples."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.methods import check_classify, finished_classify, run_classify

__all__ = ["ClassifyJob", "check_classify", "finished_classify", "run_classify"]
