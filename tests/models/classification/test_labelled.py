"""What every classifier is trained on is checked once; and what its checkpoints belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.models import RunContext
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.solvers import Checkpointing

N = 30


def labelled(weights: Any = None, n_labels: int = N, n_classes: int = 2) -> LabelledData:
    codes = np.arange(N) % 2
    dataset = memory_dataset(np.arange(2.0 * N).reshape(N, 2), codes.astype(np.float64))
    return LabelledData(dataset, Labels(tuple("abc"[:n_classes]), np.arange(n_labels) % 2), weights)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_labels": 7}, "labels of 7 samples; .* has 30"),
        ({"weights": np.ones(3)}, r"`weights` have shape \(3,\); expected \(30,\), one for each sample"),
        ({"weights": np.where(np.arange(N) == 7, -1.0, 1.0)}, "finite and not negative; got -1.0 for sample 7"),
        ({"weights": np.where(np.arange(N) == 7, np.nan, 1.0)}, "finite and not negative; got nan for sample 7"),
        ({"weights": np.where(np.arange(N) == 7, np.inf, 1.0)}, "finite and not negative; got inf for sample 7"),
        ({"weights": np.arange(N) % 2}, "the samples of the class 'a' have weight 0 in all"),
        ({"weights": 1 - np.arange(N) % 2}, "the samples of the class 'b' have weight 0 in all"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        labelled(**given)


def test_weights_are_summed_up_by_class() -> None:
    assert labelled().class_weights() is None
    # One of three classes has no sample, and no weight either.
    weights = labelled([1, 5] * 14 + [3, 7], n_classes=3).class_weights()
    assert weights == pytest.approx({"a": (14 + 3) / 15, "b": (14 * 5 + 7) / 15})


def test_checkpoints_belong_to_labels_weights_and_settings(tmp_path: Path) -> None:
    with_weights, plain, several = labelled(np.full(N, 2.0)), labelled(), labelled(n_classes=3)
    checkpointing = Checkpointing(CheckpointStore(str(tmp_path)), 0.0, identity={"run": 1})
    context = RunContext(LocalExecutor(1), checkpointing=checkpointing)
    identities = []
    for data, settings in ((plain, {}), (plain, {"seed": 1}), (with_weights, {}), (several, {})):
        owned = data.identified(context, **settings).checkpointing
        assert owned is not None
        assert owned.identity["run"] == 1
        identities.append(owned.identity)
    assert all(first != second for i, first in enumerate(identities) for second in identities[:i])
    assert labelled().identity == plain.identity
    assert RunContext(context.executor) == plain.identified(RunContext(context.executor))
