"""`--product-error` of train, classify and predict: within proven bounds, resumed as begun, refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import (
    CheckpointStore,
    ModelRecord,
    Prediction,
    open_classifier,
    open_dataset,
    open_model,
    open_prediction,
)
from dkgp.errors import ClusterError, InputError, UsageError
from dkgp.kernels import Linear, SquaredExponential
from dkgp.models.sums import Sums
from dkgp.operators import cross_sums
from dkgp.operators.cells.cross import SOURCE_LEAF
from dkgp.operators.cells.operator import Forecast
from dkgp.service.specification import job_from_options, options_from_job
from tests.cli.invoke import Places, Shell, refused, run_json
from tests.cli.test_predict import stop_after

KERNEL, NOISE, N, TESTS = SquaredExponential((80.0, 80.0)), 0.05, 700, 300
GROUND_KERNEL, GROUND_NOISE = SquaredExponential((60.0, 60.0)), 0.3
ERROR = 1e-4
TRAIN = "train @heights --hyper @hyper --quiet --out @m"
BY_CG = f"{TRAIN} --solver cg --cluster none"
SAYS = "as the test says"
CLASSIFY = "classify @kinds --hyper @hyper --method exact --no-probability --tol 0.01 --cluster none"
MODELS = {
    # The residual is in the bounds too, and not small.
    "height": "train @heights --hyper @hyper --tol 0.01 --cluster none",
    "rough": "train @heights --hyper @hyper --solver cg --tol 0.05 --cluster none",
    "kind": CLASSIFY,
    "rough_kind": f"{CLASSIFY} --solver cg",
    "few": "classify @kinds --hyper @hyper --pool 30 --search none --cluster none",
}


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Heights and kinds of ground over a square, with length scales far below its side, and models of them."""
    folder, rng = tmp_path_factory.mktemp("terrain"), np.random.default_rng(2)
    X = rng.uniform(size=(N + TESTS, 2))
    y = np.sin(X @ [21.0, -9.0]) + 0.2 * rng.standard_normal(N + TESTS)
    columns = {"height": ("--target", y), "kind": ("--labels", np.where(y > 0, "rock", "sand"))}

    def ingested(column: str, name: str, rows: slice) -> Path:
        option, values = columns[column]
        lines = [f"{a:.17g},{b:.17g},{value}" for (a, b), value in zip(X[rows], values[rows], strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([f"east,north,{column}", *lines]) + "\n")
        run_json("ingest", folder / f"{name}.csv", folder / name, option, column)
        return folder / name

    def model(name: str) -> Path:
        Shell(folder, places).json(f"{MODELS[name]} --out {folder / name}")
        return folder / name

    def hyper(name: str, kernel: SquaredExponential, noise: float) -> Path:
        (folder / name).write_text(json.dumps({"kernel": kernel.to_json(), "noise_variance": noise}))
        return folder / name

    train, test = slice(0, N), slice(N, None)
    places = Places(
        {
            "heights": lambda: ingested("height", "heights", train),
            "heights_test": lambda: ingested("height", "heights_test", test),
            "kinds": lambda: ingested("kind", "kinds", train),
            "kinds_test": lambda: ingested("kind", "kinds_test", test),
            "hyper": lambda: hyper("hyper.json", KERNEL, NOISE),
            "ground": lambda: hyper("ground.json", GROUND_KERNEL, GROUND_NOISE),
            **{name: lambda name=name: model(name) for name in MODELS},
        }
    )
    return places


@pytest.fixture
def shell(terrain: Places, tmp_path: Path) -> Shell:
    return Shell(tmp_path, terrain)


@pytest.fixture
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves as small as the data, so that some sources are far."""
    monkeypatch.setitem(SOURCE_LEAF, 2, 2)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecast that chooses products within a bound."""
    monkeypatch.setattr("dkgp.operators.cells.operator.choose", lambda *_: Forecast(True, SAYS))


def predict(model: str) -> str:
    test = "kinds_test" if model in ("kind", "rough_kind", "few") else "heights_test"
    return f"predict @{model} @{test}"


def exact_mean(shell: Shell) -> np.ndarray:
    """By dense algebra, in the targets' units."""
    train, test = open_dataset(shell["heights"]), open_dataset(shell["heights_test"])
    Z, y = train.inputs(0, N), train.targets(0, N)
    T = test.as_seen_by(train.feature_names, train.target_names, train.standardisation).inputs(0, TESTS)
    mean = KERNEL(T, Z) @ np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(N), y)
    return np.asarray(mean * train.standardisation.target_std + train.standardisation.target_mean)


