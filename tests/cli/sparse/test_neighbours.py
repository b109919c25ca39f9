"""`dkgp sparse --method vif` from the command line, and what other commands make of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_prediction
from dkgp.data.stores.models.regression import open_sparse_model
from tests.cli.invoke import refused, run, run_json


def made(pipeline: dict[str, Any], folder: Path, *more: object) -> dict[str, Any]:
    train, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    options = ("--hyper", hyper, "--out", folder / "vif.zarr", "--method", "vif", "--basis-size", 30)
    return run_json("sparse", train, *options, *more)


def test_a_model_predicts_is_evaluated_and_told_of(pipeline: dict[str, Any], tmp_path: Path) -> None:
    found = made(pipeline, tmp_path, "--neighbours", 60)
    assert (found["method"], found["neighbours"], found["settings"]["neighbours"]) == ("vif", 60, 60)
    assert found["elbo"] is None
    assert np.isfinite(found["log_likelihood"])
    assert found["seconds_by_part"]["neighbours"] > 0.0
    model, test = tmp_path / "vif.zarr", pipeline["ingest"]["test"]
    predicted = run_json("predict", model, test, "--out", tmp_path / "pred.zarr", "--variance")
    assert predicted["variance"]["method"] == "vif"
    evaluated = run_json("evaluate", tmp_path / "pred.zarr", test)
    assert evaluated["method"] == "vif"
    assert "rms_bound" not in evaluated
    # The basis alone, and the exact model, on the same data.
    options = ("--hyper", pipeline["tune"]["out"], "--basis-size", 30, "--out", tmp_path / "vfe.zarr")
    run_json("sparse", pipeline["ingest"]["train"], *options)
    run_json("predict", tmp_path / "vfe.zarr", test, "--out", tmp_path / "vfe.pred.zarr")
    exact = open_prediction(pipeline["predict"]["out"]).read("mean", 0, 40)
    store = open_prediction(tmp_path / "pred.zarr")
    mean, bound = (store.read(name, 0, 40) for name in ("mean", "mean_error_bound"))
    alone = open_prediction(tmp_path / "vfe.pred.zarr").read("mean", 0, 40)
    assert np.sqrt(np.mean((mean - exact) ** 2)) < 0.5 * np.sqrt(np.mean((alone - exact) ** 2))
    assert (np.abs(mean - exact) <= bound + 1e-6).all()
    shown = " ".join(run("evaluate", tmp_path / "pred.zarr", test).stdout.split())
    assert "variances by vif" in shown
    told = run_json("info", model)
    assert (told["method"], told["basis_size"], told["elbo"]) == ("vif", 30, None)
    assert "distance of the basis' mean from the exact one" in " ".join(run("info", model).stdout.split())
    # Without variances the mean is the same, and the bound another.
    again = run_json("predict", model, test, "--out", tmp_path / "lean.zarr")
    assert again["variance"] is None
    np.testing.assert_array_equal(open_prediction(tmp_path / "lean.zarr").read("mean", 0, 40), mean)


def test_a_search_that_was_limited_is_told_of(pipeline: dict[str, Any], tmp_path: Path) -> None:
    options = ("--neighbours", 20, "--search-samples", 45)
    share = made(pipeline, tmp_path, *options)["neighbours_unproven"]
    assert 0.2 < share < 1.0
    train, hyper, model = pipeline["ingest"]["train"], pipeline["tune"]["out"], tmp_path / "vif.zarr"
    again = ("--hyper", hyper, "--out", model, "--method", "vif", "--basis-size", 30, "--overwrite", *options)
    shown = " ".join(run("sparse", train, *again).stdout.split())
    assert f"neighbours not proven nearest {100.0 * share:.3g} % of the samples (of 45 looked at)" in shown
    predicted = run("predict", model, pipeline["ingest"]["test"], "--out", tmp_path / "pred.zarr")
    assert "each search looked at 45 samples at most, and is exact with more" in " ".join(predicted.output.split())


def test_what_is_finished_is_known_and_other_neighbours_are_another_run(
    pipeline: dict[str, Any], tmp_path: Path
) -> None:
    first = made(pipeline, tmp_path)
    assert made(pipeline, tmp_path, "--resume")["log_likelihood"] == first["log_likelihood"]
    train, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    options = ("--hyper", hyper, "--out", tmp_path / "vif.zarr", "--method", "vif", "--basis-size", 30)
    other = run("sparse", train, *options, "--neighbours", 60, "--resume")
    refused(other, "neighbours (its neighbours: 128; this run's: 60)")


@pytest.mark.slow
def test_worker_processes_make_and_predict_the_same_bits(pipeline: dict[str, Any], tmp_path: Path) -> None:
    records, means = [], []
    for name, cluster in (("none", ("--cluster", "none")), ("two", ("--workers", 2)), ("three", ("--workers", 3))):
        (tmp_path / name).mkdir()
        made(pipeline, tmp_path / name, *cluster)
        out = tmp_path / name / "pred.zarr"
        run_json("predict", tmp_path / name / "vif.zarr", pipeline["ingest"]["test"], "--out", out, *cluster)
        records.append(open_sparse_model(tmp_path / name / "vif.zarr"))
        means.append(open_prediction(out).read("mean", 0, open_prediction(out).n_samples))
    for record, mean in zip(records[1:], means[1:], strict=True):
        np.testing.assert_array_equal(record.near_weights, records[0].near_weights)
        np.testing.assert_array_equal(record.near_normal, records[0].near_normal)
        np.testing.assert_array_equal(mean, means[0])
