"""Class weights that a search considers by itself where a class is rare: which, and words for what was taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.labels import Labels, label_weights, rare_class
from dkgp.operators.base import FloatArray


def considered_weights(
    settings: FixedSizeSettings, labels: Labels, sample_weight: ArrayLike | None = None
) -> FloatArray | None:
    """Balanced weights (n,) for a search to hold against those of the samples alone, where nobody said which to take.

    None where no class is rare, or the search is one that looks at a single weighing. Errors are those of
    `label_weights`.
    """
    if not settings.judges_by_pools or rare_class(labels) is None:
        return None
    return label_weights(labels, "balanced", sample_weight)


def weighing_words(summary: Mapping[str, Any]) -> str:
    """Say which class weights a search that considered some has taken, and what they change.

    `summary` is that of training: `weighted`, and `weighings` with the errors of both.
    """
    plain, balanced = summary["weighings"]
    taken, other = (balanced, plain) if summary["weighted"] else (plain, balanced)
    which = "balanced" if summary["weighted"] else "none"
    return (
        f"class weights were considered, and taken: {which}. Balanced error {taken['balanced_error']:.2%}, error "
        f"{taken['error']:.2%}; the other way {other['balanced_error']:.2%} and {other['error']:.2%}"
    )