def exact_decision(shell: Shell, kernel: SquaredExponential = KERNEL, noise: float = NOISE) -> np.ndarray:
    """By dense algebra, (equations 21 to 23 of the pursuit paper)."""
    train, test = open_dataset(shell["kinds"]), open_dataset(shell["kinds_test"])
    Z, signs = train.inputs(0, N), np.where(train.all_labels() == 1, 1.0, -1.0)
    T = test.as_seen_by(train.feature_names, (), train.standardisation).inputs(0, TESTS)
    E = np.linalg.solve(kernel(Z, Z) + noise * np.eye(N), np.column_stack([signs, np.ones(N)]))
    b = E[:, 0].sum() / E[:, 1].sum()
    return np.asarray(kernel(T, Z) @ (E[:, 0] - b * E[:, 1]) + b)[:, None]


def same_bits(one: Prediction, other: Prediction) -> None:
    for name in one.variables:
        assert one.read(name).tobytes() == other.read(name).tobytes(), name


# ------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("solver", ["gbcd", "cg"])
def test_the_model_and_what_its_certificate_says(shell: Shell, solver: str) -> None:
    found = shell.json(f"{TRAIN} --solver {solver} --tol 1e-3 --product-error 1e-4")
    assert found["converged"] is True
    assert found["product_error"] == 1e-4
    certificate = found["certificate"]
    assert 0.0 < certificate["product_error"] <= 1.01e-4
    dataset = open_dataset(shell["heights"])
    Z, y = dataset.inputs(0, N), dataset.targets(0, N)
    Kbar = KERNEL(Z, Z) + NOISE * np.eye(N)
    alpha = open_model(shell["m"]).alpha
    assert np.linalg.norm(alpha - np.linalg.solve(Kbar, y)) <= certificate["alpha_error_bound"][0]
    assert np.abs(Kbar @ alpha - y).max() <= found["gradient_inf_norm"] + certificate["product_error"]
    # What products hold is in the plan.
    plain = shell.json(f"{TRAIN} --solver {solver} --tol 1e-3 --cluster none --overwrite")
    assert plain["certificate"]["product_error"] == 0.0
    more = found["memory_plan"]["worker_bytes"] - plain["memory_plan"]["worker_bytes"]
    assert more >= N * (8 * 2 + 16)


@pytest.mark.long
def test_decisions_keep_their_bounds(shell: Shell) -> None:
    classify = CLASSIFY.replace("@hyper", "@ground").replace("--tol 0.01", "--solver cg")
    found = shell.json(f"{classify} --product-error 1e-7 --out @m")
    assert found["converged"]
    assert found["product_error"] == 1e-7
    shell.json("predict @m @kinds_test --out @p --cluster none")
    error = np.abs(open_prediction(shell["p"]).read("decision") - exact_decision(shell, GROUND_KERNEL, GROUND_NOISE))
    bound = open_prediction(shell["p"]).read("decision_error_bound")
    assert (error <= bound).all()
    assert bound.max() < 0.01
    # What pruning may cost is in the bound, however small the residual seems.
    shell.json(f"{classify} --out @plain")
    assert open_classifier(shell["plain"]).summary.get("product_error") is None


