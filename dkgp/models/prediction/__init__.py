"""Predicted means, streamed or one by one, and draws from the posterior."""

# Hangs on dkgp/models/certificate.py.

from __future__ import annotations

from dkgp.models.prediction.predict import Destination, PredictSummary, predict

__all__ = ["Destination", "PredictSummary", "predict"]
