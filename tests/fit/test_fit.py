"""`dkgp fit`: all steps, what they leave, going on, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.codec import from_json, to_json
from dkgp.commands.ingest import IngestJob, run_ingest
from dkgp.commands.recipe import RECIPES, Recipe
from dkgp.commands.reporting.layout import plain_number
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import TableOptions, open_dataset, open_prediction
from dkgp.errors import DkgpError, InterruptedRunError
from dkgp.fit.choice import Forecasts
from dkgp.fit.job import FitJob, candidate_words, chosen_kernel
from dkgp.fit.run import _Fit
from dkgp.fit.ways import Way, command_lines
from dkgp.models import read_hyperparameters
from dkgp.models.hyperparameters import TunedParameter
from dkgp.models.verdict import BOOSTING
from tests.cli.invoke import files_below, refused, run, run_json
from tests.fit.conftest import PRICE
from tests.fit.html import check_page
from tests.fit.tables import HOSTILE, write_messy


def test_the_reader_sees_what_is_wrong() -> None:
    with pytest.raises(AssertionError):
        check_page("<p><b>bold</p>")
    with pytest.raises(AssertionError):
        check_page('<p><img src="https://example.org/a.png"></p>')
    check_page('<p><svg><path id="a"/><use href="#a"/></svg><br></p>')


def test_a_messy_table_becomes_an_evaluated_model(fitted: dict[str, Any]) -> None:
    out = Path(fitted["out"])
    assert fitted["converged"] is True
    assert {path.name for path in out.iterdir()} == {
        *("train.zarr", "test.zarr", "hyper.json", "model.zarr", "pred.zarr", "report.html", "fit.json")
    }
    train, test = open_dataset(str(out / "train.zarr")), open_dataset(str(out / "test.zarr"))
    assert "id" not in train.feature_names
    assert {HOSTILE, "cut=fair", "cut=good", "cut=ideal", "depth", "sold"} == set(train.feature_names)
    assert test.n_samples == round(0.1 * (train.n_samples + test.n_samples))
    prediction = open_prediction(str(out / "pred.zarr"))
    errors = prediction.read("mean") - test.all_targets(standardised=False)
    assert fitted["evaluation"]["rmse_raw"] == pytest.approx(float(np.sqrt(np.mean(errors**2))))
    assert fitted["evaluation"]["rmse"] < 0.5  # the mean alone has about 1
    assert "variance" in prediction.variables
    assert json.loads((out / "fit.json").read_text())["evaluation"] == fitted["evaluation"]
    assert list(fitted["seconds_by_phase"]) == [
        *("ingest", "transform", "tune", "choose", "train", "predict", "evaluate", "compare", "report")
    ]
    assert fitted["transform"]["transform"] is None


def test_the_kernel_is_the_one_of_the_least_held_out_density(fitted: dict[str, Any]) -> None:
    comparison = fitted["tune"]["comparison"]
    best = min(comparison["kernels"], key=lambda row: row["nlpd"])
    assert comparison["kernel"] == best["kernel"]
    assert read_hyperparameters(str(Path(fitted["out"]) / "hyper.json")).comparison == comparison


def test_columns_are_told_of_with_a_line_to_paste(table: Path, fitted: dict[str, Any], tmp_path: Path) -> None:
    suggested = fitted["ingest"]["suggested"]
    words = shlex.split(suggested)
    assert {("--categorical", "cut"), ("--date", "sold")} <= set(itertools.pairwise(words))
    assert any("'cut': text of 3 different values" in line for line in fitted["ingest"]["columns"])
    result = run("ingest", table, tmp_path / "all.zarr", "--target", PRICE, *shlex.split(suggested))
    assert result.exit_code == 0, result.stderr
    assert "reading columns with these options" not in result.stderr


def test_a_table_written_for_people_is_read_as_numbers_and_said_so(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, share = rng.normal(0.0, 2000.0, 40).round(2), rng.uniform(0.0, 100.0, 40).round(1)
    marks = str.maketrans(",.", ".,")
    lines = [f"{a:,.2f};{b} %;{a / 7 + b:,.3f} €".translate(marks) for a, b in zip(x, share, strict=True)]
    path = tmp_path / "werte.csv"
    path.write_text("\n".join(["menge;anteil;preis", *lines]) + "\n", encoding="utf-8")
    job = FitJob(IngestJob((str(path),), targets=("preis",)), out=str(tmp_path / "fit"))
    job.folder.mkdir()
    notes: list[str] = []
    reporter = SilentReporter()
    monkeypatch.setattr(reporter, "note", notes.append)
    document = _Fit(job, reporter)._ingest()
    assert document["features"] == ["menge", "anteil"]
    assert document["suggested"] == "--number anteil,preis --decimal , --thousands ."
    assert any("reads like numbers with a decimal comma and '%' at the end" in line for line in notes)
    stores = [open_dataset(job.place(name)) for name in ("train.zarr", "test.zarr")]
    values = np.concatenate([store.raw_inputs(0, store.n_samples) for store in stores])
    np.testing.assert_array_equal(np.sort(values[:, 0]), np.sort(x))
    np.testing.assert_array_equal(np.sort(values[:, 1]), np.sort(share))


def test_the_commands_of_a_fit_give_the_same_one_by_one(
    fitted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [shlex.split(line) for line in fitted["commands"]]
    assert [line[:2] for line in lines] == [
        ["dkgp", name] for name in ("ingest", "tune", "train", "predict", "evaluate")
    ]
    # As printed, in the place of the fit, and once more: no file is in the way, and none of the fit's is touched.
    before = files_below(Path(fitted["out"]))
    run_json(*lines[0][1:])
    documents = [run_json(*line[1:]) for line in lines]
    assert files_below(Path(fitted["out"])) == before
    assert lines[1][lines[1].index("--kernel") + 1] == fitted["tune"]["comparison"]["kernel"]
    made = [open_prediction(f"{fitted['out']}{end}/pred.zarr") for end in ("", "-again")]
    for name in ("mean", "variance_lower", "variance_upper"):
        np.testing.assert_array_equal(*(prediction.read(name) for prediction in made))
    hyper = [read_hyperparameters(f"{fitted['out']}{end}/hyper.json") for end in ("", "-again")]
    assert hyper[0].kernel == hyper[1].kernel
    assert documents[0]["fingerprint"] == fitted["ingest"]["fingerprint"]
    assert documents[1]["noise_variance"] == fitted["tune"]["noise_variance"]
    assert documents[-1]["rmse"] == fitted["evaluation"]["rmse"]
    assert documents[-1]["nlpd"] == fitted["evaluation"]["nlpd"]


def test_commands_read_the_hyperparameters_of_a_fit_whose_evidence_was_cut_short(
    table: Path, fitted: dict[str, Any]
) -> None:
    # The time limit decided how many samples the evidence had, so tuning again may end in other values.
    record = {"candidates": [{"from": "subset"}, {"from": "all"}], "taken": "all", "held_out": 100, "learned_from": 500}
    tuning = candidate_words({"candidates": record}, 1000, 60.0)
    job = FitJob(IngestJob((str(table),), targets=(PRICE,)), out=fitted["out"], kernel="rbf")
    ingested = fitted["ingest"]
    options = from_json(TableOptions, ingested["table"])
    printed = command_lines(job, options, ingested["ids"], fitted["choice"], tuning)
    lines = [shlex.split(line) for line in printed]
    assert [line[1] for line in lines] == ["ingest", "train", "predict", "evaluate"]
    assert lines[1][lines[1].index("--hyper") + 1] == f"{fitted['out']}/hyper.json"
    documents = [run_json(*line[1:]) for line in lines]
    assert documents[0]["fingerprint"] == ingested["fingerprint"]
    made = [open_prediction(f"{fitted['out']}{end}/pred.zarr") for end in ("", "-again")]
    np.testing.assert_array_equal(*(prediction.read("mean") for prediction in made))


def test_the_page_stands_alone_and_names_are_text(fitted: dict[str, Any]) -> None:
    page = Path(fitted["report"]).read_text(encoding="utf-8")
    check_page(page)
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(&#x27;carat&#x27;)&lt;/script&gt;" in page
    assert "price &amp; &lt;b&gt;$tax" in page
    assert page.count("<svg") == 2
    assert fitted["choice"]["reason"].split(". ")[0] in page
    assert plain_number(fitted["evaluation"]["rmse_raw"]) in page
    assert f">{plain_number(fitted['evaluation']['r_squared'])}<" in page
    assert "e+0" not in re.sub("<(style|svg|pre).*?</(style|svg|pre)>", "", page, flags=re.DOTALL)
    assert f"root mean square error of {BOOSTING}</th>" in page
    assert fitted["evaluation"]["compare"]["boosting_rows"] == fitted["ingest"]["n_train"]


def test_a_fit_killed_at_every_step_goes_on_and_does_none_again(
    table: Path, fitted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "fit"
    arguments = ("fit", table, "--target", PRICE, "--drop", "kind", "--out", out)
    places = {
        "transform": "dkgp.fit.run.compare_transforms",
        "tune": "dkgp.commands.searches.run_tune",
        "choose": "dkgp.fit.choice.Forecasts",
        "train": "dkgp.commands.tuned.run_train",
        "predict": "dkgp.commands.predict.run.PredictRun",
        "evaluate": "dkgp.commands.evaluation.run_evaluate",
        "compare": "dkgp.fit.run.run_evaluate",
        "report": "dkgp.fit.run.write_page",
    }

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    resume: tuple[str, ...] = ()
    done = ["ingest"]
    for step, place in places.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, killed)
            result = run(*arguments, *resume)
        assert result.exit_code == 130, result.stderr
        record = json.loads((out / "fit.json").read_text())
        assert list(record["phases"]) == done
        assert record["finished"] is False
        done.append(step)
        resume = ("--resume",)
    written = {
        name: (out / name / "zarr.json").stat().st_mtime_ns for name in ("train.zarr", "model.zarr", "pred.zarr")
    }
    refused(run(*arguments, "--seed", 1, "--resume"), "has another seed (its seed: 0; this run's: 1)")
    refused(run(*arguments), "already exists", "--resume", "--overwrite")
    document = run_json(*arguments, "--resume")
    assert {name: (out / name / "zarr.json").stat().st_mtime_ns for name in written} == written
    for name in ("rmse", "nlpd", "coverage_95"):
        assert document["evaluation"][name] == fitted["evaluation"][name]
    assert run_json(*arguments, "--resume") == document
    check_page(Path(document["report"]).read_text(encoding="utf-8"))


def test_a_slower_machine_has_a_sparse_model_and_says_why(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ways(self: Forecasts) -> Iterator[Way]:
        yield Way("exact", None, 0.02, 7000.0, 300.0, 2**29)
        yield Way("sparse", 20, None, 3.0, 1.0, 2**29)
        raise AssertionError("what comes after the way that is taken is not foreseen")

    monkeypatch.setattr("dkgp.fit.choice.FEW_SAMPLES", 0)
    monkeypatch.setattr(Forecasts, "ways", ways)
    arguments = ("fit", table, "--target", PRICE, "--drop", "kind", "--kernel", "rbf", "--out", tmp_path / "fit")
    document = run_json(*arguments, "--time", "5min")
    assert document["train"]["command"] == "sparse"
    # The basis ends early if fewer samples explain the others.
    assert document["choice"]["way"]["size"] == 20 >= document["train"]["basis_size"] > 10
    assert "would take too long (2.0 h" in document["choice"]["reason"]
    assert "--basis-size 20" in document["commands"][2]
    page = Path(document["report"]).read_text(encoding="utf-8")
    check_page(page)
    assert "sparse model with 20 basis samples" in page


def test_a_budget_that_is_too_small_is_refused_and_a_larger_one_goes_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "fit"
    arguments = ("fit", table, "--target", PRICE, "--drop", "kind", "--kernel", "rbf", "--out", out)
    refused(
        run(*arguments, "--memory", "1MiB"), "--memory is 1.0 MiB; the libraries and compiled code of dkgp alone need"
    )
    refused(run(*arguments, "--time", "0s"), "--time must be positive and finite")
    assert run(*arguments, "--time", "soon").exit_code == 2
    assert not out.exists()
    # Only the time that depends on the samples is a reason to refuse.
    monkeypatch.setattr("dkgp.fit.choice.Chooser._fixed_seconds", lambda fit, way: (0.0, 0.0))
    refused(run(*arguments, "--time", "0.00001s"), "forecast to take ", "of the time limit remain for it. Raise --time")
    assert not (out / "model.zarr").exists()
    written = (out / "train.zarr" / "zarr.json").stat().st_mtime_ns
    assert run_json(*arguments, "--time", "5min", "--resume")["converged"] is True
    assert (out / "train.zarr" / "zarr.json").stat().st_mtime_ns == written


def test_what_is_refused_leaves_nothing(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    refused(
        run("fit", table, "--out", out), "name the column to predict: --target for numbers, or --labels", exit_code=2
    )
    both = ("--target", PRICE, "--labels", "kind")
    refused(run("fit", table, *both, "--out", out), "got both --target (numbers) and --labels (classes)", exit_code=2)
    refused(run("fit", table, "--target", PRICE, "--kernel", "rbff", "--out", out), "rbff")
    refused(run("fit", table, "--target", "cost", "--out", out), "cost")
    refused(run("fit", table, "--target", "kind", "--out", out), "To classify, give --labels kind")
    refused(run("fit", table, "--target", PRICE, "--no-auto-columns", "--out", out), "add these options")
    refused(run("fit", table, "--target", PRICE, "--stratify", "--out", out), "without --labels", exit_code=2)
    assert not out.exists()


def test_the_folder_of_others_is_left_alone(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    (out / "model.zarr").mkdir(parents=True)
    (out / "model.zarr" / "zarr.json").write_text("{}")
    before = files_below(out)
    for more in ((), ("--overwrite",), ("--resume",)):
        refused(
            run("fit", table, "--target", PRICE, "--out", out, *more), "already exists", "It does not belong to a fit"
        )
    assert files_below(out) == before


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of a fit of a table whose noise grows with the price, by one kernel."""
    folder = tmp_path_factory.mktemp("skewed")
    table = write_messy(folder / "cars.csv", 900, noise=0.25)
    arguments = ("--target", "price", "--drop", "kind", "--kernel", "rbf", "--test-fraction", 0.2)
    return run_json("fit", table, *arguments, "--out", folder / "fit")


