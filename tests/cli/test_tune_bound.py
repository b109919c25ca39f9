"""`dkgp tune --objective bound`: its document, table and picture, any cluster, interruption and resuming, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands import tune as tune_command
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.data import CheckpointStore, open_dataset
from dkgp.models import RunContext, read_hyperparameters
from dkgp.models.sparse.search import plan_bound
from dkgp.models.sparse.vif import Neighbours, kept_bytes
from tests.cli.invoke import document_of, refused, run, run_json

OPTIONS = ("--objective", "bound", "--basis-size", 12)


@pytest.fixture(scope="module")
def train(pipeline: dict[str, Any]) -> str:
    return str(pipeline["ingest"]["train"])


@pytest.fixture(scope="module")
def reference(train: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("reference") / "hyper.json"
    return run_json("tune", train, "--out", out, *OPTIONS, "--cluster", "none", "--workers", 1)


def without_time(found: dict[str, Any]) -> dict[str, Any]:
    left_out = ("seconds", "peak_memory_bytes", "out", "plot", "warnings", "run")
    return {name: value for name, value in found.items() if name not in left_out}


def test_the_file_says_what_was_found(reference: dict[str, Any]) -> None:
    written = json.loads(Path(reference["out"]).read_text())
    assert {name: reference[name] for name in written if name != "warnings"} == {
        name: value for name, value in written.items() if name != "warnings"
    }
    assert (reference["objective"], reference["n_samples"], reference["converged"]) == ("bound", 600, True)
    sparse = reference["sparse"]
    assert sparse["basis_size"] == len(set(sparse["samples"])) == 12
    assert sparse["rounds"][-1]["value"] == sparse["value"]
    assert 0.0 < sparse["left"] < 1.0
    assert "log_marginal_likelihood" not in reference
    assert "subset_size" not in reference
    assert not Path(f"{reference['out']}.checkpoint").exists()
    assert read_hyperparameters(reference["out"], n_features=6).sparse == sparse


def test_any_cluster_gives_the_same_file(train: str, reference: dict[str, Any], tmp_path: Path) -> None:
    found = run_json("tune", train, "--out", tmp_path / "a.json", *OPTIONS, "--cluster", "local", "--workers", 3)
    assert without_time(found) == without_time(reference)


def test_the_table_and_the_picture(train: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "scales.svg"
    options = ("--objective", "fitc", "--basis-size", 10, "--plot", picture)
    result = run("tune", train, "--out", tmp_path / "hyper.json", *options)
    assert result.exit_code == 0, result.stderr
    for text in ("FITC likelihood", "basis samples", "noise variance", "evaluations"):
        assert text in result.stdout
    assert "maximising the FITC likelihood of 10 basis samples on 600 samples of 6 features" in result.stderr
    assert "evaluations with 10 samples" in result.stderr
    assert picture.read_text().startswith("<?xml")


NEAR = ("--objective", "vif", "--basis-size", 10, "--tol", "0.5")


@pytest.fixture(scope="module")
def near(train: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of a search with neighbours."""
    out = tmp_path_factory.mktemp("near") / "hyper.json"
    found = run_json("tune", train, "--out", out, *NEAR, "--cluster", "none")
    assert (found["objective"], found["sparse"]["basis_size"]) == ("vif", 10)
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.mark.long
def test_with_neighbours(train: str, near: dict[str, Any], tmp_path: Path) -> None:
    """The same values on workers, each with neighbours of its own making, and named in the table."""
    result = run("tune", train, "--out", tmp_path / "hyper.json", *NEAR, "--cluster", "local", "--workers", 2)
    assert result.exit_code == 0, result.stderr
    assert "likelihood with neighbours" in result.stdout
    assert "maximising the likelihood with neighbours of 10 basis samples on 600 samples" in result.stderr
    assert without_time(json.loads((tmp_path / "hyper.json").read_text())) == without_time(near)


