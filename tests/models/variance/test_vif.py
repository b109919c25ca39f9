"""Approximate variances of an exact model, from neighbours (VIF)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.tables import _predicted_variances
from dkgp.data import open_prediction
from dkgp.errors import InputError, InterruptedRunError
from dkgp.models.context import RunContext
from dkgp.models.metrics import evaluate
from dkgp.models.prediction.classes import latent_settings
from dkgp.models.prediction.exact import ExactPosterior
from dkgp.models.prediction.posterior import Want
from dkgp.models.prediction.predict import Destination, PredictSummary, predict
from dkgp.models.sparse.near import NearPredictor
from dkgp.models.variance.settings import VarianceSettings
from tests.models.variance.variance_world import World
from tests.resuming import Wish


def predicted(world: World, executor: BlockExecutor, url: Path, **settings: Any) -> PredictSummary:
    return predict(world.model, world.test, str(url), executor, variance=VarianceSettings(way="vif", **settings))


@pytest.mark.parametrize("latent", [False, True])
def test_they_are_near_the_exact_ones_and_have_no_interval(
    world: World, executor: BlockExecutor, tmp_path: Path, latent: bool
) -> None:
    """400 smooth samples: a basis of 200 explains nearly everything."""
    summary = predicted(world, executor, tmp_path / "p", latent=latent)
    stored = open_prediction(str(tmp_path / "p"))
    exact = world.latent if latent else world.latent + world.noise
    np.testing.assert_allclose(stored.read("variance"), exact, rtol=0.02)
    assert not {"variance_lower", "variance_upper"} & set(stored.variables)
    assert stored.attributes["variance"]["way"] == "vif"
    assert summary.variance is not None
    assert summary.variance["approximate"]
    assert summary.variance["computed"] == world.test.n_samples
    assert summary.largest_mean_error_bound is not None
    figures = evaluate(stored, world.test)
    assert figures["nlpd"] is not None
    assert figures["variance_approximate"]
    assert "variance_gap_mean" not in figures
    assert "nlpd_range" not in figures


def test_few_neighbours_are_on_the_safe_side(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variances conditioned on fewer samples are larger."""
    behind = NearPredictor._behind
    monkeypatch.setattr(NearPredictor, "_behind", lambda self, new, row, places: behind(self, new, row, places[:2]))
    predicted(world, executor, tmp_path / "p", latent=True)
    assert (open_prediction(str(tmp_path / "p")).read("variance") >= 0.98 * world.latent).all()


def test_a_prediction_goes_on_by_its_own_way(
    world: World, executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def posterior(begun: str, way: str) -> ExactPosterior:
        plan = {"way": begun, **of_vif}
        want = Want("", executor, VarianceSettings(way=way), test=world.test, stored={"variance": plan})
        return ExactPosterior(world.model, want)

    of_vif: dict[str, Any] = {}
    want = Want("", executor, VarianceSettings(way="vif"), test=world.test)
    of_vif = dict(ExactPosterior(world.model, want).attributes["variance"])
    del of_vif["way"]
    assert posterior("vif", "auto").attributes["variance"]["way"] == "vif"
    for begun, way in (("vif", "cholesky"), ("cholesky", "vif")):
        with pytest.raises(InputError, match=f"started with the `way` {begun}, not the `way` {way}"):
            posterior(begun, way)


def test_settings_of_proven_variances_are_refused() -> None:
    with pytest.raises(InputError, match="`rank` can be set only for the `way` .iterative.; got .vif."):
        VarianceSettings(way="vif", rank=10)


def test_two_runs_have_the_same_bits(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    for name in ("a", "b"):
        out = Destination(str(tmp_path / name), chunk_rows=30)
        predict(world.model, world.test, out, executor, variance=VarianceSettings(way="vif"))
    one, two = (open_prediction(str(tmp_path / name)).read("variance") for name in ("a", "b"))
    assert np.array_equal(one, two)


def test_an_interrupted_run_resumes_to_the_same_bits(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    def run(name: str, *, resume: bool = False, end: Wish | None = None) -> PredictSummary:
        context = RunContext(executor, interrupted=end)
        out = Destination(str(tmp_path / name), chunk_rows=10, resume=resume)
        return predict(world.model, world.test, out, context, variance=VarianceSettings(way="vif", batch_size=10))

    run("whole")
    with pytest.raises(InterruptedRunError):
        run("out", end=Wish(2))
    resumed = run("out", resume=True)
    assert resumed.variance is not None
    assert 0 < resumed.variance["computed"] < world.test.n_samples
    whole, out = (open_prediction(str(tmp_path / name)) for name in ("whole", "out"))
    assert whole.variables == out.variables
    assert all(np.array_equal(whole.read(name), out.read(name)) for name in whole.variables)


@pytest.mark.parametrize("way", ["vif", "cholesky", "neighbours"])
def test_a_classifier_refuses_ways_of_regressions(way: str) -> None:
    with pytest.raises(InputError, match=f"the `way` {way} gives variances of a regression; .*Leave the `way` out"):
        latent_settings(VarianceSettings(way=way))


@pytest.mark.parametrize("way", ["auto", "iterative"])
def test_a_classifier_takes_its_own_way(way: str) -> None:
    assert latent_settings(VarianceSettings(way=way)) == VarianceSettings(way=way, latent=True)


def test_a_prediction_is_reported_as_approximate() -> None:
    """With the numbers of neighbours and of the basis, and without the width of an interval."""
    figures = {"way": "vif", "approximate": True, "latent": False, "basis_size": 200, "neighbours": 128}
    rows = dict(_predicted_variances({"variance": {**figures, "seconds_per_sample": 0.00125}}))
    assert rows == {
        "variances of": "new observations, noise included",
        "variances": "approximate, from neighbours (VIF): 128 samples near each and a basis of 200",
        "milliseconds per variance": "1.25",
    }