@pytest.mark.slow
def test_a_price_whose_noise_grows_is_transformed_and_told_of(skewed: dict[str, Any]) -> None:
    compared, out = skewed["transform"], Path(skewed["out"])
    assert compared["transform"] in ("log", "yeo-johnson")
    assert list(skewed["seconds_by_phase"])[:4] == ["ingest", "transform", "ingest again", "tune"]
    for name in ("train.zarr", "test.zarr"):
        [transform] = open_dataset(str(out / name)).standardisation.transforms
        assert transform.name == compared["transform"]
    assert skewed["evaluation"]["verdict"] == []
    page = Path(skewed["report"]).read_text(encoding="utf-8")
    check_page(page)
    assert f"{compared['transform']}: {compared['reason']}" in page.replace("&#x27;", "'")
    assert "<p>No problem found on these " in page
    for line in skewed["commands"]:
        assert escape(line) in page
    assert f"--transform {compared['transform']}" in skewed["commands"][0]
    # The features that the price was made of count, one that it was not does not: shortest scales first.
    scales = page.partition("<h2>Importance of the features</h2>")[2].partition("</section>")[0]
    order = [part.partition("<")[0] for part in scales.split('<th scope="row">')[1:]]
    assert order[0] == "carat"
    assert set(order) == set(skewed["ingest"]["features"])


