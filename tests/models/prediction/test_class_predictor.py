"""A classifier's predictor of rows in memory, against a naive sum over its points."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.codec import from_json, to_json
from dkgp.data import memory_classifier, memory_dataset
from dkgp.data.stores.models.classifier import FixedSizeRecord
from dkgp.data.stores.models.model import about_model
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.calibration import Calibration
from tests.models.posteriors import class_posterior

KERNEL = SquaredExponential(gamma=(0.7, 0.2))


def fixed_size(rng: np.random.Generator, names: tuple[str, ...], calibrated: bool = True) -> FixedSizeRecord:
    t = 1 if len(names) == 2 else len(names)
    dataset = memory_dataset(rng.normal(size=(30, 2)) * (3.0, 0.1) + 5.0, np.arange(30) % len(names), classes=names)
    calibration = Calibration(rng.uniform(1.0, 3.0, size=t), rng.normal(size=t))
    return memory_classifier(
        FixedSizeRecord(
            **about_model(dataset, kernel=KERNEL.to_json(), noise_variance=0.1),
            classes=names,
            intercept=rng.normal(size=t),
            prototypes=rng.normal(size=(7, 2)),
            weights=rng.normal(size=(7, t)),
            calibration=to_json(calibration) if calibrated else None,
        )
    )


@pytest.mark.parametrize("names", [("no", "yes"), ("ape", "bee", "cat")])
def test_decisions_are_sums_over_prototypes(rng: np.random.Generator, names: tuple[str, ...]) -> None:
    record = fixed_size(rng, names)
    # More than one piece.
    X = rng.normal(size=(3000, 2)) * (3.0, 0.1) + 5.0
    known = KERNEL(record.standardisation.inputs(X), record.prototypes) @ record.weights + record.intercept
    found = class_posterior(record, f"test-sums-{len(names)}")(X)
    np.testing.assert_allclose(found["decision"], known, rtol=1e-10, atol=1e-12)
    codes = (known[:, 0] >= 0.0).astype(int) if len(names) == 2 else known.argmax(axis=1)
    np.testing.assert_array_equal(found["class"].astype(int), codes)
    assert record.calibration is not None
    np.testing.assert_allclose(found["probability"], from_json(Calibration, record.calibration).probabilities(known))


def test_what_is_not_there_is_said(rng: np.random.Generator) -> None:
    predictor = class_posterior(fixed_size(rng, ("no", "yes"), calibrated=False), "test-missing")
    found = predictor(np.zeros((2, 2)))
    assert "decision_error_bound" not in found
    with pytest.raises(InputError, match="trained without probabilities"):
        _ = found["probability"]
    with pytest.raises(InputError, match="proves nothing of an exact one"):
        _ = found["certified"] > 0.0
