"""`dkgp predict --product-error`: values within bounds that stay proven; refusals in words, with nothing on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_dataset, open_prediction
from dkgp.kernels import SquaredExponential
from dkgp.models.sums import Sums
from dkgp.operators import cross_sums
from dkgp.operators.cells.cross import SOURCE_LEAF
from dkgp.operators.cells.operator import Forecast
from dkgp.service.specification import job_from_options, options_from_job
from tests.cli.invoke import refused, run, run_json
from tests.cli.test_predicted_again import stop_after
from tests.full_disk import full_for

KERNEL, NOISE, N, TESTS = SquaredExponential((80.0, 80.0)), 0.05, 700, 300
ERROR = 1e-4


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Models of heights and of kinds of ground over a square, stopped early, and places to predict at."""
    folder, rng = tmp_path_factory.mktemp("terrain"), np.random.default_rng(2)
    X = rng.uniform(size=(N + TESTS, 2))
    y = np.sin(X @ [21.0, -9.0]) + 0.2 * rng.standard_normal(N + TESTS)
    hyper = folder / "hyper.json"
    hyper.write_text(json.dumps({"kernel": KERNEL.to_json(), "noise_variance": NOISE}))
    for name, rows in (("train", slice(0, N)), ("test", slice(N, None))):
        for what, column, targets in (("height", y, "--target"), ("kind", np.where(y > 0, "rock", "sand"), "--labels")):
            lines = [f"{a:.17g},{b:.17g},{value}" for (a, b), value in zip(X[rows], column[rows], strict=True)]
            (folder / "t.csv").write_text("\n".join([f"east,north,{what}", *lines]) + "\n")
            run_json("ingest", folder / "t.csv", folder / f"{what}.{name}", targets, what)
    common = ("--hyper", hyper, "--cluster", "none", "--json")
    # The residual is in the bounds too, and not small.
    run_json("train", folder / "height.train", "--out", folder / "height", "--tol", 1e-2, *common)
    classify = ("classify", folder / "kind.train", "--method", "exact", "--tol", 1e-2, "--no-probability")
    run_json(*classify, "--out", folder / "kind", *common)
    few = ("classify", folder / "kind.train", "--out", folder / "few", "--pool", 30, "--search", "none", *common)
    run_json(*few)
    run_json("sparse", folder / "height.train", "--out", folder / "sparse", "--basis-size", 40, *common)
    return {"folder": folder, "hyper": hyper}


def predict(terrain: dict[str, Any], what: str, out: Path, *options: object) -> tuple[object, ...]:
    folder = terrain["folder"]
    kind = "kind" if what in ("kind", "few") else "height"
    return ("predict", folder / what, folder / f"{kind}.test", "--out", out, "--json", *options)


def exact_mean(terrain: dict[str, Any]) -> np.ndarray:
    """By dense algebra, in the targets' units."""
    train, test = (open_dataset(terrain["folder"] / f"height.{name}") for name in ("train", "test"))
    Z, y = train.inputs(0, N), train.targets(0, N)
    T = test.as_seen_by(train.feature_names, train.target_names, train.standardisation).inputs(0, TESTS)
    mean = KERNEL(T, Z) @ np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(N), y)
    return np.asarray(mean * train.standardisation.target_std + train.standardisation.target_mean)


def exact_decision(terrain: dict[str, Any]) -> np.ndarray:
    train, test = (open_dataset(terrain["folder"] / f"kind.{name}") for name in ("train", "test"))
    Z, signs = train.inputs(0, N), np.where(train.all_labels() == 1, 1.0, -1.0)
    T = test.as_seen_by(train.feature_names, (), train.standardisation).inputs(0, TESTS)
    E = np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(N), np.column_stack([signs, np.ones(N)]))
    b = E[:, 0].sum() / E[:, 1].sum()
    return np.asarray(KERNEL(T, Z) @ (E[:, 0] - b * E[:, 1]) + b)[:, None]


@pytest.mark.parametrize(
    ("what", "variable", "exact"), [("height", "mean", exact_mean), ("kind", "decision", exact_decision)]
)
def test_the_exact_value_is_within_the_bounds_and_near_the_full_sum(
    terrain: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    variable: str,
    exact: Callable[[dict[str, Any]], np.ndarray],
) -> None:
    # Leaves as small as the data, so that some sources are far.
    monkeypatch.setitem(SOURCE_LEAF, 2, 2)
    stores = {}
    for name, options in (
        ("bounded", ("--product-error", ERROR, "--cluster", "none")),
        ("full", ("--cluster", "none")),
    ):
        run_json(*predict(terrain, what, tmp_path / name, *options))
        stores[name] = open_prediction(str(tmp_path / name))
    value, bound = (stores["bounded"].read(each) for each in (variable, f"{variable}_error_bound"))
    assert (np.abs(value - exact(terrain)) <= bound).all()
    full, plain = (stores["full"].read(each) for each in (variable, f"{variable}_error_bound"))
    away = np.abs(value - full)
    assert 1e-9 < away.max() <= 1.01 * ERROR
    # The error of a sum is added to what was proven, and is not the whole of it.
    assert (bound > plain).all()
    assert (bound <= plain * 1.2 + 3.0 * ERROR).all()
    assert stores["bounded"].attributes["product_error"] == ERROR
    assert "product_error" not in stores["full"].attributes


