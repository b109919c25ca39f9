"""Predictive variances in proven intervals: a low-rank factor, then conjugate gradients where it is not enough."""

# Hangs on dkgp/models/certificate.py.

from __future__ import annotations

from dkgp.models.variance.settings import VarianceSettings

__all__ = ["VarianceSettings"]
