"""Predictive variances in proven intervals, by a low-rank factor, and conjugate gradients where it is insufficient."""

# Hangs on dkgp/models/certificate.py.

from __future__ import annotations

from dkgp.models.variance.settings import VarianceSettings

__all__ = ["VarianceSettings"]
