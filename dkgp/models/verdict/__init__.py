"""Findings: what is wrong with a model, from its predictions of a test set, and what to do next."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.models.verdict.finding import COVERAGE_MATTERS, FEWEST_SAMPLES, Finding
from dkgp.models.verdict.labels import label_findings
from dkgp.models.verdict.reading import read_residuals
from dkgp.models.verdict.regression import Residuals, findings
from dkgp.models.verdict.rivals import Rivals, fit_rivals

__all__ = [
    "COVERAGE_MATTERS",
    "FEWEST_SAMPLES",
    "Finding",
    "Residuals",
    "Rivals",
    "findings",
    "fit_rivals",
    "label_findings",
    "read_residuals",
]
