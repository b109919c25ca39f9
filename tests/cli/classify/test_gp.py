"""A Gaussian process classifier from the command line: tuned, trained, predicted in proven intervals, evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.data import open_prediction
from tests.cli.invoke import document_of, run, run_json


def test_tuned_trained_predicted_and_evaluated(labelled: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    stores, hyper, model, out = labelled(3), tmp_path / "h.json", tmp_path / "m.zarr", tmp_path / "p.zarr"
    here = ("--cluster", "none")
    run_json(
        "tune",
        stores["train"],
        "--out",
        hyper,
        "--likelihood",
        "logit",
        "--subset",
        40,
        "--kernel",
        "rbf(isotropic=True)",
        *here,
    )
    trained = run(
        "classify",
        stores["train"],
        "--out",
        model,
        "--method",
        "gp",
        "--solver",
        "newton",
        "--hyper",
        hyper,
        "--json",
        *here,
    )
    assert document_of(trained)["warnings"] == []
    narrow = ("--variance", "--variance-gap", 1e-14, "--max-passes", 0, "--variance-rank", 5)
    told = run("predict", model, stores["test"], "--out", out, *narrow, *here)
    assert "latent variances have wider intervals than the relative gap" in " ".join(told.stderr.split())
    assert "latent variances" in told.stdout
    figures = run_json("predict", model, stores["test"], "--out", out, "--overwrite", *here)
    assert figures["warnings"] == []
    assert figures["classes"]["latent_variance"]["unmet"] == 0
    stored = open_prediction(str(out))
    lower, probability, upper = (stored.read(f"probability{end}") for end in ("_lower", "", "_upper"))
    assert ((lower <= probability) & (probability <= upper)).all()
    np.testing.assert_array_equal(stored.labels(), probability.argmax(axis=1))
    scores = run_json("evaluate", out, stores["test"])
    assert scores["log_loss"] < np.log(3.0)