def evaluations_in(out: Path, columns: int | None = None) -> int:
    """The number of evaluations in the checkpoint of a search, whose next one starts from so many columns."""
    latest = CheckpointStore(f"{out}.checkpoint").load_latest()
    assert latest is not None
    assert columns in (None, latest.arrays.get("begin", np.zeros((0, 0))).shape[1])
    return len(latest.metadata["state"]["evaluations"])


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have a signal come after so many looks for one."""

    def after(looks: int) -> None:
        left = [looks]

        def asked() -> bool:
            left[0] -= 1
            return left[0] < 0

        @contextmanager
        def interruptible(announce: object) -> Iterator[Callable[[], bool]]:
            yield asked

        monkeypatch.setattr(tune_command, "interruptible", interruptible)

    return after


def test_an_interrupted_search_goes_on_from_its_checkpoint(
    train: str, reference: dict[str, Any], tmp_path: Path, interrupting: Callable[[int], None]
) -> None:
    out = tmp_path / "hyper.json"
    given = ("tune", train, "--out", out, *OPTIONS)
    interrupting(60)
    refused(run(*given), "evaluations are saved in", "same command and --resume", exit_code=130)
    assert not out.exists()
    held = evaluations_in(out)
    assert held > 1
    interrupting(90)
    result = run(*given, "--resume")
    refused(result, f"going on from '{out}.checkpoint', {held} evaluations", exit_code=130)
    interrupting(10**9)
    found = run_json(*given, "--resume")
    assert without_time(found) == without_time(reference)
    assert not (tmp_path / "hyper.json.checkpoint").exists()
    again = run(*given, "--resume", "--json")
    assert "are done" in again.stderr
    assert without_time(document_of(again)) == without_time(reference)


def test_an_interrupted_search_with_neighbours_goes_on_to_the_same_values(
    train: str, near: dict[str, Any], tmp_path: Path, interrupting: Callable[[int], None]
) -> None:
    """Neighbours are no part of the checkpoint: they are found again, the same."""
    out = tmp_path / "hyper.json"
    command = ("tune", train, "--out", out, *NEAR, "--cluster", "none")
    interrupting(60)
    refused(run(*command), "same command and --resume", exit_code=130)
    assert evaluations_in(out) >= 1
    interrupting(10**9)
    assert run(*command, "--resume").exit_code == 0
    assert without_time(json.loads(out.read_text())) == without_time(near)


@pytest.mark.long
def test_labels_by_their_evidence_with_neighbours(
    labelled: Callable[[int], dict[str, Any]], tmp_path: Path, interrupting: Callable[[int], None]
) -> None:
    """The same bits anywhere and after an interruption, since modes go on from the last; no classifier warns of it."""
    train, out = labelled(3)["train"], tmp_path / "hyper.json"
    options = ("--objective", "vif", "--likelihood", "probit", "--kernel", "rbf(isotropic=True)")
    options = (*options, "--basis-size", 10, "--tol", "1")
    command, n = ("tune", train, "--out", out, *options), open_dataset(train).n_samples
    whole = run_json("tune", train, "--out", tmp_path / "a.json", *options, "--cluster", "none")
    assert (whole["objective"], whole["likelihood"], whole["n_samples"]) == ("vif", "probit", n)
    interrupting(200)
    refused(run(*command), "same command and --resume", exit_code=130)
    assert 1 <= evaluations_in(out, columns=3) < whole["evaluations"]
    interrupting(10**9)
    result = run(*command, "--resume", "--cluster", "local", "--workers", 2)
    assert result.exit_code == 0, result.stderr
    there, here = (without_time(json.loads(path.read_text())) for path in (tmp_path / "a.json", out))
    assert here == there
    for words in ("likelihood", "probit", "log evidence (Laplace)", "basis samples"):
        assert words in result.stdout
    assert "noise variance" not in result.stdout
    assert f"maximising the evidence with neighbours of 10 basis samples on {n} samples" in result.stderr
    classify = ("classify", train, "--hyper", out, "--cluster", "none", "--method", "logistic", "--basis-size", 20)
    told = run(*classify, "--out", tmp_path / "model", "--link", "probit")
    assert told.exit_code == 0, told.stderr
    assert "were found for" not in " ".join(told.stderr.split())


def test_workers_keep_what_steps_to_a_mode_use_again_as_far_as_there_is_room(
    labelled: Callable[[int], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, or half of what is left."""
    kept: list[int] = []

    def searched(data: object, context: RunContext, *_: object, **__: object) -> None:
        kept.append(context.executor.tiles.bytes)
        raise KeyboardInterrupt

    job = TuneJob(labelled(2)["train"], str(tmp_path / "hyper.json"), objective="vif", likelihood="logit")
    n = open_dataset(job.dataset).n_samples
    plan, whole = plan_bound(n, 3, 200, 3, LocalExecutor(1), 2**20, "vif"), kept_bytes(n, 200, Neighbours())
    monkeypatch.setattr(tune_command, "tune_labels_by_neighbours", searched)
    monkeypatch.setattr(tune_command, "plan_bound", lambda *_: plan)
    for spare in (10 * whole, whole, 0):
        monkeypatch.setattr(tune_command, "memory_budget", lambda spare=spare: (0, plan.coordinator_bytes + spare))
        with pytest.raises(KeyboardInterrupt):
            run_tune(job, SilentReporter())
    assert kept == [whole, whole // 2, 0]


def test_a_checkpoint_of_another_search_is_not_gone_on_from(
    train: str, tmp_path: Path, interrupting: Callable[[int], None]
) -> None:
    out = tmp_path / "hyper.json"
    interrupting(40)
    assert run("tune", train, "--out", out, *OPTIONS).exit_code == 130
    interrupting(40)
    result = run("tune", train, "--out", out, "--objective", "bound", "--basis-size", 9, "--resume")
    assert result.exit_code == 130
    assert "going on from" not in result.stderr
    interrupting(40)
    result = run("tune", train, "--out", out, *OPTIONS)
    assert "of an earlier run and will be replaced" in " ".join(result.stderr.split())
    shutil.rmtree(tmp_path / "hyper.json.checkpoint")
    (tmp_path / "hyper.json.checkpoint").write_text("{")
    refused(run("tune", train, "--out", out, *OPTIONS, "--resume"), "no checkpoint of a search, or damaged")
    assert not out.exists()


def test_more_memory_than_there_is_is_refused_with_numbers(
    train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_command, "memory_budget", lambda: (0, 1_000_000))
    result = run("tune", train, "--out", tmp_path / "hyper.json", *OPTIONS)
    refused(result, "12 basis samples is projected to need", "MiB", "--basis-size")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("objective", "size"), [("bound", 600), ("vif", 200)])
def test_by_default_all_samples_of_a_small_store_are_the_basis(
    train: str, objective: Any, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And 200 where there are neighbours besides."""

    asked: list[int] = []

    def searched(*given: object, basis_size: int, **others: object) -> None:
        asked.append(basis_size)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_command, "tune_by_bound", searched)
    with pytest.raises(KeyboardInterrupt):
        run_tune(TuneJob(train, str(tmp_path / "hyper.json"), objective=objective), SilentReporter())
    assert asked == [size]


def test_the_result_is_refined_on_request(train: str, tmp_path: Path) -> None:
    options = ("--refine", "--refine-steps", 1, "--refine-holdout", 0)
    found = run_json("tune", train, "--out", tmp_path / "hyper.json", *OPTIONS, *options)
    assert found["refinement"]["history"]
    assert ("sparse" in found) == (found["refinement"]["kept"] == "start")
