"""`dkgp fit`: from a table to a model that is tuned, chosen, trained and evaluated, and a page that tells of it all."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.fit.job import FitJob
from dkgp.fit.run import run_fit

__all__ = ["FitJob", "run_fit"]
