"""`dkgp tune`: subsets, bounds on all samples, compared kernels and refinement, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands import searches as tune_command
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.searches import run_tune
from dkgp.commands.tune import COMPARED_KERNELS, TuneJob
from dkgp.data import CheckpointStore, ingest, open_dataset
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.models import RunContext, read_hyperparameters, tune_dataset
from dkgp.models.refinement.record import RefineSettings
from dkgp.models.sparse.search import plan_bound
from dkgp.models.sparse.vif import Neighbours, kept_bytes
from dkgp.service.specification import job_from_options, options_from_job
from tests.cli.invoke import Places, Shell, document_of, run
from tests.problem import write_hyper

# Searches that several tests look at, each run once.
SEARCHES = {
    "subsets": "tune @train --subset 60 --subsets 3 --folds 4 --holdout 0.5",
    "loo": "tune @train --subset 60 --kernel 'matern32 + linear' --objective loo --prior '*gamma*=lognormal(0.1, 1)'",
    "bound": "tune @train --objective bound --basis-size 12",
    "vif": "tune @train --objective vif --basis-size 10 --tol 0.5",
    "labels": "tune @three --objective vif --likelihood probit --kernel 'rbf(isotropic=True)' --basis-size 10 --tol 1",
    "kernels": "tune @rough --kernel auto --plot @kernels.svg",
}
REFINE = "--refine-probes 4 --refine-rank 30 --refine-steps 4"


@pytest.fixture(scope="module")
def places(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("tune")

    def rough() -> str:
        """A rough path in one feature beside a line in the other: no kernel is the same as another."""
        rng = np.random.default_rng(7)
        x = np.sort(rng.uniform(0.0, 1.0, 120))
        path = np.cumsum(rng.normal(0.0, np.sqrt(np.diff(x, prepend=0.0))))
        z = rng.standard_normal(120)
        y = 3.0 * path + z + 0.05 * rng.standard_normal(120)
        np.savetxt(folder / "rough.csv", np.column_stack([x, z, y]), delimiter=",", header="x,z,y", comments="")
        return ingest(str(folder / "rough.csv"), str(folder / "rough.zarr"), target="y").train.url

    def coasts() -> Path:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(400, 2)) * [3.0, 10.0]
        y = np.sin(X[:, :1]) + 0.05 * X[:, 1:] + 0.2 * rng.normal(size=(400, 1))
        dataset_from_arrays(folder / "coasts.zarr", X, y, feature_names=("lat", "lon"), chunk_rows=150)
        return folder / "coasts.zarr"

    def bad() -> Path:
        return write_hyper(folder / "bad.json", [0.3, 3.0], 0.6)

    shared = {name: (lambda name=name: stores[name]) for name in stores}
    return Places({**shared, "rough": rough, "coasts": coasts, "bad": bad})


@pytest.fixture
def shell(places: Places, tmp_path: Path) -> Shell:
    return Shell(tmp_path, places)


@pytest.fixture(scope="module")
def found(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The document of a search, on one worker."""

    @cache
    def of(name: str) -> dict[str, Any]:
        shell = Shell(tmp_path_factory.mktemp("found"), places)
        return shell.json(f"{SEARCHES[name]} --out @hyper.json --cluster none --workers 1")

    return of


def without_time(document: dict[str, Any]) -> dict[str, Any]:
    left_out = ("command", "seconds", "peak_memory_bytes", "out", "plot", "warnings", "run")
    return {name: value for name, value in document.items() if name not in left_out}


def written(path: Any) -> dict[str, Any]:
    return json.loads(Path(path).read_text())  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------- the file and the tables


@pytest.mark.long
@pytest.mark.parametrize("name", ["subsets", "bound", pytest.param("vif", marks=pytest.mark.long)])
def test_any_cluster_gives_the_same_file(name: str, shell: Shell, found: Callable[[str], dict[str, Any]]) -> None:
    other = shell.json(f"{SEARCHES[name]} --out @hyper.json --cluster local --workers 3")
    assert without_time(other) == without_time(found(name))
    assert (other["warnings"], other["plot"]) == (found(name)["warnings"], None)
    assert name != "subsets" or other["run"] == found(name)["run"]