@pytest.mark.parametrize("bytes_needed", [2**50, 2**30], ids=["a worker's cache", "the budget"])
@pytest.mark.usefixtures("chosen")
def test_auto_without_memory_evaluates_every_entry(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, bytes_needed: int
) -> None:
    monkeypatch.setattr("dkgp.operators.cells.operator.estimated_bytes", lambda *_: (bytes_needed, 2**50))
    result = shell.run(f"{BY_CG} --json".replace("--quiet", ""))
    assert result.exit_code == 0
    assert (
        "products evaluate every kernel entry, since there is too little memory for approximate products"
    ) in result.stderr
    assert json.loads(result.stdout)["certificate"]["product_error"] == 0.0


@pytest.mark.usefixtures("chosen")
def test_auto_says_why_and_enters_the_identity(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("is_cheaper", "is_cheaper_in_double", "reaches_sooner"):
        monkeypatch.setattr(f"dkgp.operators.cells.operator.{name}", lambda *_: True)
    line = f"{BY_CG} --tol 1e-3 --json".replace("--quiet", "")
    result = shell.run(line)
    assert result.exit_code == 0, result.stderr
    assert SAYS in result.stderr
    found = json.loads(result.stdout)
    assert found["product_error"] == "auto"
    assert found["products"]["reason"] == SAYS
    assert 0.0 < found["certificate"]["product_error"] <= 1e-4
    # A finished run is taken for done, and another one for another run's.
    assert shell.json(f"{line} --resume")["resumed"]
    result = shell.run(f"{line} --resume --product-error none --overwrite")
    assert "is from a run with another product error" in result.stderr


@pytest.mark.parametrize("bounded", [False, True])
def test_auto_goes_on_as_a_run_began(shell: Shell, monkeypatch: pytest.MonkeyPatch, bounded: bool) -> None:
    """Whatever the forecast of a later version would take."""
    line = f"{BY_CG} --tol 1e-3 --json".replace("--quiet", "")
    with monkeypatch.context() as patched:
        patched.setattr("dkgp.operators.cells.operator.choose", lambda *_: Forecast(bounded, SAYS))
        shell.run(f"{line} --max-passes 3")
    if not bounded:
        monkeypatch.setattr("dkgp.operators.cells.operator.choose", lambda *_: Forecast(True, SAYS))
    words = "evaluate every kernel entry, as they did" if not bounded else "are within a bound, as they were"
    for _ in range(2):  # the second finds a finished model
        result = shell.run(f"{line} --resume")
        assert result.exit_code == 0, result.stderr
        assert f"{words} when the run began" in result.stderr
        found = json.loads(result.stdout)
        assert found["converged"]
        assert found.get("product_error") == ("auto" if bounded else None)
    other, its = ("none", "'auto'; this run's: None") if bounded else (1e-4, "None; this run's: 0.0001")
    told = shell.run(f"{line} --resume --product-error {other} --overwrite").stderr
    assert f"is from a run with another product error (its product error: {its})" in told


def test_a_checkpoint_of_products_that_are_gone_is_refused(shell: Shell) -> None:
    shell.run(f"{BY_CG} --tol 1e-3 --max-passes 3")
    store = CheckpointStore(shell["m.checkpoint"])
    latest = store.load_latest()
    identity = {**latest.metadata["identity"], "tree_error": 1e-5}
    store.save(latest.sequence_number, latest.arrays, {**latest.metadata, "identity": identity})
    words = "cannot continue to the same result. Start again without --resume and with --product-error 1e-05"
    shell.refuses(f"{BY_CG} --tol 1e-3 --resume", "with --tree-error 1e-05", words)


def test_a_finished_model_of_an_earlier_version_is_known(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = BY_CG.replace("--quiet", "")
    shell.json(f"{line} --product-error 1e-5")
    read = ModelRecord.open

    def earlier(url: str) -> ModelRecord:
        model = read(url)
        summary = dict(model.summary)
        return replace(model, summary={**summary, "tree_error": summary.pop("product_error")})

    monkeypatch.setattr(ModelRecord, "open", staticmethod(earlier))
    assert "is already complete" in shell.run(f"{line} --product-error 1e-5 --resume").stderr
    told = shell.told(f"{line} --product-error 2e-5 --resume --overwrite")
    assert "is from a run with another product error (its product error: 1e-05; this run's: 2e-05)" in told


def test_the_service_takes_and_checks_it() -> None:
    options = {"dataset": "/d", "hyper": "/h", "out": "/m", "product_error": 1e-5}
    job = job_from_options("train", options)
    assert options_from_job(job) == options
    words = {**options, "product_error": "none"}
    assert options_from_job(job_from_options("train", words)) == words
    # As an earlier version stored it.
    old = {**{name: value for name, value in options.items() if name != "product_error"}, "tree_error": 1e-5}
    assert job_from_options("train", old) == job
    for changes, error, text in (
        ({"solver": {"tolerance": 1e-6}}, UsageError, "product_error: `product_error` must be below `tolerance`"),
        ({"solver": {"solver": "smo"}}, UsageError, "product_error: .*; smo evaluates"),
        ({"product_error": -1.0}, InputError, "`product_error` must be a positive finite number, auto or none"),
        ({"product_error": "small"}, UsageError, "expected a positive finite number, auto or none; got .small."),
    ):
        with pytest.raises(error, match=text):
            job_from_options("train", {**options, **changes})
    predicted = {"model": "/m", "dataset": "/d", "out": "/p", "product_error": 1e-3}
    assert options_from_job(job_from_options("predict", predicted)) == predicted
    with pytest.raises(InputError, match="`product_error` must be a positive finite number, auto or none"):
        job_from_options("predict", {**predicted, "product_error": 0.0})


# ---------------------------------------------------------------------------------------------------------- predictions


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("model", "variable", "exact"), [("height", "mean", exact_mean), ("kind", "decision", exact_decision)]
)
@pytest.mark.usefixtures("small_leaves")
def test_the_exact_value_is_within_the_bounds_and_near_the_full_sum(
    shell: Shell, model: str, variable: str, exact: Callable[[Shell], np.ndarray]
) -> None:
    shell.json(f"{predict(model)} --out @bounded --product-error {ERROR} --cluster none")
    shell.json(f"{predict(model)} --out @full --cluster none")
    stores = [open_prediction(shell[name]) for name in ("bounded", "full")]
    (value, full), (bound, plain) = ([store.read(variable + end) for store in stores] for end in ("", "_error_bound"))
    assert (np.abs(value - exact(shell)) <= bound).all()
    assert 1e-9 < np.abs(value - full).max() <= 1.01 * ERROR
    # The error of a sum is added to what was proven, and is not the whole of it.
    assert (bound > plain).all()
    assert (bound <= plain * 1.2 + 3.0 * ERROR).all()
    assert stores[0].attributes["product_error"] == ERROR
    assert "product_error" not in stores[1].attributes


@pytest.mark.usefixtures("small_leaves")
def test_variances_by_neighbours_go_with_it(shell: Shell) -> None:
    line = f"{predict('height')} --product-error {ERROR} --cluster none --variance"
    shell.json(f"{line} --out @p --variance-way neighbours")
    store = open_prediction(shell["p"])
    assert store.attributes["product_error"] == ERROR
    assert (np.abs(store.read("mean") - exact_mean(shell)) <= store.read("mean_error_bound")).all()
    shell.refuses(f"{line} --out @q", "whole columns", "--variance-way neighbours")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["height", "kind"])