@pytest.mark.slow
def test_the_commands_of_a_transformed_fit_give_the_same_one_by_one(skewed: dict[str, Any], tmp_path: Path) -> None:
    documents = [run_json(*shlex.split(line)[1:]) for line in skewed["commands"]]
    assert documents[0]["fingerprint"] == skewed["ingest"]["fingerprint"]
    for name in ("rmse_raw", "nlpd_raw", "coverage_95"):
        assert documents[-1][name] == skewed["evaluation"][name]


@pytest.mark.slow
def test_without_the_transform_the_page_says_what_is_wrong(
    skewed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without another model, which the verdict calls for.
    monkeypatch.setattr("dkgp.fit.run.remedies", lambda *_, **__: [])
    arguments = ("--target", "price", "--drop", "kind", "--kernel", "rbf", "--test-fraction", 0.2)
    table = skewed["settings"]["sources"][0]
    plain = run_json("fit", table, *arguments, "--transform", "none", "--out", tmp_path / "plain")
    assert plain["transform"] is None
    assert "noise and mean" in [finding["kind"] for finding in plain["evaluation"]["verdict"]]
    # On rows that neither the model nor the choice of the transform has seen.
    assert skewed["evaluation"]["nlpd_raw"] < plain["evaluation"]["nlpd_raw"] - 0.05
    page = Path(plain["report"]).read_text(encoding="utf-8")
    verdict = page.partition("<h2>Verdict</h2>")[2].partition("</section>")[0]
    assert "The noise grows with the predicted value" in verdict
    assert "fit again with --transform log" in verdict
    assert "transform of the target" not in page
    named = run_json("fit", table, *arguments, "--transform", "log", "--out", tmp_path / "named")
    assert named["transform"] is None
    assert "--transform log" in named["commands"][0]


@pytest.mark.slow
def test_a_fit_killed_while_it_ingests_again_goes_on(
    skewed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--target", "price", "--drop", "kind", "--kernel", "rbf", "--test-fraction", 0.2)
    command = ("fit", skewed["settings"]["sources"][0], *arguments, "--out", tmp_path / "fit")
    calls: list[Any] = []

    def killed(job: Any, reporter: Any) -> Any:
        calls.append(job)
        if job.transform is not None:
            raise KeyboardInterrupt
        return run_ingest(job, reporter)

    with monkeypatch.context() as patch:
        patch.setattr("dkgp.fit.run.run_ingest", killed)
        assert run(*command).exit_code == 130
    assert [job.transform for job in calls][-1] == skewed["transform"]["transform"]
    record = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert list(record["phases"]) == ["ingest", "transform"]
    document = run_json(*command, "--resume")
    assert document["evaluation"]["nlpd_raw"] == skewed["evaluation"]["nlpd_raw"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plane", "waves", "steps", "twice"])
def test_a_good_table_has_no_verdict(tmp_path: Path, name: str) -> None:
    """From the file to the page: nothing is warned of where nothing is wrong."""
    rng = np.random.default_rng(11)
    X = rng.uniform(-1.0, 1.0, (500, 2))
    mean = {
        "plane": 2.0 * X[:, 0] - X[:, 1],
        "waves": np.sin(4.0 * X[:, 0]) + X[:, 1] ** 2,
        "steps": np.tanh(3.0 * X[:, 0]) + 0.0 * X[:, 1],
        "twice": X[:, 0] * X[:, 1],
    }[name]
    y = 1e3 + 50.0 * (mean + 0.2 * rng.standard_normal(500))
    np.savetxt(tmp_path / "t.csv", np.c_[X, y], delimiter=",", header="u,v,yield", comments="")
    arguments = ("--target", "yield", "--kernel", "rbf", "--test-fraction", 0.3)
    document = run_json("fit", tmp_path / "t.csv", *arguments, "--out", tmp_path / "fit")
    assert document["evaluation"]["verdict"] == []
    assert document["transform"]["transform"] is None
    assert document["tune"]["converged"] is True
    assert document["warnings"] == []
    page = Path(document["report"]).read_text(encoding="utf-8")
    check_page(page)
    assert "<p>No problem found on these " in page
    found = from_json(list[TunedParameter], document["tune"]["parameters"])
    assert ("irrelevant" in page) == any(parameter.idle for parameter in found)


@pytest.mark.slow
def test_labels_are_told_apart(tmp_path: Path) -> None:
    table, out = write_messy(tmp_path / "cars.csv", 120), tmp_path / "fit"
    arguments = ("fit", table, "--labels", "kind", "--drop", "price", "--out", out)
    document = run_json(*arguments)
    assert document["train"]["command"] == "classify"
    assert document["tune"] is None
    assert document["evaluation"]["error_rate"] <= 0.25  # by chance .5
    assert list(document["seconds_by_phase"]) == [
        "ingest",
        "compare",
        "choose",
        "train",
        "predict",
        "evaluate",
        "report",
    ]
    assert [shlex.split(line)[1] for line in document["commands"]] == ["ingest", "classify", "predict", "evaluate"]
    page = Path(document["report"]).read_text(encoding="utf-8")
    check_page(page)
    assert "cheap" in page
    # An earlier fit, of whatever kind, is replaced where that is asked for.
    again = run_json(
        "fit", table, "--target", "price", "--drop", "kind", "--kernel", "rbf", "--out", out, "--overwrite"
    )
    assert again["train"]["command"] == "train"
    assert run_json("evaluate", out / "pred.zarr", out / "test.zarr")["rmse"] == again["evaluation"]["rmse"]


@pytest.mark.parametrize(
    ("step", "error", "begin"),
    [
        ("ingest", KeyboardInterrupt("interrupted by SIGINT"), "interrupted by SIGINT"),
        ("tune", KeyboardInterrupt("interrupted by SIGINT"), "interrupted by SIGINT"),
        ("tune", InterruptedRunError("interrupted in round 1; nothing was saved"), "interrupted"),
        ("tune", InterruptedRunError("interrupted; state saved in c", "c"), "interrupted; state saved in c"),
    ],
)
def test_an_interrupted_fit_says_what_is_kept_and_how_to_continue(
    step: str, error: BaseException, begin: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(_Fit, f"_{step}", interrupted)
    out = tmp_path / "fit"
    arguments = ("fit", table, "--target", PRICE, "--drop", "kind", "--transform", "none", "--out", out)
    kept = "no step was finished" if step == "ingest" else f"'{out}' keeps step ingest"
    continuing = f"{begin}; {kept}. To continue, run the same command with --resume"
    refused(run(*arguments), f"dkgp fit: {continuing}", exit_code=130)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "name the column to predict"),
        ({"targets": ("cost",)}, "There is no target 'cost' in '.*'; available: "),
        ({"labels": "cost"}, "There is no column of labels 'cost'"),
    ],
)
def test_a_wrong_column_is_refused_before_libraries_are_imported(
    options: dict[str, Any], words: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = Recipe._imported
    monkeypatch.setattr(
        Recipe, "_imported", lambda *given: imported(*given) if given[1:] else pytest.fail("imported the run")
    )
    job = FitJob(IngestJob((str(table),), **options), out=str(tmp_path / "fit"))
    with pytest.raises(DkgpError, match=words):
        RECIPES["fit"].run(job, SilentReporter())
    assert not Path(job.out).exists()


def test_commands_repeat_a_fit_that_lacked_time() -> None:
    job = FitJob(IngestJob(("rows.csv",), targets=("y",)), out="fit")
    tuned = {"run": {"kernel": "rbf"}, "subset_size": 360, "given_up": [{"step": "tune", "text": ""}]}
    assert chosen_kernel("auto", tuned) == "rbf"
    assert chosen_kernel("auto", {"comparison": {"kernel": "rq"}, "run": {"kernel": "auto"}}) == "rq"
    assert chosen_kernel("rbf", None) == "rbf"
    way = to_json(Way("exact", None, None, 1.0, 1.0, 1, variance_memory_bytes=5))
    decision = {"way": way, "has_variance": False}
    lines = command_lines(job, TableOptions(), (), decision, candidate_words(tuned, 360, 60.0))
    assert [line.split()[1] for line in lines] == ["ingest", "train", "predict", "evaluate"]
    assert "--hyper fit/hyper.json" in lines[1]
    assert "--variance" not in lines[2]
    with_variance = command_lines(job, TableOptions(), (), {"way": way}, candidate_words(tuned, 360, 60.0))
    assert "--variance " in with_variance[2]
    assert "--variance-memory 5" in with_variance[2]
    # The sample of test rows that the fit predicted.
    sampled = command_lines(job, TableOptions(), (), {"way": way, "sampled": True})
    assert "fit-again/test.zarr" in sampled[0]
    assert all("fit/test-sample.zarr" in line and "test.zarr" not in line for line in sampled[-2:])