@pytest.mark.parametrize("name", ["loo", "bound"])
def test_what_is_printed_is_what_is_written(name: str, found: Callable[[str], dict[str, Any]]) -> None:
    document = found(name)
    for key, value in written(document["out"]).items():
        assert key == "warnings" or document[key] == value
    assert "log_marginal_likelihood" not in written(document["out"])
    hyper = read_hyperparameters(document["out"], n_features=6)
    if name == "loo":
        assert (document["objective"], document["kernel"]["type"]) == ("loo", "sum")
        assert {"leave_one_out_log_likelihood", "log_prior"} <= set(written(document["out"]))
        assert hyper.parameters is not None
        names = [item["name"] for item in document["parameters"]]
        assert [parameter.name for parameter in hyper.parameters] == names
        return
    assert (document["objective"], document["n_samples"], document["converged"]) == ("bound", 600, True)
    sparse = document["sparse"]
    assert sparse["basis_size"] == len(set(sparse["samples"])) == 12
    assert sparse["rounds"][-1]["value"] == sparse["value"]
    assert 0.0 < sparse["left"] < 1.0
    assert "subset_size" not in document
    assert not Path(f"{document['out']}.checkpoint").exists()
    assert hyper.sparse == sparse


def test_documents_say_what_was_looked_at(found: Callable[[str], dict[str, Any]]) -> None:
    subsets, near = found("subsets"), found("vif")
    assert (subsets["subsets"], subsets["subset_size"]) == (3, 60)
    assert subsets["scores"]["folds"]["predictions"] == 180
    assert subsets["scores"]["holdout"]["rows"] == 30
    assert (near["objective"], near["sparse"]["basis_size"]) == ("vif", 10)


@pytest.mark.parametrize(
    ("line", "printed", "told"),
    [
        (
            "tune @train --subset 60 --subsets 2 --folds 3 --kernel \"rbf['a', 'd'] + linear\"",
            "2 of 60 samples|log marginal likelihood|gamma|length scale|3 folds|RMSE|NLPD",
            "2 subsets of 60 of 600 samples",
        ),
        (
            "tune @train --objective fitc --basis-size 10 --plot @scales.svg",
            "FITC likelihood|basis samples|noise variance|evaluations",
            "maximising the FITC likelihood of 10 basis samples on 600 samples of 6 features"
            "|evaluations with 10 samples",
        ),
        pytest.param(
            SEARCHES["vif"],
            "likelihood with neighbours",
            "maximising the likelihood with neighbours of 10 basis samples on 600 samples",
            marks=pytest.mark.long,
        ),
        (
            "tune @rough --kernel auto",
            "Kernels, tuned on 120 samples and scored by cross-validation on 120 training samples",
            "the kernel is ",
        ),
    ],
)
def test_tables_and_notes(line: str, printed: str, told: str, shell: Shell) -> None:
    result = shell.run(f"{line} --out @hyper.json")
    assert result.exit_code == 0, result.stderr
    for words in printed.split("|"):
        assert words in result.stdout
    for words in told.split("|"):
        assert words in result.stderr
    if "--plot" in line:
        assert shell["scales.svg"].read_text().startswith("<?xml")
    if "--kernel auto" in line:
        best = written(shell["hyper.json"])["comparison"]["kernel"]
        assert f"{best} *" in result.stdout
        assert f"the kernel is {best}: NLPD" in result.stderr


@pytest.mark.parametrize("kernel", ["rbf", "linear + constant", "rbf(isotropic=True) * periodic['a']"])
def test_a_picture_is_drawn_of_any_kernel(shell: Shell, kernel: str) -> None:
    pytest.importorskip("matplotlib")
    picture = shell["sub"] / "scales.svg"
    line = "tune @train --subset 60 --folds 2 --fix noise_variance=0.1 --out @a.json"
    assert shell.json(line, "--kernel", kernel, "--plot", picture)["plot"] == str(picture)
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    assert len(drawn) > 5000


