from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.kernels import ActiveDimensions, SquaredExponential
from dkgp.models import read_hyperparameters, write_hyperparameters
from dkgp.models.noise import NoiseModel, StudentT
from tests.cli.invoke import Places, Shell, run_json
from tests.cli.runs import RUNS, Run
from tests.drawing import pictures_are_rendered_once as pictures_are_rendered_once
from tests.problem import write_hyper


@pytest.fixture(scope="session")
def friedman(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A CSV file of so many samples; its target is called price."""
    return lambda n: friedman_csv(tmp_path_factory.mktemp("friedman") / "data.csv", n, seed=0)


def friedman_csv(path: Path, n: int, seed: int) -> Path:
    generator = np.random.default_rng(seed)
    X = generator.random((n, 6))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    table = np.column_stack([X, y + generator.normal(size=n)])
    np.savetxt(path, table, delimiter=",", header="a,b,c,d,e,f,price", comments="", fmt="%.9g")
    return path


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small problem through all the commands: where everything lies, and every command's document."""
    folder = tmp_path_factory.mktemp("pipeline")
    data = friedman_csv(folder / "data.csv", 800, seed=0)
    train, test, hyper = folder / "train.zarr", folder / "test.zarr", folder / "hyper.json"
    model, prediction = folder / "model.zarr", folder / "prediction.zarr"
    split = ("--test-fraction", 0.25, "--test-out", test)
    records = ("--plot", folder / "run.png", "--log-json", folder / "run.jsonl")
    commands = {
        "ingest": ("ingest", data, train, "--target", "price", *split),
        "tune": ("tune", train, "--out", hyper, "--subset", 200),
        "train": ("train", train, "--out", model, "--hyper", hyper, "--solver", "gbcd", "--block-size", 50, *records),
        "predict": ("predict", model, test, "--out", prediction),
        "evaluate": ("evaluate", prediction, test, "--plot", folder / "fit.png"),
    }
    documents = {name: run_json(*command) for name, command in commands.items()}
    return {"folder": folder, **documents}


@pytest.fixture
def log(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The records of a command that was given `--log-json tmp_path / "log.jsonl"`."""
    return lambda: [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]


def labelled_csv(path: Path, labels: tuple[str, ...], n: int, seed: int) -> Path:
    """A file of labels that a curve in the first two of three features tells apart, save for a little noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    height = X[:, 0] ** 2 + X[:, 1] + 0.15 * rng.standard_normal(n)
    edges = np.quantile(height, np.arange(1, len(labels)) / len(labels))
    names = np.array(labels)[np.digitize(height, edges)]
    lines = [",".join([*(f"{value:.9g}" for value in row), name]) for row, name in zip(X, names, strict=True)]
    path.write_text("\n".join(["a,b,c,species", *lines]) + "\n")
    return path


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Record of `dkgp ingest` for training and test stores of the given number of classes, computed once."""
    made: dict[int, dict[str, Any]] = {}
    names = {2: ("sit", "run"), 3: ("walk", "sit", "run")}

    def ingested(n_classes: int) -> dict[str, Any]:
        if n_classes not in made:
            folder = tmp_path_factory.mktemp(f"classes{n_classes}")
            csv = labelled_csv(folder / "data.csv", names[n_classes], 450, seed=n_classes)
            command = ("ingest", csv, folder / "train.zarr", "--labels", "species", "--test-fraction", 0.33)
            made[n_classes] = run_json(*command, "--test-out", folder / "test.zarr")
        return made[n_classes]

    return ingested


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hyperparameters of three features, given by hand, so that nobody warns of what they were found for."""
    return write_hyper(tmp_path_factory.mktemp("hyper") / "hyper.json", [0.3, 0.1, 0.01], 1.0, variance=20.0)


# Stores that one command makes. Classifiers are stopped early, so that their bounds are no rounding.
MADE = {
    "sparse": "sparse @train --hyper @hyper --basis-size 40",
    "near": "sparse @train --hyper @hyper --basis-size 20 --method vif",
    "narrow_model": "train @train --hyper @narrow --cluster none",
    "logistic": "classify @two --hyper @wide --cluster none --method logistic --tol 0.05",
    "gp": "classify @two --hyper @wide --cluster none --method gp --tol 0.05",
    "basis": "classify @two --hyper @wide --cluster none --method gp --basis-size 40 --certify",
    "gp_near": "classify @two --hyper @wide --cluster none --method gp --basis-size 20 --neighbours 24",
    "exact": "classify @two --hyper @narrow_labels --cluster none --method exact --tol 0.01 --no-probability",
    "few": "classify @two --hyper @wide --cluster none --pool 30 --search none",
}


@pytest.fixture(scope="session")
def stores(
    pipeline: dict[str, Any],
    labelled: Callable[[int], dict[str, Any]],
    wide: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Places:
    """Paths of data and models of every kind, by name; each is made at its first use."""
    folder = tmp_path_factory.mktemp("stores")

    def made(name: str, command: str) -> Path:
        Shell(folder, places).json(command, "--out", folder / name)
        return folder / name

    def changed(name: str, start: str = "hyper", **fields: Any) -> Path:
        write_hyperparameters(folder / f"{name}.json", replace(read_hyperparameters(places[start]), **fields))
        return folder / f"{name}.json"

    def kinds() -> Path:
        rows = "".join(f"{i}.5,{i % 3},{'red' if i % 2 else 'blue'}\n" for i in range(20))
        (folder / "kinds.csv").write_text("a,b,kind\n" + rows)
        return folder / "kinds.csv"

    def noisy() -> Path:
        rows = np.loadtxt(friedman_csv(folder / "noisy.csv", 300, seed=1), delimiter=",", skiprows=1)
        rows = np.column_stack([rows, np.linspace(0.0, 9.0, 300)])
        np.savetxt(folder / "noisy.csv", rows, delimiter=",", header="a,b,c,d,e,f,price,v", comments="", fmt="%.9g")
        run_json("ingest", folder / "noisy.csv", folder / "noisy.zarr", "--target", "price", "--noise-column", "v")
        return folder / "noisy.zarr"

    noise = NoiseModel("linear", -2.5, (0.4, *(0.0,) * 5), lowest=0.02, highest=0.3)
    places = Places(
        {
            "train": lambda: pipeline["ingest"]["train"],
            "test": lambda: pipeline["ingest"]["test"],
            "hyper": lambda: pipeline["tune"]["out"],
            "model": lambda: pipeline["train"]["out"],
            "prediction": lambda: pipeline["predict"]["out"],
            "two": lambda: labelled(2)["train"],
            "three": lambda: labelled(3)["train"],
            "labels": lambda: labelled(2)["test"],
            "labels_of_three": lambda: labelled(3)["test"],
            "wide": lambda: wide,
            "kinds": kinds,
            "noisy": noisy,
            "uneven": lambda: changed("uneven", noise_model=noise),
            # Of two features, so that products may be within a bound.
            "narrow": lambda: changed("narrow", kernel=ActiveDimensions(SquaredExponential((0.6, 0.4)), (0, 1), 6)),
            "narrow_labels": lambda: changed(
                "narrow_labels", "wide", kernel=ActiveDimensions(SquaredExponential((0.3, 0.1), 20.0), (0, 1), 3)
            ),
            "outliers": lambda: changed("outliers", student_t=StudentT(4.0, 0.02)),
            **{name: partial(made, name, command) for name, command in MADE.items()},
        }
    )
    return places


@pytest.fixture
def shell(stores: Places, tmp_path: Path) -> Shell:
    """Command lines in a folder of their own, with the places of `stores`."""
    return Shell(tmp_path, stores)


@pytest.fixture(scope="session")
def whole(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | Run], Path]:
    """Return the result of an uninterrupted run, computed once."""

    @cache
    def of(name: str | Run) -> Path:
        kind = RUNS[name] if isinstance(name, str) else name
        out = tmp_path_factory.mktemp("whole") / "out"
        plot = ("--plot", f"{out}.png") if kind.logs else ()
        run_json(*kind.typed(stores, out), *plot)
        # No checkpoint, tile or temporary file is left.
        assert [path.suffix for path in sorted(out.parent.iterdir())] == (["", ".png"] if plot else [""])
        assert not plot or Path(plot[1]).read_bytes().startswith(b"\x89PNG")
        return out

    return of
