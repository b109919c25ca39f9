"""Findings about predicted classes: errors beside the commonest class, classes that are missed, and calibration."""

from __future__ import annotations

import numpy as np
import scipy.stats

from dkgp.models.classification.metrics import ClassMetrics, Reliability
from dkgp.models.verdict.finding import FEWEST_SAMPLES, LEVEL, Finding

# A model that avoids less than this share of the errors that naming the commonest class makes explains little.
_AVOIDED = 0.1
# A class is rare below this part of an even share; missed where less than half of its samples are told.
_RARE, _RECALL = 0.5, 0.5
# Points of calibration error that matter; samples (by p (1 - p)) without which a bin's share is no normal number.
_CALIBRATION, _FEWEST_IN_BIN = 0.02, 5.0
_CLASSES_NAMED = 5


def label_findings(metrics: ClassMetrics) -> list[Finding]:
    """Look for what is wrong with predicted classes; the gravest comes first, and none where nothing is."""
    if metrics.n < FEWEST_SAMPLES:
        return []
    looked = (_explains_little(metrics), _missed(metrics), _calibration(metrics.reliability))
    return [finding for finding in looked if finding is not None]


def _explains_little(metrics: ClassMetrics) -> Finding | None:
    counts = metrics.confusion.sum(axis=1)
    commonest = int(np.argmax(counts))
    naive = 1.0 - float(counts[commonest]) / metrics.n
    # Few errors of few rare samples are judged by class, below.
    if naive * metrics.n < FEWEST_SAMPLES or metrics.error_rate < (1.0 - _AVOIDED) * naive:
        return None
    return Finding(
        "explains little",
        f"{metrics.error_rate:.2%} of the labels are wrong; naming the commonest class, "
        f"'{metrics.classes[commonest]}', for all would be wrong in {naive:.2%}",
        "Check that each label belongs to its row and that the features say something of it; tune again with "
        "`subset` larger, or another `kernel`",
    )


def _missed(metrics: ClassMetrics) -> Finding | None:
    counts, told = metrics.confusion.sum(axis=1), np.diag(metrics.confusion)
    share = counts / metrics.n
    named = metrics.confusion.sum(axis=0)
    missed = []
    for code in np.argsort(counts).tolist():
        count = int(counts[code])
        never = named[code] == 0 and count * (1.0 - _RECALL) >= 5.0
        rare = share[code] < _RARE / len(counts)
        # Fewer right labels than a recall of one half would give by chance.
        by_chance = scipy.stats.binom.cdf(told[code], count, _RECALL)
        if never or (rare and by_chance < LEVEL):
            words = "never predicted" if never else f"{told[code] / count:.0%} of its samples are told"
            missed.append(f"'{metrics.classes[code]}' ({words}; {count:,} of {metrics.n:,} samples)")
    if not missed:
        return None
    more = f" and {len(missed) - _CLASSES_NAMED} more" if len(missed) > _CLASSES_NAMED else ""
    return Finding(
        "missed classes",
        f"Classes are missed: {', '.join(missed[:_CLASSES_NAMED])}{more}",
        "Errors of rare classes count little in the error rate: where they matter, look at the balanced error and "
        "train again with `class_weight` balanced",
    )


def _calibration(reliability: Reliability | None) -> Finding | None:
    if reliability is None:
        return None
    claimed, observed, counts = reliability.claimed, reliability.observed, reliability.counts
    # Of calibrated probabilities p the sum over a bin has a variance of no more than this.
    variance = counts * claimed * (1.0 - claimed)
    usable = variance >= _FEWEST_IN_BIN
    if not usable.any():
        return None
    statistic = float(np.sum((counts * (observed - claimed))[usable] ** 2 / variance[usable]))
    by_chance = scipy.stats.chi2.sf(statistic, int(usable.sum()))
    # What as many samples of calibrated probabilities show.
    expected = float(np.sum(np.sqrt(2.0 / np.pi * variance))) / int(counts.sum())
    if by_chance >= LEVEL or reliability.error < expected + _CALIBRATION:
        return None
    # Claims that are further from one half than what came true.
    excess = float(np.sum(counts * np.sign(claimed - 0.5) * (claimed - observed)))
    direction = "too sure" if excess > 0.0 else "not sure enough"
    return Finding(
        "calibration",
        f"The probabilities are {direction}: claims and what came true differ by {reliability.error:.1%} on average "
        f"(of calibrated ones in as many samples {expected:.1%})",
        "Take probabilities averaged over the model's own uncertainty (`method` gp), or tune again with `likelihood` "
        "and `folds`; where test samples are of another kind than training samples, split them so",
    )