def test_bounds_fixed_values_and_a_start(shell: Shell) -> None:
    line = "tune @train --subset 60 --bounds gamma*=0.01:0.5 --fix noise_variance=0.05 --bounds gamma.f=0.2:0.3"
    first = shell.json(f"{line} --out @first.json")
    told = {item["name"]: item for item in first["parameters"]}
    assert first["noise_variance"] == pytest.approx(0.05)
    assert told["noise_variance"]["fixed"] is True
    assert (told["gamma.f"]["lower"], told["gamma.f"]["upper"]) == pytest.approx((0.2, 0.3))
    assert all(0.0099 <= told[f"gamma.{name}"]["value"] <= 0.51 for name in "abcde")
    second = shell.json("tune @train --subset 60 --start @first.json --out @second.json")
    started = {item["name"]: item["start"] for item in second["parameters"]}
    assert started == pytest.approx({name: item["value"] for name, item in told.items()})


def test_the_job_runs_as_the_command_does(shell: Shell) -> None:
    priors, bounds = ("noise_variance=lognormal(0.1, 1)",), ("gamma*=0.001:100",)
    options = {"kernel": "matern52", "subset": 60, "subsets": 2, "bounds": bounds, "priors": priors}
    job = run_tune(TuneJob(str(shell["train"]), str(shell["job.json"]), **options), SilentReporter())
    line = "tune @train --kernel matern52 --subset 60 --subsets 2 --bounds gamma*=0.001:100 --out @hyper.json"
    command = shell.json(line, "--prior", *priors)
    for name in ("seconds", "peak_memory_bytes", "out"):
        del job[name], command[name]
    assert job == command
    assert open_dataset(shell["train"]).n_samples == command["n_samples"]


def test_options_given_several_times_stand_in_a_batch_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    given = ("--bounds", "gamma*=0.1:1", "--bounds", "variance=1:2", "--prior", "gamma*=lognormal(0.1, 1)")
    result = run(
        *("submit", "--slurm", "--write-only", script, "tune", "/d", "--out", "/h.json", "--start", "/s.json"), *given
    )
    assert result.exit_code == 0, result.stderr
    words = shlex.split(next(line for line in script.read_text().splitlines() if line.startswith("command=(")))
    for option, value in zip(given[::2], given[1::2], strict=True):
        assert any(pair == (option, value) for pair in pairwise(words))


def test_a_bound_that_stopped_the_search_is_named_where_it_ends(tmp_path: Path) -> None:
    """Each row twice: in the table, in the warning on the terminal and in the document."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (80, 2))
    y = np.sin(3.0 * X[:, 0]) + 0.3 * rng.standard_normal(80)
    np.savez(tmp_path / "twice.npz", X=np.repeat(X, 2, axis=0), y=np.repeat(y, 2))
    train, out = tmp_path / "train.zarr", tmp_path / "hyper.json"
    assert run("ingest", tmp_path / "twice.npz", train, "--target", "y").exit_code == 0
    shown = run("tune", train, "--out", out)
    assert shown.exit_code == 0
    printed = " ".join(shown.stdout.split())
    assert re.search(r"converged no, after \d+ evaluations: noise_variance stopped at its lower bound, 1e-06", printed)
    assert "80 of the 160 samples repeat another one, target included" in " ".join(shown.stderr.split())
    document = json.loads(out.read_text())
    assert document["converged"] is False
    assert document["projected_gradient"] < 0.1
    told = {item["name"]: item for item in document["parameters"]}
    assert (told["noise_variance"]["bound"], told["noise_variance"]["pressed"]) == ("lower", True)
    wider = run("tune", train, "--out", out, "--overwrite", "--fix", "noise_variance=0.1")
    assert "converged yes" in " ".join(wider.stdout.split())


def test_more_memory_than_there_is_is_refused_with_numbers(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tune_command, "available_bytes", lambda: 2_500_000)
        line = "tune @train --subset 200 --out @hyper.json"
        assert shell.run(line).exit_code == 0  # two matrices of 200 x 200 and three block columns are 1,600,000 bytes
        words = ("200 samples, 2 of 3 subsets at a time", "2.4 MiB are available", "--subset", "--workers")
        shell.refuses(f"{line} --overwrite --subsets 3 --workers 2", *words)
    shell["hyper.json"].unlink()
    monkeypatch.setattr(tune_command, "memory_budget", lambda: (0, 1_000_000))
    words = ("12 basis samples is projected to need", "MiB", "--basis-size")
    shell.refuses(f"{SEARCHES['bound']} --out @hyper.json", *words)
    monkeypatch.setattr(tune_command, "memory_budget", lambda: (0, 1000))
    monkeypatch.setattr(tune_command, "available_bytes", lambda: 2**40)
    shell.refuses("tune @coasts --out @hyper.json --refine", "refining is projected to need")
    assert shell.names == set()


# ---------------------------------------------------------------------------------------------------------- interrupted


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have a signal come after so many looks for one."""

    def after(looks: int) -> None:
        @contextmanager
        def interruptible(announce: object) -> Iterator[Callable[[], bool]]:
            yield lambda: next(count) >= looks

        count = iter(range(10**12))
        monkeypatch.setattr(tune_command, "interruptible", interruptible)

    return after


