"""Solvers by name: what is declared is offered everywhere, and a new one takes a file of its own and no more."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dkgp
from dkgp import GPRegressor
from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob
from dkgp.commands.tuned import run_train
from dkgp.data import dataset_from_arrays
from dkgp.errors import ClusterError, InputError, MemoryBudgetError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.models.memory import Processes, plan_training
from dkgp.registry import Option
from dkgp.service.specification import job_from_options, options_from_job, options_schema
from dkgp.solvers import Choice, registry
from dkgp.solvers.registry import (
    Need,
    SolverDeclaration,
    SolverMemory,
    build_solver,
    declaration_of,
    own_options,
    register_solver,
    solver_memory,
    solver_names,
    solvers_that_need,
)

ROOT = Path(dkgp.__file__).parents[1]
TRAIN = {"dataset": "/d.zarr", "hyper": "/h.json", "out": "/m.zarr"}
OWN = ("gbcd", "bcdc", "bcdg", "cholesky", "tiled-cholesky", "cg", "pcg", "kcg", "paramcg", "smo")


@pytest.fixture
def afterwards_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is declared in the test is unknown after it."""
    monkeypatch.setattr(registry._DECLARED, "_found", dict(registry._DECLARED.all()))


@pytest.fixture
def richardson(afterwards_forgotten: None) -> SolverDeclaration:
    """The solver of `tests/solvers/richardson.py`, known as long as the test lasts."""
    module = importlib.import_module("tests.solvers.richardson")
    return register_solver(module.DECLARED)


# --------------------------------------------------------------------------------------------------- what is declared


@pytest.mark.parametrize("name", OWN)
def test_every_solver_is_built_by_its_name_with_what_it_was_given(name: str) -> None:
    solver = build_solver(name, precision="double", seed=3, folder="/nowhere").resolved(1000, 2)
    assert solver.settings()["precision"] == "double"
    held = solver_memory(solver, 1000, 2)
    assert min(held.memory, held.block_size, held.candidates, held.own_bytes, held.factor_bytes) >= 0
    assert getattr(solver, "folder", None) == ("/nowhere" if Need.FOLDER in declaration_of(name).needs else None)
    for option in declaration_of(name).options:
        assert json.loads(json.dumps(option.default)) == option.default


def test_options_belong_to_whom_they_are_declared_by() -> None:
    with pytest.raises(UsageError, match="`rank` belongs to the solver pcg; got `solver` gbcd"):
        build_solver("gbcd", {"rank": 3})
    with pytest.raises(UsageError, match="`memory` belongs to the solvers gbcd, bcdc, bcdg; got `solver` auto"):
        SolverOptions("auto", memory=3, rank=3).check()
    with pytest.raises(UsageError, match="no solver has an option 'blok_size'; did you mean `block_size`"):
        SolverOptions("gbcd", blok_size=3).check()
    with pytest.raises(UsageError, match=r"unknown solver 'newton'.*gbcd"):
        SolverOptions("newton").check()
    assert build_solver("cg", {"rank": "auto"}) == build_solver("cg")


def test_options_are_compared_and_changed_as_a_whole() -> None:
    options = SolverOptions("gbcd", block_size=500, seed=3)
    assert options == SolverOptions("gbcd", seed=3, block_size=500, candidates=60)
    assert hash(options) == hash(SolverOptions(**options.to_json()))
    assert (options.block_size, options.candidates, options.memory) == (500, 60, None)
    assert options.changed(solver="bcdc", block_size="auto") == SolverOptions("bcdc", seed=3)
    assert replace(options, tolerance=1.0) == SolverOptions(block_size=500, seed=3, tolerance=1.0)
    with pytest.raises(AttributeError, match="no solver has an option 'blok_size'"):
        _ = options.blok_size


def test_options_name_the_solver_where_it_is_left_to_auto() -> None:
    assert SolverOptions().solver == SolverOptions("auto", seed=3, rank="auto").solver == "auto"
    assert SolverOptions(block_size=500) == SolverOptions("gbcd", block_size=500)
    assert SolverOptions("auto", rank=300).solver == "pcg"
    assert SolverOptions("bcdc", block_size=500).solver == "bcdc"


def test_who_needs_what() -> None:
    assert solvers_that_need(Need.ENTRIES) == ("cholesky", "tiled-cholesky", "smo")
    assert solvers_that_need(Need.INPUTS) == ("smo",)
    assert solvers_that_need(Need.FOLDER) == ("tiled-cholesky",)
    assert solvers_that_need(Need.ROUNDS) == ("tiled-cholesky", "pcg")