def test_any_workers_come_to_the_same_bits(shell: Shell, model: str) -> None:
    line = f"{predict(model)} --chunk-rows 90"
    shell.json(f"{line} --product-error {ERROR} --cluster none --out @one")
    shell.json(f"{line} --product-error {ERROR} --cluster local --workers 3 --out @three")
    same_bits(open_prediction(shell["one"]), open_prediction(shell["three"]))
    # Another error is another prediction.
    shell.refuses(f"{line} --product-error 1e-5 --cluster none --out @one --resume")


@pytest.mark.long
@pytest.mark.parametrize(("model", "variable"), [("rough", "mean"), ("rough_kind", "decision")])
@pytest.mark.usefixtures("small_leaves")
def test_a_forecast_chooses_bounds_and_a_resumed_run_keeps_to_them(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, model: str, variable: str
) -> None:
    line = f"{predict(model)} --cluster none --chunk-rows 128"
    shell.json(f"{line} --out @full --product-error none")
    for name in ("CLASS_ENTRIES", "PIECE_ENTRIES"):
        monkeypatch.setattr(cross_sums, name, {1: 0.0, 2: 0.0, 3: 0.0})
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 1e9)
    assert "sums within proven errors" in shell.run(f"{line} --out @auto").stderr
    full, auto = open_prediction(shell["full"]), open_prediction(shell["auto"])
    before, bound = (store.read(f"{variable}_error_bound") for store in (full, auto))
    errors = auto.attributes["product_error"]
    if model == "rough":
        assert (bound > before).all()
        assert (bound <= 1.011 * before).all()
        # The bounds are of a solve that stopped early; errors of the sums are not as large as these allow.
        assert max(errors) == pytest.approx(0.01 * np.sqrt(NOISE))
        assert (np.abs(auto.read("mean") - exact_mean(shell)) <= bound).all()
    else:
        of_decisions, of_ones = errors
        assert 0.0 < of_decisions <= 1e-3
        assert of_ones > 0.0
        # Where a sum's bound is above its error, every entry is evaluated.
        assert (bound >= before).all()
        assert np.mean(bound > before) > 0.5
        assert (bound <= 1.03 * before).all()
        assert (np.abs(auto.read("decision") - exact_decision(shell)) <= bound).all()
        # A few prototypes have no such sums.
        assert "sums within proven errors" not in shell.run(f"{predict('few')} --cluster none --out @few.p").stderr
    # A run that was interrupted goes on with the errors of the store, whatever a forecast would choose now.
    with monkeypatch.context() as patched:
        stop_after(patched, 1, KeyboardInterrupt())
        assert shell.run(f"{line} --out @begun").exit_code == 130
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 0.0)
    shell.json(f"{line} --out @begun --resume")
    same_bits(auto, open_prediction(shell["begun"]))