@pytest.mark.parametrize(
    ("name", "looks"), [("bound", 60), ("vif", 60), pytest.param("labels", 200, marks=pytest.mark.long)]
)
def test_an_interrupted_search_goes_on_from_its_checkpoint(
    name: str,
    looks: int,
    shell: Shell,
    found: Callable[[str], dict[str, Any]],
    interrupting: Callable[[int], None],
) -> None:
    """To the same bits anywhere: neighbours are found again, modes go on from the last."""
    line, whole = f"{SEARCHES[name]} --out @hyper.json", found(name)
    interrupting(looks)
    shell.refuses(line, "evaluations are saved in", "same command and --resume", code=130)
    assert shell.names == {"hyper.json.checkpoint"}
    latest = CheckpointStore(shell["hyper.json.checkpoint"]).load_latest()
    held = len(latest.metadata["state"]["evaluations"])
    assert 1 <= held < whole["evaluations"]
    assert name != "labels" or latest.arrays["begin"].shape[1] == 3
    if name == "bound":
        interrupting(90)
        words = f"continuing from '{shell['hyper.json']}.checkpoint' after {held} evaluations"
        shell.refuses(f"{line} --resume", words, code=130)
    interrupting(10**9)
    document = shell.json(f"{line} --resume --cluster local --workers 2")
    assert without_time(document) == without_time(whole)
    assert shell.names == {"hyper.json"}
    again = shell.run(f"{line} --resume --json")
    assert "are already complete" in again.stderr
    assert without_time(document_of(again)) == without_time(whole)


def test_a_damaged_checkpoint_is_refused_and_that_of_another_search_left(
    shell: Shell, interrupting: Callable[[int], None]
) -> None:
    line = f"{SEARCHES['bound']} --out @hyper.json"
    for more, words in (("", ""), ("--basis-size 9 --resume", ""), ("", "from an earlier run and will be replaced")):
        interrupting(40)
        told = shell.told(f"{line} {more}", code=130)
        assert words in told
        assert "continuing from" not in told
    shutil.rmtree(shell["hyper.json.checkpoint"])
    shell["hyper.json.checkpoint"].write_text("{")
    shell.refuses(f"{line} --resume", "no checkpoint of a search, or damaged")
    assert "hyper.json" not in shell.names


@pytest.mark.long
def test_labels_by_their_evidence_with_neighbours(shell: Shell, found: Callable[[str], dict[str, Any]]) -> None:
    whole, n = found("labels"), open_dataset(shell["three"]).n_samples
    assert (whole["objective"], whole["likelihood"], whole["n_samples"]) == ("vif", "probit", n)
    result = shell.run(f"{SEARCHES['labels']} --out @hyper.json")
    assert result.exit_code == 0, result.stderr
    for words in ("likelihood", "probit", "log evidence (Laplace)", "basis samples"):
        assert words in result.stdout
    assert "noise variance" not in result.stdout
    assert f"maximising the evidence with neighbours of 10 basis samples on {n} samples" in result.stderr
    # No classifier warns of it.
    line = "classify @three --hyper @hyper.json --cluster none --method logistic --basis-size 20 --link probit --out @m"
    assert "were found for" not in shell.told(line)


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


