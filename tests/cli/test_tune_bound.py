"""`dkgp tune --objective bound`: its document, table and picture, any cluster, interruption and resuming, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.commands.tune import bound as tune_bound
from dkgp.models import read_hyperparameters
from tests.cli.conftest import document_of, refused

Command = Callable[..., Result]

OPTIONS = ("--objective", "bound", "--basis-size", 12)


@pytest.fixture(scope="module")
def train(pipeline: dict[str, Any]) -> str:
    return str(pipeline["ingest"]["train"])


@pytest.fixture(scope="module")
def reference(run: Command, train: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("reference") / "hyper.json"
    return document_of(run("tune", train, "--out", out, *OPTIONS, "--json", "--cluster", "none", "--workers", 1))


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


def test_any_cluster_gives_the_same_file(run: Command, train: str, reference: dict[str, Any], tmp_path: Path) -> None:
    for name, cluster in (("a", ("--workers", 3)), ("b", ("--cluster", "local", "--workers", 2))):
        found = document_of(run("tune", train, "--out", tmp_path / f"{name}.json", *OPTIONS, "--json", *cluster))
        assert without_time(found) == without_time(reference)


def test_the_table_and_the_picture(run: Command, train: str, tmp_path: Path) -> None:
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

        monkeypatch.setattr(tune_bound, "interruptible", interruptible)

    return after


def test_an_interrupted_search_goes_on_from_its_checkpoint(
    run: Command, train: str, reference: dict[str, Any], tmp_path: Path, interrupting: Callable[[int], None]
) -> None:
    out = tmp_path / "hyper.json"
    given = ("tune", train, "--out", out, *OPTIONS)
    interrupting(60)
    refused(run(*given), "evaluations are saved in", "same command and --resume", exit_code=130)
    assert not out.exists()
    held = json.loads((tmp_path / "hyper.json.checkpoint").read_text())
    assert len(held["evaluations"]) > 1
    interrupting(90)
    result = run(*given, "--resume")
    refused(result, f"going on from '{out}.checkpoint', {len(held['evaluations'])} evaluations", exit_code=130)
    interrupting(10**9)
    found = document_of(run(*given, "--resume", "--json"))
    assert without_time(found) == without_time(reference)
    assert not (tmp_path / "hyper.json.checkpoint").exists()
    again = run(*given, "--resume", "--json")
    assert "are done" in again.stderr
    assert without_time(document_of(again)) == without_time(reference)


def test_a_checkpoint_of_another_search_is_not_gone_on_from(
    run: Command, train: str, tmp_path: Path, interrupting: Callable[[int], None]
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
    (tmp_path / "hyper.json.checkpoint").write_text("{")
    refused(run("tune", train, "--out", out, *OPTIONS, "--resume"), "no checkpoint of a search, or damaged")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (("--objective", "bound", "--subset", 100), 2, ("--objective bound looks at all samples; leave out --subset",)),
        (("--objective", "fitc", "--folds", 5), 2, ("leave out --folds",)),
        (("--basis-size", 5), 2, ("--basis-size is of the objectives bound and fitc", "likelihood, looks at a subset")),
        (("--objective", "bound", "--basis-size", 601), 3, ("1 to 600 samples", "--basis-size asks for 601")),
        (("--objective", "bound", "--basis-size", 0), 3, ("1 to 600 samples", "asks for 0")),
        (("--objective", "bound", "--fix", "gama=1"), 3, ("no hyperparameter is called 'gama'",)),
        (("--objective", "bound", "--kernel", "rbff"), 3, ("rbff",)),
        (("--objective", "bound", "--restarts", 0), 3, ("restarts must be at least 1",)),
    ],
)
def test_what_does_not_go_together_or_fit_is_refused_before_a_cluster_is_started(
    run: Command,
    train: str,
    tmp_path: Path,
    options: tuple[object, ...],
    exit_code: int,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(*arguments: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("dkgp.commands.tune.run.open_executor", opened)
    refused(run("tune", train, "--out", tmp_path / "hyper.json", *options), *words, exit_code=exit_code)
    assert list(tmp_path.iterdir()) == []


def test_more_memory_than_there_is_is_refused_with_numbers(
    run: Command, train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_bound, "available_bytes", lambda: 1_000_000)
    result = run("tune", train, "--out", tmp_path / "hyper.json", *OPTIONS)
    refused(result, "12 basis samples is projected to need", "MiB", "--basis-size")
    assert list(tmp_path.iterdir()) == []


def test_by_default_all_samples_of_a_small_store_are_the_basis(
    train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def searched(*given: object, basis_size: int, **others: object) -> None:
        asked.append(basis_size)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_bound, "tune_by_bound", searched)
    with pytest.raises(KeyboardInterrupt):
        run_tune(TuneJob(train, str(tmp_path / "hyper.json"), objective="bound"), SilentReporter())
    assert asked == [600]


def test_the_result_is_refined_on_request(run: Command, train: str, tmp_path: Path) -> None:
    options = ("--refine", "--refine-steps", 1, "--refine-holdout", 0)
    found = document_of(run("tune", train, "--out", tmp_path / "hyper.json", *OPTIONS, *options, "--json"))
    assert found["refinement"]["history"]
    assert ("sparse" in found) == (found["refinement"]["kept"] == "start")