def test_a_name_or_an_option_means_one_thing(afterwards_forgotten: None) -> None:
    def declared(name: str, *options: Option) -> SolverDeclaration:
        return SolverDeclaration(name, "", lambda **options: build_solver("cg"), options=options)

    assert register_solver(declared("fast", own_options()["rank"])).name in solver_names()
    for name, option, words in (
        ("auto", None, "means the solver that suits"),
        ("gbcd", None, "two solvers 'gbcd'"),
        ("slow", Option("rank", "Another.", int, 3), "'rank', which means something else as an option of"),
        ("slow", Option("seed", "Another.", int, 3), "'seed', which means something else for all solvers"),
    ):
        with pytest.raises(UsageError, match=words):
            register_solver(declared(name, *(() if option is None else (option,))))
    assert "slow" not in solver_names()


def test_every_solver_is_described_for_users() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    listed = "\n".join(line for page in pages for line in page.read_text().splitlines() if line.startswith("| `"))
    assert [name for name in OWN if f"`{name}`" not in listed] == []
    shown = " ".join(CliRunner().invoke(main, ["train", "--help"]).output.split())
    for name in OWN:
        assert f"{name}: {declaration_of(name).help}" in shown
        for option in declaration_of(name).options:
            assert f"--{option.name.replace('_', '-')} " in shown
    assert "auto: no enlargement if --block-size is set" in shown
    assert "`" not in re.sub("`dkgp [a-z]+`", "", shown)


@pytest.fixture
def small_problem(rng: np.random.Generator, tmp_path: Path) -> dict[str, str]:
    """A data set of 60 samples and its hyperparameters, as `TrainJob` takes them."""
    X = rng.standard_normal((60, 2))
    dataset_from_arrays(tmp_path / "d.zarr", X, np.sin(X[:, :1]) + 0.1 * rng.standard_normal((60, 1)))
    write_hyperparameters(tmp_path / "h.json", Hyperparameters(SquaredExponential((1.0, 1.0)), 0.5))
    return {"dataset": str(tmp_path / "d.zarr"), "hyper": str(tmp_path / "h.json"), "out": str(tmp_path / "m.zarr")}


