"""`dkgp predict`: predict a data set or lines with a model; `dkgp export`: convert a prediction store to a table."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.predict.job import ExportJob, LinesJob, PredictJob
from dkgp.commands.predict.lines import run_lines
from dkgp.commands.predict.run import run_export, run_predict

__all__ = ["ExportJob", "LinesJob", "PredictJob", "run_export", "run_lines", "run_predict"]