@pytest.mark.parametrize(("objective", "size"), [("bound", 600), ("vif", 200)])
def test_by_default_all_samples_of_a_small_store_are_the_basis(
    shell: Shell, objective: Any, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And 200 where there are neighbours besides."""

    asked: list[int] = []

    def searched(*given: object, basis_size: int, **others: object) -> None:
        asked.append(basis_size)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_command, "tune_by_bound", searched)
    with pytest.raises(KeyboardInterrupt):
        run_tune(TuneJob(str(shell["train"]), str(tmp_path / "hyper.json"), objective=objective), SilentReporter())
    assert asked == [size]


# -------------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.long
def test_scores_are_those_of_each_kernel_by_itself(shell: Shell, found: Callable[[str], dict[str, Any]]) -> None:
    comparison, data = found("kernels")["comparison"], open_dataset(str(shell["rough"]))
    assert [row["kernel"] for row in comparison["kernels"]] == list(COMPARED_KERNELS)
    for row in comparison["kernels"]:
        alone = tune_dataset(data, kernel=row["kernel"], subset=120, folds=10, seed=0)
        assert row["nlpd"] == alone.scores["folds"]["nlpd"]
        assert row["rows"] == comparison["held_out"] == 120


def test_many_samples_are_held_out_and_few_are_scored_by_folds(shell: Shell) -> None:
    data, line = open_dataset(str(shell["rough"])), "tune @rough --kernel auto --out"
    few, many = shell.json(f"{line} @few.json --subset 81"), shell.json(f"{line} @many.json --subset 80")
    assert [of["comparison"]["held_out"] for of in (few, many)] == [81, 40]
    for row in many["comparison"]["kernels"][:1]:
        alone = tune_dataset(data, kernel=row["kernel"], subset=80, holdout=0.5, seed=0)
        assert row["nlpd"] == alone.scores["holdout"]["nlpd"]


def test_the_best_is_tuned_as_if_it_had_been_named(shell: Shell, found: Callable[[str], dict[str, Any]]) -> None:
    compared = found("kernels")
    best = min(compared["comparison"]["kernels"], key=lambda row: row["nlpd"])["kernel"]
    assert compared["comparison"]["kernel"] == best
    named = shell.json(f"tune @rough --out @named.json --kernel '{best}'")
    assert named["kernel"] == compared["kernel"]
    assert named["noise_variance"] == compared["noise_variance"]
    assert "comparison" not in named
    assert read_hyperparameters(compared["out"]).comparison == compared["comparison"]
    picture = Path(compared["plot"]).read_text(encoding="utf-8")
    for kernel in COMPARED_KERNELS:
        assert f"<!-- {kernel} -->" in picture


def test_a_done_comparison_is_not_done_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "tune @rough --out @hyper.json --kernel auto --subset 60"
    first = shell.json(line)
    monkeypatch.setattr(tune_command, "tune_dataset", lambda *_, **__: pytest.fail("compared again"))
    assert shell.json(f"{line} --resume")["comparison"] == first["comparison"]


def test_a_budget_leaves_kernels_out_and_says_which(shell: Shell) -> None:
    document = shell.json("tune @rough --out @hyper.json --kernel auto --kernel-seconds 1e-6")
    assert [row["kernel"] for row in document["comparison"]["kernels"]] == [COMPARED_KERNELS[0]]
    left_out = f"not tried: {', '.join(COMPARED_KERNELS[1:])}"
    some = f"compared 1 of {len(COMPARED_KERNELS)} kernels"
    assert any(some in warning and left_out in warning for warning in document["warnings"])


def test_what_does_not_go_with_a_comparison_is_refused(shell: Shell) -> None:
    shell["few.csv"].write_text("x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(12)))
    shell.json("ingest @few.csv @few.zarr --target y")
    for options, words, code in (
        ("@rough --objective bound", "leave out --objective bound, or name the kernel", 2),
        ("@rough --start @bad", "leave --start out", 2),
        ("@rough --likelihood logit", "leave --likelihood out", 2),
        ("@rough --kernel-seconds 0", "--kernel-seconds must be positive and finite", 3),
        ("@few.zarr", "needs at least 20;", 3),
        ("@few.zarr", "has 12. Name the kernel", 3),
    ):
        shell.refuses(f"tune {options} --out @hyper.json --kernel auto", words, code=code)
    assert shell.names == {"few.csv", "few.zarr"}


# -------------------------------------------------------------------------------------------------------------- refined


@pytest.mark.long
def test_the_subsets_result_is_refined(shell: Shell) -> None:
    result = shell.run(f"tune @coasts --out @hyper.json --subset 60 --refine {REFINE} --json")
    document = document_of(result)
    record = document["refinement"]
    assert record["kept"] in ("refined", "start")
    assert record["before"]["nlpd"] > record["after"]["nlpd"] or record["kept"] == "start"
    assert record["settings"]["probes"] == 4
    assert record["n_held_out"] == 40
    assert record["memory_plan"]["coordinator_bytes"] > 0
    found = read_hyperparameters(shell["hyper.json"], feature_names=("lat", "lon"))
    assert found.noise_variance == document["noise_variance"]
    assert found.refinement == record
    # A line for every step, and what came of it.
    assert result.stderr.count("refine step ") == len(record["history"])
    assert record["verdict"] in " ".join(result.stderr.split()) or record["kept"] == "start"


def test_the_result_of_a_bound_is_refined_on_request(shell: Shell) -> None:
    found = shell.json(f"{SEARCHES['bound']} --out @hyper.json --refine --refine-steps 1 --refine-holdout 0")
    assert found["refinement"]["history"]
    assert ("sparse" in found) == (found["refinement"]["kept"] == "start")


def test_values_of_a_file_are_refined_without_a_search(shell: Shell) -> None:
    line = f"tune @coasts --start @bad --refine-only {REFINE} --fix gamma.lon=0.5 --plot @scales.png --refine-evidence"
    result = shell.run(f"{line} --out @hyper.json")
    assert result.exit_code == 0, result.stderr
    for words in ("Refined on all samples", "40 held-out samples", "log marginal likelihood"):
        assert words in result.stdout
    assert "evaluation" not in result.stderr
    found = read_hyperparameters(shell["hyper.json"])
    assert found.refinement["kept"] == "refined"
    assert found.refinement["after"]["nlpd"] < found.refinement["before"]["nlpd"] - 0.1
    assert found.gamma[1] == pytest.approx(0.5)
    assert found.noise_variance < 0.3


def test_an_interruption_leaves_the_best_so_far_and_says_how_to_go_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    refine = tune_command.refine

    @contextmanager
    def interrupted_soon(announce: Any) -> Iterator[Any]:
        yield lambda: len(steps) > 2

    def counted(dataset: Any, space: Any, context: Any, *arguments: Any, **options: Any) -> Any:
        watched = replace(context, callback=lambda step: (steps.append(step), context.callback(step)))
        return refine(dataset, space, watched, *arguments, **options)

    line = f"tune @coasts --refine-only {REFINE}"
    with monkeypatch.context() as patch:
        patch.setattr(tune_command, "interruptible", interrupted_soon)
        patch.setattr(tune_command, "refine", counted)
        message = shell.json(f"{line} --start @bad --out @hyper.json", code=130)["error"]["message"]
    assert "not validated" in message
    assert f"--start '{shell['hyper.json']}' --refine-only" in message
    so_far = read_hyperparameters(shell["hyper.json"])
    assert so_far.refinement["interrupted"]
    assert so_far.noise_variance == so_far.refinement["history"][-1]["noise_variance"] < 0.6
    again = shell.json(f"{line} --start @hyper.json --out @again.json")["refinement"]
    assert again["history"][0]["noise_variance"] == so_far.noise_variance
    assert not again["interrupted"]


def test_solves_that_end_early_are_told_of(shell: Shell) -> None:
    line = "tune @coasts --out @hyper.json --start @bad --refine-only --refine-rank 5 --refine-max-passes 1"
    document = shell.json(f"{line} --refine-tol 1e-9 --refine-steps 1 --refine-holdout 0")
    assert any("did not reach their relative residual within 1 passes" in warning for warning in document["warnings"])
    history = document["refinement"]["history"]
    assert all(step["relative_residual"] > 1e-9 and step["solver_share"] > 0.0 for step in history)


def test_a_service_can_be_given_it() -> None:
    pytest.importorskip("pydantic")
    options = {
        "dataset": "/data/train.zarr",
        "out": "/data/hyper.json",
        "start": "/data/start.json",
        "refine": {"steps": 5, "held_out": 100},
        "refine_only": True,
    }
    job = job_from_options("tune", options)
    assert isinstance(job, TuneJob)
    assert job.refine == RefineSettings(steps=5, held_out=100)
    assert options_from_job(job) == options