def test_variances_by_neighbours_go_with_it(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCE_LEAF, 2, 2)
    options = ("--product-error", ERROR, "--cluster", "none", "--variance")
    run_json(*predict(terrain, "height", tmp_path / "p", *options, "--variance-way", "neighbours"))
    store = open_prediction(str(tmp_path / "p"))
    assert store.attributes["product_error"] == ERROR
    assert (np.abs(store.read("mean") - exact_mean(terrain)) <= store.read("mean_error_bound")).all()
    refused(run(*predict(terrain, "height", tmp_path / "q", *options)), "whole columns", "--variance-way neighbours")


def test_a_disk_that_fills_up_leaves_regions_to_go_on_from(terrain: dict[str, Any], tmp_path: Path) -> None:
    options = ("--product-error", ERROR, "--cluster", "none", "--chunk-rows", 90)
    run_json(*predict(terrain, "kind", tmp_path / "whole", *options))
    command = predict(terrain, "kind", tmp_path / "out", *options)
    with full_for("decision/c/2") as met:
        refused(run(*command), "Cannot write", "the disk is full")
    assert met
    run_json(*command, "--resume")
    whole, resumed = (open_prediction(str(tmp_path / name)) for name in ("whole", "out"))
    for name in whole.variables:
        assert resumed.read(name).tobytes() == whole.read(name).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["height", "kind"])
def test_any_workers_and_a_run_that_goes_on_come_to_the_same_bits(
    terrain: dict[str, Any], tmp_path: Path, what: str
) -> None:
    options, found = ("--product-error", ERROR, "--chunk-rows", 90), []
    for cluster in (("none",), ("local", "--workers", 3)):
        out = tmp_path / cluster[0]
        run_json(*predict(terrain, what, out, *options, "--cluster", *cluster))
        found.append(open_prediction(str(out)))
    for name in found[0].variables:
        assert found[0].read(name).tobytes() == found[1].read(name).tobytes(), name
    # Another error is another prediction.
    other = (*predict(terrain, what, tmp_path / "none", "--product-error", 1e-5, "--chunk-rows", 90), "--resume")
    refused(run(*other, "--cluster", "none"))


def test_a_forecast_chooses_bounds_and_a_resumed_run_keeps_to_them(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, rough = ("--cluster", "none"), tmp_path / "rough"
    options = ("--hyper", terrain["hyper"], "--solver", "cg", "--tol", 0.05, *none, "--json")
    run_json("train", terrain["folder"] / "height.train", "--out", rough, *options)
    run_json(*predict(terrain, str(rough), tmp_path / "full", *none, "--product-error", "none"))
    monkeypatch.setattr(cross_sums, "CLASS_ENTRIES", {1: 0.0, 2: 0.0, 3: 0.0})
    monkeypatch.setattr(cross_sums, "PIECE_ENTRIES", {1: 0.0, 2: 0.0, 3: 0.0})
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 1e9)
    monkeypatch.setitem(SOURCE_LEAF, 2, 2)
    out = tmp_path / "auto"
    result = run(*predict(terrain, str(rough), out, *none, "--chunk-rows", 128))
    assert "sums within proven errors" in result.stderr
    full, auto = (open_prediction(str(tmp_path / name)) for name in ("full", "auto"))
    bounds = [store.read("mean_error_bound") for store in (full, auto)]
    assert (bounds[1] > bounds[0]).all()
    assert (bounds[1] <= 1.011 * bounds[0]).all()
    # The bounds are of a solve that stopped early; errors of the sums are not as large as these allow.
    assert max(auto.attributes["product_error"]) == pytest.approx(0.01 * np.sqrt(NOISE))
    assert (np.abs(auto.read("mean") - exact_mean(terrain)) <= bounds[1]).all()
    # A run that was interrupted goes on with the errors of the store, whatever a forecast would choose now.
    begun = predict(terrain, str(rough), tmp_path / "begun", *none, "--chunk-rows", 128)
    with monkeypatch.context() as patched:
        stop_after(patched, 1, KeyboardInterrupt())
        assert run(*begun).exit_code == 130
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 0.0)
    run_json(*begun, "--resume")
    resumed = open_prediction(str(tmp_path / "begun"))
    for name in auto.variables:
        assert resumed.read(name).tobytes() == auto.read(name).tobytes()


