"""Findings about classes: from confusions and calibrations that are made to be right or wrong."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.models.verdict import Finding, label_findings
from tests.models.classification.problems import class_metrics

N = 2000


def judged(rng: np.random.Generator, claimed: np.ndarray, true: np.ndarray) -> list[Finding]:
    """Findings where the second class has the probability `true` and is claimed to have another."""
    codes = (rng.random(len(true)) < true).astype(np.int64)
    probabilities = np.stack([1.0 - claimed, claimed], axis=1)
    metrics = class_metrics(("no", "yes"), codes, (claimed > 0.5).astype(np.int64), probabilities=probabilities)
    return label_findings(metrics)


@pytest.mark.parametrize("seed", range(8))
def test_calibrated_probabilities_are_left_in_peace(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probability = rng.beta(0.4, 0.4, N)
    assert judged(rng, probability, probability) == []


@pytest.mark.parametrize(("power", "words"), [(3.0, "too sure"), (0.35, "not sure enough")])
def test_probabilities_that_claim_too_much_or_little(rng: np.random.Generator, power: float, words: str) -> None:
    true = rng.beta(0.8, 0.8, N)
    odds = (true / (1.0 - true)) ** power
    [finding] = judged(rng, odds / (1.0 + odds), true)
    assert finding.kind == "calibration"
    assert words in finding.text


def test_labels_at_random_explain_little(rng: np.random.Generator) -> None:
    codes, given = rng.integers(0, 3, N), rng.integers(0, 3, N)
    kinds = [finding.kind for finding in label_findings(class_metrics(("a", "b", "c"), codes, given))]
    assert kinds == ["explains little"]


def test_a_rare_class_that_is_missed(rng: np.random.Generator) -> None:
    codes = (rng.random(N) < 0.03).astype(np.int64)
    never = label_findings(class_metrics(("common", "rare"), codes, np.zeros(N, np.int64)))
    assert [finding.kind for finding in never] == ["explains little", "missed classes"]
    assert "'rare' (never predicted" in never[1].text
    some = np.where(rng.random(N) < 0.1, codes, 0)
    [finding] = label_findings(class_metrics(("common", "rare"), codes[:N], some))[-1:]
    assert "of its samples are told" in finding.text
    most = np.where(rng.random(N) < 0.8, codes, 0)
    assert label_findings(class_metrics(("common", "rare"), codes, most)) == []


def test_few_samples_tell_nothing() -> None:
    codes = np.arange(29) % 2
    assert label_findings(class_metrics(("a", "b"), codes, 1 - codes)) == []