@pytest.mark.usefixtures("chosen")
def test_auto_evaluates_every_entry_where_workers_have_no_memory_for_others(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.operators.cells.operator.estimated_bytes", lambda *_: (4 * 10**9, 0))
    for memory, says in (("9GB", False), ("7GB", True)):
        result = shell.run(f"{predict('height')} --out @{memory} --cluster local --worker-memory {memory}")
        assert (
            "sums evaluate every kernel entry, since there is too little memory for approximate sums" in result.stderr
        ) == says
        assert "product_error" not in open_prediction(shell[memory]).attributes
    line = f"{predict('height')} --out @n --product-error {ERROR} --worker-memory 7GB --cluster local"
    shell.refuses(line, "take 4,000,000,000 bytes in each process")


def test_predictions_with_auto_evaluate_every_entry_where_workers_differ(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(executor: object) -> None:
        raise ClusterError("the workers' libraries differ")

    monkeypatch.setattr("dkgp.models.sums.forecast_sums", lambda *_: cross_sums.Forecast(True))
    monkeypatch.setattr(LocalExecutor, "require_one_arithmetic", unlike)
    result = shell.run(f"{predict('height')} --cluster none --out @p")
    assert result.exit_code == 0, result.stderr
    assert "sums evaluate every kernel entry" in result.stderr
    assert "product_error" not in open_prediction(shell["p"]).attributes
    line = f"{predict('height')} --cluster none --out @q --product-error 1e-4"
    shell.refuses(line, "the workers' libraries differ", code=5)


def test_predictions_begun_with_sums_by_a_tree_are_refused_in_words(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"{predict('height')} --out @p --cluster none --chunk-rows 128"
    with monkeypatch.context() as patched:
        stop_after(patched, 1, KeyboardInterrupt())
        assert shell.run(f"{line} --product-error {ERROR}").exit_code == 130
    changed = [path for path in shell["p"].rglob("*.json") if "product_error" in path.read_text()]
    assert changed
    for path in changed:
        path.write_text(path.read_text().replace("product_error", "tree_error"))
    shell.refuses(f"{line} --resume", "sums by a tree", "--overwrite")


# ------------------------------------------------------------------------------------------------------------- refusals


BELOW = (
    "--product-error 1e-14 is below the roundings of sums over this model's 700 samples, for which ",
    "is proven at best. Give that or more, or auto or none",
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{predict('height')} --product-error 1e-14 --cluster none", BELOW),
        (f"{predict('kind')} --product-error 1e-14 --cluster none", BELOW),
        (
            "train @seven --hyper @seven.json --product-error 1e-5 --scheduler tcp://127.0.0.1:1",
            ("at most 3 features in each term of a kernel", "has 7", "Take --product-error auto or none"),
        ),
        (
            "train @heights --hyper @hyper --product-error 1e-5 --worker-memory 40MiB --cluster none",
            ("bytes in each process; half of a worker's memory is 20,971,520",),
        ),
        (
            "classify @kinds --hyper @linear.json --method exact --product-error 1e-7 --cluster none",
            ("a part of dot products. Take --product-error auto or none",),
        ),
    ],
)
def test_what_no_bound_is_known_for_or_no_memory_is_refused(shell: Shell, line: str, words: tuple[str, ...]) -> None:
    for name, kernel in (("seven", SquaredExponential((1.0,) * 7)), ("linear", Linear((1.0, 1.0)))):
        shell[f"{name}.json"].write_text(json.dumps({"kernel": kernel.to_json(), "noise_variance": 0.1}))
    table = np.random.default_rng(1).normal(size=(50, 8))
    np.savetxt(shell["t.csv"], table, delimiter=",", header="a,b,c,d,e,f,g,y", comments="")
    shell.json("ingest @t.csv @seven --target y")
    before = shell.names
    shell.refuses(f"{line} --out @out", *words)
    assert shell.names == before


def test_where_a_number_is_refused_for_memory_auto_evaluates_every_entry(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell.json(f"{TRAIN} --worker-memory 40MiB --cluster none")["converged"]
    monkeypatch.setattr("dkgp.operators.cells.operator.estimated_bytes", lambda kernel, n, columns: (n * 10**12, 0))
    line = f"{predict('height')} --out @p --product-error 1e-3 --cluster local --worker-memory 1GiB"
    shell.refuses(line, "take 700,000,000,000,000 bytes")
    assert shell.names == {"m"}


def test_the_option_of_earlier_versions_names_its_successor(shell: Shell) -> None:
    result = shell.run(f"{TRAIN} --tree-error 1e-5")
    refused(result, "--tree-error no longer exists", "--product-error E", exit_code=2)
    refused(shell.run("info @heights --tree-error 1e-5"), "No such option", exit_code=2)


def test_pieces_hold_each_row_once() -> None:
    for start, stop in ((0, 1), (7, 519), (7, 520), (100, 2000)):
        pieces = Sums(1e-3).pieces(start, stop)
        rows = np.concatenate([np.arange(each.first, each.last) for each in pieces])
        np.testing.assert_array_equal(rows, np.arange(stop - start))
        assert all((each.start, each.stop) == (start, stop) for each in pieces)
