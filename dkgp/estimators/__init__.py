"""Estimator classes without numerics of their own."""

from __future__ import annotations
