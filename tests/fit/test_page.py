"""The page of a fit, from documents that are changed: what is shown where it is there, and escaped."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import open_dataset, open_prediction
from dkgp.fit import page as page_module
from dkgp.fit.job import FitJob
from dkgp.fit.page import _candidates, inlined, page, write_page
from dkgp.fit.run import run_fit
from tests.cli.invoke import run_json
from tests.fit.html import check_page, read
from tests.fit.tables import HOSTILE, write_messy


@pytest.fixture
def document(fitted: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(fitted)


def test_without_matplotlib_it_says_so(
    document: dict[str, Any], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = page(document, {}, drawable=False)
    check_page(shown)
    assert "No pictures, because matplotlib is not installed" in shown
    assert "<svg" not in shown
    monkeypatch.setattr("dkgp.fit.page.importlib.util.find_spec", lambda name: None)
    job = type("Job", (), {"place": lambda self, name: str(tmp_path / name)})()
    assert write_page(job, document) == {"page": str(tmp_path / "report.html"), "pictures": 0}
    assert "No pictures" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_verdict_is_shown_where_there_is_one(document: dict[str, Any]) -> None:
    document["evaluation"].pop("verdict", None)
    assert "Verdict" not in page(document, {})
    document["evaluation"]["verdict"] = [
        {
            "kind": "coverage",
            "text": f"intervals of {HOSTILE} are too narrow",
            "advice": "try <em>log</em> & `kernel_seconds`",
        },
        {"kind": "fit", "text": "the residuals are skewed", "advice": None},
    ]
    shown = page(document, {})
    check_page(shown)
    assert shown.index("<h2>Verdict</h2>") < shown.index("<h2>Data</h2>")
    assert "intervals of &lt;script&gt;" in shown
    assert "try &lt;em&gt;log&lt;/em&gt; &amp; --kernel-seconds" in shown
    assert "None" not in shown.partition("<h2>Verdict</h2>")[2].partition("<h2>")[0]


def test_nothing_wrong_is_said_as_well(document: dict[str, Any]) -> None:
    document["evaluation"] |= {"verdict": [], "n": 116, "effective_samples": 116.0, "nlpd_raw": 6.276, "nlpd": 0.6474}
    shown = page(document, {})
    assert "No problem found on these 116 test samples." in shown
    assert "6.276" in shown
    assert "0.6474" not in shown
    document["evaluation"]["n"] = 5
    assert "too few for a verdict" in page(document, {})


@pytest.mark.long
@pytest.mark.parametrize("transform", [None, "log"])
def test_the_residuals_that_are_drawn_are_on_the_scale_that_is_modelled(
    transform: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((150, 1))
    y = np.exp(5.0 + np.sin(6.0 * X[:, 0]) + 0.3 * rng.standard_normal(150))
    np.savez(tmp_path / "d.npz", X=X, y=y)
    ingestion = IngestJob((str(tmp_path / "d.npz"),), "", ("y",), test_fraction=0.4, transform=transform)
    run_fit(FitJob(ingestion, str(tmp_path / "fit"), kernel="rbf", auto_transform=False), SilentReporter())
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(page_module, "plot_residuals", lambda path, *parts, **named: drawn.append((*parts, named)))
    monkeypatch.setattr(page_module, "inlined", lambda draw, name: draw(tmp_path / "p.svg"))
    monkeypatch.setattr(page_module, "plot_predictions", lambda *parts, **named: None)
    prediction, test = open_prediction(tmp_path / "fit" / "pred.zarr"), open_dataset(tmp_path / "fit" / "test.zarr")
    page_module.regression_pictures(prediction, test)
    ((truth, mean, standardised, named),) = drawn
    assert named["of_prediction"]
    deviation, inside = np.sqrt(prediction.read("variance")), prediction.read("mean")
    targets = test.targets(0, test.n_samples, standardised=False)
    forward = np.log(targets) if transform else targets
    np.testing.assert_allclose(standardised, (forward - inside) / deviation, rtol=0.02)
    np.testing.assert_array_equal(truth, targets)
    assert 0.3 < standardised.std() < 3.0
    # In the target's units the mean of what is skewed lies above the exponential of its mean logarithm.
    assert (mean > np.exp(inside)).all() if transform else np.array_equal(mean, inside)


def test_every_text_of_the_document_is_escaped(document: dict[str, Any]) -> None:
    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hostile(each) for key, each in value.items()}
        if isinstance(value, list):
            return [hostile(each) for each in value]
        return f"<img src=x onerror=alert(1)>{value}" if isinstance(value, str) else value

    kernels = {name: document["tune"][name] for name in ("kernel", "parameters")}
    attacked = hostile(document)
    attacked["tune"] |= kernels
    attacked["choice"]["way"]["name"] = document["choice"]["way"]["name"]
    shown = page(attacked, {})
    check_page(shown)
    assert "img" not in read(shown).tags
    assert shown.count("&lt;img src=x") > 15


def test_a_search_that_a_bound_stopped_is_told_of(document: dict[str, Any]) -> None:
    shown = page(document, {})
    assert "tuning has not converged" not in shown
    document["tune"]["converged"] = False
    noise = next(item for item in document["tune"]["parameters"] if item["name"] == "noise_variance")
    noise |= {"value": 1e-6, "bound": "lower", "pressed": True}
    gamma = next(item for item in document["tune"]["parameters"] if "gamma" in item["name"])
    gamma |= {"value": 1e-8, "bound": "lower"}
    shown = page(document, {})
    check_page(shown)
    assert "tuning has not converged</th><td>noise_variance stopped at its lower bound, 1e-06</td>" in shown
    assert ">irrelevant<" in shown.partition("<h2>Importance of the features</h2>")[2]


def test_features_are_shown_by_relevance(document: dict[str, Any]) -> None:
    for number, item in enumerate(document["tune"]["parameters"]):
        if "gamma" in item["name"]:
            item["value"] = 10.0**-number
    shown = page(document, {}).partition("<h2>Importance of the features</h2>")[2].partition("</section>")[0]
    widths = [float(part.partition("%")[0]) for part in shown.split("width:")[1:]]
    assert len(widths) == document["ingest"]["d"]
    assert widths[0] == 100.0
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] > 0.0


def test_a_picture_within_a_page_names_and_fetches_nothing_of_its_own() -> None:
    def draw(path: Path) -> None:
        path.write_text(
            '<?xml version="1.0"?><!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/svg11.dtd">\n'
            '<svg xmlns="http://www.w3.org/2000/svg" version="1.1"><!-- <script> --><metadata><a>x</a></metadata>'
            '<defs><style type="text/css">*{color: red}</style><path id="m"/></defs>'
            '<use xlink:href="#m" clip-path="url(#m)"/></svg>'
        )

    assert inlined(draw, "one") == (
        '<svg><defs><path id="one-m"/></defs><use href="#one-m" clip-path="url(#one-m)"/></svg>'
    )


def test_several_targets_and_few_samples(tmp_path: Path) -> None:
    table, out = write_messy(tmp_path / "few.csv", 16), tmp_path / "fit"
    arguments = ("--target", "price", "--target", "depth", "--drop", "kind", "--out", out)
    document = run_json("fit", table, *arguments)
    assert document["tune"].get("comparison") is None
    assert "--kernel rbf" in document["commands"][1]
    shown = Path(document["report"]).read_text(encoding="utf-8")
    check_page(shown)
    assert "price, depth from 5 features" in shown
    assert all(f"root mean square error, {name} (units of {name})" in shown for name in ("price", "depth"))


def test_hyperparameters_without_a_comparison_name_no_samples() -> None:
    compared = {"held_out": 0, "samples": 0, "taken": "a subset", "candidates": [], "not_tried": []}
    compared["not_tried"] = [{"from": "the likelihood of all samples", "reason": "forecast 12 s"}]
    shown = _candidates(compared)
    assert "No candidate was compared" in shown
    assert "not tried: forecast 12 s" in shown
    assert "leave-one-out" not in shown