def test_a_forecast_chooses_bounds_of_decisions_too(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, rough = ("--cluster", "none", "--chunk-rows", 128), tmp_path / "rough"
    options = ("--method", "exact", "--solver", "cg", "--tol", 1e-2, "--no-probability", "--hyper", terrain["hyper"])
    run_json("classify", terrain["folder"] / "kind.train", "--out", rough, *options, *none[:2], "--json")

    def command(name: str) -> tuple[object, ...]:
        return ("predict", rough, terrain["folder"] / "kind.test", "--out", tmp_path / name, "--json", *none)

    run_json(*command("full"))
    for name in ("CLASS_ENTRIES", "PIECE_ENTRIES"):
        monkeypatch.setattr(cross_sums, name, {1: 0.0, 2: 0.0, 3: 0.0})
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 1e9)
    monkeypatch.setitem(SOURCE_LEAF, 2, 2)
    result = run(*command("auto"))
    assert "sums within proven errors" in result.stderr
    full, auto = (open_prediction(str(tmp_path / name)) for name in ("full", "auto"))
    of_decisions, of_ones = auto.attributes["product_error"]
    assert 0.0 < of_decisions <= 1e-3
    assert of_ones > 0.0
    bounds = [store.read("decision_error_bound") for store in (full, auto)]
    # Where a sum's bound is above its error, every entry is evaluated.
    assert (bounds[1] >= bounds[0]).all()
    assert np.mean(bounds[1] > bounds[0]) > 0.5
    assert (bounds[1] <= 1.03 * bounds[0]).all()
    assert (np.abs(auto.read("decision") - exact_decision(terrain)) <= bounds[1]).all()
    # A few prototypes have no such sums, and a run that goes on keeps to its own.
    result = run(*predict(terrain, "few", tmp_path / "few", *none))
    assert "sums within proven errors" not in result.stderr
    with monkeypatch.context() as patched:
        stop_after(patched, 1, KeyboardInterrupt())
        assert run(*command("begun")).exit_code == 130
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 0.0)
    run_json(*command("begun"), "--resume")
    resumed = open_prediction(str(tmp_path / "begun"))
    for name in auto.variables:
        assert resumed.read(name).tobytes() == auto.read(name).tobytes()


def test_auto_evaluates_every_entry_where_workers_have_no_memory_for_others(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.operators.product_error.choose", lambda *_: Forecast(True, "many samples"))
    monkeypatch.setattr("dkgp.operators.product_error.estimated_bytes", lambda *_: (4 * 10**9, 0))
    line = "sums evaluate every kernel entry: there is no memory for others"
    for memory, says in (("9GB", False), ("7GB", True)):
        out = tmp_path / memory
        result = run(*predict(terrain, "height", out, "--cluster", "local", "--worker-memory", memory))
        assert (line in result.stderr) == says
        assert "product_error" not in open_prediction(str(out)).attributes
    number = predict(terrain, "height", tmp_path / "n", "--product-error", ERROR, "--worker-memory", "7GB")
    refused(run(*number, "--cluster", "local"), "take 4,000,000,000 bytes in each process")


def test_predictions_begun_with_sums_by_a_tree_are_refused_in_words(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = predict(terrain, "height", tmp_path / "p", "--cluster", "none", "--chunk-rows", 128)
    with monkeypatch.context() as patched:
        stop_after(patched, 1, KeyboardInterrupt())
        assert run(*begun, "--product-error", ERROR).exit_code == 130
    changed = [path for path in (tmp_path / "p").rglob("*.json") if "product_error" in path.read_text()]
    assert changed
    for path in changed:
        path.write_text(path.read_text().replace("product_error", "tree_error"))
    refused(run(*begun, "--resume"), "sums by a tree", "--overwrite")


def test_sums_that_workers_could_not_keep_is_refused(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.operators.product_error.estimated_bytes", lambda kernel, n, columns: (n * 10**12, 0))
    workers = ("--cluster", "local", "--worker-memory", "1GiB")
    result = run(*predict(terrain, "height", tmp_path / "p", "--product-error", 1e-3, *workers))
    refused(result, "take 700,000,000,000,000 bytes")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["height", "kind"])
def test_numbers_below_all_roundings_are_refused(terrain: dict[str, Any], tmp_path: Path, what: str) -> None:
    words = "--product-error 1e-14 is below the roundings of sums over this model's 700 samples, for which "
    command = predict(terrain, what, tmp_path / "p", "--product-error", 1e-14, "--cluster", "none")
    refused(run(*command), words, "is proven at best. Give that or more, or auto or none")
    assert not list(tmp_path.iterdir())


def test_the_service_takes_and_checks_it() -> None:
    options = {"model": "/m", "dataset": "/d", "out": "/p", "product_error": 1e-3}
    job = job_from_options("predict", options)
    assert options_from_job(job) == options
    with pytest.raises(Exception, match="`product_error` must be a positive finite number, auto or none"):
        job_from_options("predict", {**options, "product_error": 0.0})


def test_pieces_hold_each_row_once() -> None:
    for start, stop in ((0, 1), (7, 519), (7, 520), (100, 2000)):
        pieces = Sums(1e-3).pieces(start, stop)
        rows = np.concatenate([np.arange(each.first, each.last) for each in pieces])
        np.testing.assert_array_equal(rows, np.arange(stop - start))
        assert all((each.start, each.stop) == (start, stop) for each in pieces)