def test_inputs_beyond_the_coordinators_share_are_refused_before_the_start(
    small_problem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.models.memory.DEFAULT_COORDINATOR_INPUT_BYTES", 100)
    with pytest.raises(MemoryBudgetError, match="the solver smo needs the inputs of all samples in the coordinator's"):
        run_train(TrainJob(**small_problem, solver=SolverOptions("smo")), SilentReporter())
    assert not Path(small_problem["out"]).exists()
    assert run_train(TrainJob(**small_problem, solver=SolverOptions("cg")), SilentReporter())["converged"]


def test_workers_that_differ_are_refused_before_the_start_by_who_minds(
    small_problem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(executor: LocalExecutor) -> None:
        raise ClusterError("the workers differ")

    monkeypatch.setattr(LocalExecutor, "require_one_arithmetic", differ)
    with pytest.raises(ClusterError, match="the workers differ. Such solvers are gbcd, bcdc, bcdg, cholesky, cg, kcg"):
        run_train(TrainJob(**small_problem, solver=SolverOptions("pcg")), SilentReporter())
    assert run_train(TrainJob(**small_problem, solver=SolverOptions("kcg")), SilentReporter())["converged"]


def test_auto_takes_another_solver_where_workers_differ_and_goes_on_with_it(
    small_problem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(*arguments: Any, one_arithmetic: bool, **options: Any) -> Choice:
        return Choice("pcg", "as alike", halo=20, leaf=10, rank=0) if one_arithmetic else Choice("gbcd", "as unlike")

    def differ(executor: LocalExecutor) -> None:
        raise ClusterError("the workers differ")

    monkeypatch.setattr("dkgp.models.solver_choice.choose_solver_for", choose)
    job = TrainJob(**small_problem, checkpoint_seconds=0.0, solver=SolverOptions(max_passes=0.1, tolerance=1e-30))
    with monkeypatch.context() as unlike:
        unlike.setattr(LocalExecutor, "require_one_arithmetic", differ)
        stopped = run_train(job, SilentReporter())
    assert (stopped["solver"], stopped["auto"]["reason"], stopped["converged"]) == ("gbcd", "as unlike", False)
    resumed = run_train(replace(job, resume=True, solver=SolverOptions(tolerance=1e-7)), SilentReporter())
    assert (resumed["solver"], resumed["converged"]) == ("gbcd", True)
    afresh = run_train(replace(job, overwrite=True, solver=SolverOptions(tolerance=1e-7)), SilentReporter())
    assert (afresh["solver"], afresh["settings"]["preconditioner"]["halo"]) == ("pcg", 20)


# ---------------------------------------------------------------------------------------------- jobs of earlier times


@pytest.mark.parametrize(
    ("command", "stored"),
    [
        (
            "train",
            '{"dataset": "/d.zarr", "hyper": "/h.json", "out": "/m.zarr", "solver": {"block_size": 500, "candidates": '
            '30, "memory": 3, "precision": "double", "seed": 7, "tolerance": 1e-06, "max_passes": 40.0, "max_seconds": '
            '600.0, "duality_gap": 0.01, "largest_block_size": 2000, "variables_per_step": 5}, "warm_start": '
            '"/w.zarr", "by_reference": true, "checkpoint": "/c", "checkpoint_seconds": 5.0, "resume": true, '
            '"memory_limit_bytes": 2147483648, "plot": "/p.png", "log_json": "/l.jsonl", "overwrite": true}',
        ),
        ("train", '{"solver": {"exhaustive": true, "prefitting": true}}'),
        ("train", '{"solver": {"solver": "bcdc", "block_size": 20, "candidates": 30}}'),
        ("train", '{"solver": {"solver": "bcdg", "memory": 2}}'),
        ("train", '{"solver": {"solver": "pcg", "rank": 64, "landmarks": "uniform"}}'),
        ("train", '{"solver": {"solver": "tiled-cholesky"}, "tiles": "/t"}'),
        ("train", '{"solver": {"solver": "cg"}, "tree_error": 1e-06}'),
        ("train", '{"solver": {"solver": "auto"}}'),
        ("train", '{"solver": {"solver": "cholesky", "precision": "double"}}'),
        ("train", '{"solver": {"solver": "smo", "seed": 3}}'),
        ("train", '{"solver": {"solver": "kcg", "duality_gap": 0.1}}'),
        ("train", '{"solver": {"solver": "paramcg", "max_passes": 9.0}}'),
        ("tune", '{"dataset": "/d.zarr", "out": "/h.json", "subset": 500, "restarts": 2, "seed": 3}'),
        (
            "predict",
            '{"model": "/m.zarr", "dataset": "/d.zarr", "out": "/p.zarr", "variance": {"gap": 0.01, "latent": true}}',
        ),
        ("evaluate", '{"prediction": "/p.zarr", "dataset": "/d.zarr", "plot": "/e.png"}'),
    ],
)
def test_options_as_earlier_versions_stored_them_make_the_same_job(command: str, stored: str) -> None:
    options: dict[str, Any] = {**(TRAIN if command == "train" else {}), **json.loads(stored)}
    job: Any = job_from_options(command, options)
    assert job_from_options(command, options_from_job(job)) == job
    for name, value in options.get("solver", {}).items():
        assert getattr(job.solver, name) == value


# ------------------------------------------------------------------------------------------------------- a new solver


def test_the_service_and_the_options_take_a_new_solver(richardson: SolverDeclaration) -> None:
    assert solver_names()[-1] == "richardson"
    options = {**TRAIN, "solver": {"solver": "richardson", "relaxation": 1.5}}
    job: Any = job_from_options("train", options)
    assert job.solver == SolverOptions("richardson", relaxation=1.5)
    assert options_from_job(job) == options
    described = options_schema("train")["properties"]["solver"]["properties"]
    told = own_options()["relaxation"].help
    assert described["relaxation"] == {"default": 1.0, "type": "number", "description": told}
    assert "richardson" in described["solver"]["enum"]
    with pytest.raises(UsageError, match="solver: `relaxation` belongs to the solver richardson; got `solver` gbcd"):
        job_from_options("train", {**TRAIN, "solver": {"solver": "gbcd", "relaxation": 1.5}})
    assert job_from_options("train", {**TRAIN, "solver": {"relaxation": 1.5}}) == job
    with pytest.raises(InputError, match="solver: the relaxation must be between 0 and 2; got 3"):
        job_from_options("train", {**TRAIN, "solver": {"solver": "richardson", "relaxation": 3.0}})


def test_memory_is_refused_beyond_its_plan(richardson: SolverDeclaration) -> None:
    solver = build_solver("richardson", {"relaxation": 1.5})
    held = solver_memory(solver, 10**6, 8)
    assert held == SolverMemory(memory=0, own_bytes=8 * 10**6)
    here = Processes(resident_bytes=0, shares_process=True, overlaps=False, cache_bytes=0)
    plan = plan_training(10**6, 8, 1, held, here, holds_inputs=True)
    without = plan_training(10**6, 8, 1, SolverMemory(memory=0), here, holds_inputs=True)
    plan.require(plan.coordinator_bytes)
    assert plan.coordinator_bytes - without.coordinator_bytes == 8 * 10**6
    with pytest.raises(MemoryBudgetError, match="projected to need"):
        plan.require(plan.coordinator_bytes - 1)


def test_an_estimator_takes_it_by_name(richardson: SolverDeclaration, rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60)
    kernel = SquaredExponential((1.0, 1.0))
    model = GPRegressor(kernel, noise_variance=0.5, solver="richardson", tol=1e-8).fit(X, y)
    assert model.solution_["solver"] == "richardson"
    reference = GPRegressor(kernel, noise_variance=0.5, solver="cholesky", tol=1e-8).fit(X, y)
    np.testing.assert_allclose(model.predict(X), reference.predict(X), rtol=0.0, atol=1e-7)


@pytest.mark.long
def test_a_solver_that_is_known_first_takes_no_name_of_dkgps_own_nor_a_place_before_them() -> None:
    code = """
import dkgp.solvers.smo
from dkgp.registry import Option
from dkgp.solvers import Choice, registry
try:
    registry.register_solver(registry.SolverDeclaration("mine", "", lambda rank: None, (Option("rank", "", int, 3),)))
except registry.UsageError as error:
    print(error)
print(*registry.solver_names())
"""
    shown = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    refused, names = shown.stdout.splitlines()
    assert "'rank', which means something else as an option of 'pcg'" in refused
    assert tuple(names.split()) == OWN == solver_names()


def environment(*more: Path) -> dict[str, str]:
    found = os.pathsep.join(map(str, (ROOT, *more)))
    return {**os.environ, "PYTHONPATH": found, "OPENBLAS_NUM_THREADS": "1"}


COMMANDS = """
import json, sys
from click.testing import CliRunner
from dkgp.cli import main
results = []
for arguments in json.load(sys.stdin):
    found = CliRunner().invoke(main, arguments)
    results.append([found.exit_code, found.stdout, found.stderr])
print(json.dumps(results))
"""


@pytest.mark.long
def test_an_installed_package_brings_a_solver_to_the_command_line(
    small_problem: dict[str, str], tmp_path: Path
) -> None:
    about = tmp_path / "site" / "richardson-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: richardson\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dkgp.solvers]\nrichardson = tests.solvers.richardson\n")

    def train(name: str, *options: str) -> list[str]:
        given = ("--hyper", small_problem["hyper"], "--out", str(tmp_path / name), "--quiet", "--json")
        return ["train", small_problem["dataset"], *given, *options]

    mine = ("--solver", "richardson", "--relaxation", "1.5")
    asked = [
        ["train", "--help"],
        ["submit", "train", "--help"],
        ["bench", "solvers", "--help"],
        train("whole", *mine),
        train("parts", *mine, "--max-passes", "20"),
        train("parts", *mine, "--resume"),
        train("refused", *mine, "--memory-limit", "1MiB"),
        train("wrong", "--solver", "gbcd", "--relaxation", "1.5"),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(asked),
        env=environment(tmp_path / "site"),
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(ran.stdout)
    for _, shown, _ in results[:2]:
        assert "|richardson]" in "".join(shown.split())
    assert "smo,richardson." in "".join(results[2][1].split())
    for _, shown, _ in results[:2]:
        words = " ".join(shown.split())
        assert "richardson: Richardson's iteration." in words
        assert (
            "--relaxation FLOAT Step of richardson over the one that is safe; between 0 and 2. [default: 1.0]" in words
        )
    whole, parts, resumed = (json.loads(shown) for _, shown, _ in results[3:6])
    assert [code for code, _, _ in results[3:]] == [0, 4, 0, 3, 2]
    assert (whole["solver"], whole["converged"], whole["settings"]["relaxation"]) == ("richardson", True, 1.5)
    assert (parts["converged"], resumed["resumed"]) == (False, True)
    assert resumed["iterations"] == whole["iterations"] > 20
    assert whole["memory_plan"]["block_bytes"] == 8 * 60
    alphas = [dkgp.data.open_model(tmp_path / name).alpha.tobytes() for name in ("whole", "parts")]
    assert alphas[0] == alphas[1]
    assert "projected to need" in results[6][2]
    assert "--relaxation belongs to the solver richardson; got --solver gbcd" in results[7][2]
    assert not (tmp_path / "refused").exists()


def test_modules_that_are_not_imported_declare_no_solver() -> None:
    folder = Path(registry.__file__).parent
    for name in registry.WITHOUT:
        place = folder / name.replace(".", "/")
        files = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        assert files
        assert not any("register_solver(" in file.read_text() for file in files)
