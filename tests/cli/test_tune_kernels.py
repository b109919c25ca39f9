"""`dkgp tune --kernel auto`: kernels scored as each by itself, the best taken and said, a budget, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.tune import COMPARED_KERNELS
from dkgp.data import ingest, open_dataset
from dkgp.models import read_hyperparameters, tune_dataset
from tests.cli.invoke import refused, run, run_json


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A rough path in one feature beside a line in the other: no kernel is the same as another."""
    rng = np.random.default_rng(7)
    x = np.sort(rng.uniform(0.0, 1.0, 120))
    path = np.cumsum(rng.normal(0.0, np.sqrt(np.diff(x, prepend=0.0))))
    z = rng.standard_normal(120)
    y = 3.0 * path + z + 0.05 * rng.standard_normal(120)
    folder = tmp_path_factory.mktemp("rough")
    np.savetxt(folder / "rough.csv", np.column_stack([x, z, y]), delimiter=",", header="x,z,y", comments="")
    return ingest(str(folder / "rough.csv"), str(folder / "rough.zarr"), target="y").train.url


@pytest.fixture(scope="module")
def compared(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("hyper")
    plot = out / "kernels.svg"
    return run_json("tune", dataset, "--out", out / "hyper.json", "--kernel", "auto", "--plot", plot)


def test_scores_are_those_of_each_kernel_by_itself(dataset: str, compared: dict[str, Any]) -> None:
    comparison = compared["comparison"]
    assert [row["kernel"] for row in comparison["kernels"]] == list(COMPARED_KERNELS)
    data = open_dataset(dataset)
    for row in comparison["kernels"]:
        alone = tune_dataset(data, kernel=row["kernel"], subset=120, holdout=0.5, seed=0)
        assert alone.scores is not None
        assert row["nlpd"] == alone.scores["holdout"]["nlpd"]
        assert row["rows"] == comparison["held_out"] == alone.scores["holdout"]["rows"] == 60


def test_the_best_is_tuned_as_if_it_had_been_named(dataset: str, compared: dict[str, Any], tmp_path: Path) -> None:
    rows = compared["comparison"]["kernels"]
    best = min(rows, key=lambda row: row["nlpd"])["kernel"]
    assert compared["comparison"]["kernel"] == best
    named = run_json("tune", dataset, "--out", tmp_path / "named.json", "--kernel", best)
    assert named["kernel"] == compared["kernel"]
    assert named["noise_variance"] == compared["noise_variance"]
    assert "comparison" not in named
    kept = read_hyperparameters(compared["out"])
    assert kept.comparison == compared["comparison"]


def test_a_table_and_a_picture_show_the_comparison(dataset: str, compared: dict[str, Any], tmp_path: Path) -> None:
    picture = Path(compared["plot"]).read_text(encoding="utf-8")
    for kernel in COMPARED_KERNELS:
        assert f"<!-- {kernel} -->" in picture
    result = run("tune", dataset, "--out", tmp_path / "hyper.json", "--kernel", "auto")
    assert "Kernels on 60 held-out samples, tuned on 120" in result.stdout
    assert f"{compared['comparison']['kernel']} *" in result.stdout
    assert f"the kernel is {compared['comparison']['kernel']}: NLPD" in result.stderr


def test_a_done_comparison_is_not_done_again(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("tune", dataset, "--out", tmp_path / "hyper.json", "--kernel", "auto", "--subset", 60)
    first = run_json(*arguments)
    monkeypatch.setattr("dkgp.commands.tune.tune_dataset", lambda *_, **__: pytest.fail("compared again"))
    again = run_json(*arguments, "--resume")
    assert again["comparison"] == first["comparison"]


def test_a_budget_leaves_kernels_out_and_says_which(dataset: str, tmp_path: Path) -> None:
    arguments = ("tune", dataset, "--out", tmp_path / "hyper.json", "--kernel", "auto", "--kernel-seconds", 1e-6)
    document = run_json(*arguments)
    assert [row["kernel"] for row in document["comparison"]["kernels"]] == [COMPARED_KERNELS[0]]
    assert any(
        f"1 of {len(COMPARED_KERNELS)} kernels" in warning and f"left out: {', '.join(COMPARED_KERNELS[1:])}" in warning
        for warning in document["warnings"]
    )


def test_what_does_not_go_with_a_comparison_is_refused(dataset: str, compared: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("tune", dataset, "--out", tmp_path / "hyper.json", "--kernel", "auto")
    refused(run(*arguments, "--objective", "bound"), "leave out --objective bound, or name the kernel", exit_code=2)
    refused(run(*arguments, "--start", compared["out"]), "leave --start out", exit_code=2)
    refused(run(*arguments, "--likelihood", "logit"), "leave --likelihood out", exit_code=2)
    refused(run(*arguments, "--kernel-seconds", 0), "--kernel-seconds must be positive and finite")
    (tmp_path / "few.csv").write_text("x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(12)))
    few = ingest(str(tmp_path / "few.csv"), str(tmp_path / "few.zarr"), target="y").train.url
    refused(run("tune", few, *arguments[2:]), "needs 20;", "has 12. Name the kernel")
    assert not (tmp_path / "hyper.json").exists()
