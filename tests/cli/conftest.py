from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.kernels import ActiveDimensions, SquaredExponential
from dkgp.models import read_hyperparameters, write_hyperparameters
from dkgp.models.noise import NoiseModel, StudentT
from tests.cli.invoke import run_json
from tests.cli.runs import RUNS


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
    """What `dkgp ingest` tells of so many classes' training and test stores, made once."""
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
    path = tmp_path_factory.mktemp("hyper") / "hyper.json"
    kernel = {"type": "rbf", "variance": 20.0, "gamma": [0.3, 0.1, 0.01]}
    path.write_text(json.dumps({"kernel": kernel, "noise_variance": 1.0}))
    return path


@pytest.fixture(scope="session")
def classifiers(
    labelled: Callable[[int], dict[str, Any]], wide: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Models of two classes stopped early, so that their bounds are no rounding."""
    folder = tmp_path_factory.mktemp("classifiers")
    methods = {
        "logistic": ("--method", "logistic", "--tol", 0.05),
        "gp": ("--method", "gp", "--tol", 0.05),
        "basis": ("--method", "gp", "--basis-size", 40, "--certify"),
        "gp_near": ("--method", "gp", "--basis-size", 20, "--neighbours", 24),
        "few": ("--pool", 30, "--search", "none"),
    }
    for name, options in methods.items():
        command = ("classify", labelled(2)["train"], "--out", folder / name, "--hyper", wide, "--cluster", "none")
        run_json(*command, *options)
    return {name: folder / name for name in methods}


@pytest.fixture(scope="session")
def stores(
    pipeline: dict[str, Any],
    labelled: Callable[[int], dict[str, Any]],
    wide: Path,
    classifiers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Where data and models of every kind lie, by name."""
    folder = tmp_path_factory.mktemp("stores")
    kinds, sparse = folder / "kinds.csv", folder / "sparse.zarr"
    kinds.write_text("a,b,kind\n" + "".join(f"{i}.5,{i % 3},{'red' if i % 2 else 'blue'}\n" for i in range(20)))
    train, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    run_json("sparse", train, "--hyper", hyper, "--out", sparse, "--basis-size", 40)
    run_json("sparse", train, "--hyper", hyper, "--out", folder / "near.zarr", "--basis-size", 20, "--method", "vif")
    noisy = folder / "noisy.zarr"
    rows = np.loadtxt(friedman_csv(folder / "noisy.csv", 300, seed=1), delimiter=",", skiprows=1)
    rows = np.column_stack([rows, np.linspace(0.0, 9.0, 300)])
    np.savetxt(folder / "noisy.csv", rows, delimiter=",", header="a,b,c,d,e,f,price,v", comments="", fmt="%.9g")
    run_json("ingest", folder / "noisy.csv", noisy, "--target", "price", "--noise-column", "v")
    uneven = read_hyperparameters(hyper)
    noise = NoiseModel("linear", -2.5, (0.4, *(0.0,) * 5), lowest=0.02, highest=0.3)
    write_hyperparameters(folder / "uneven.json", replace(uneven, noise_model=noise))
    # Of two features, so that products may be within a bound.
    kernel = ActiveDimensions(SquaredExponential((0.6, 0.4)), (0, 1), uneven.kernel.n_features)
    write_hyperparameters(folder / "narrow.json", replace(uneven, kernel=kernel))
    kernel = ActiveDimensions(SquaredExponential((0.3, 0.1), 20.0), (0, 1), 3)
    write_hyperparameters(folder / "narrow_labels.json", replace(read_hyperparameters(wide), kernel=kernel))
    narrow_model = folder / "narrow.zarr"
    run_json("train", train, "--hyper", folder / "narrow.json", "--out", narrow_model, "--cluster", "none")
    write_hyperparameters(folder / "outliers.json", replace(uneven, student_t=StudentT(4.0, 0.02)))
    return {
        "train": train,
        "test": pipeline["ingest"]["test"],
        "hyper": hyper,
        "uneven": folder / "uneven.json",
        "narrow": folder / "narrow.json",
        "narrow_labels": folder / "narrow_labels.json",
        "narrow_model": narrow_model,
        "outliers": folder / "outliers.json",
        "model": pipeline["train"]["out"],
        "prediction": pipeline["predict"]["out"],
        "two": labelled(2)["train"],
        "three": labelled(3)["train"],
        "labels": labelled(2)["test"],
        "labels of three": labelled(3)["test"],
        "wide": wide,
        "kinds": kinds,
        "noisy": noisy,
        "sparse": sparse,
        "near": folder / "near.zarr",
        **classifiers,
    }


@pytest.fixture(scope="session")
def whole(stores: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What a run makes that nothing interrupts, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            out = tmp_path_factory.mktemp("whole") / "out"
            plot = ("--plot", f"{out}.png") if RUNS[name].logs else ()
            run_json(*RUNS[name].typed(stores, out), *plot)
            # No checkpoint, tile or temporary file is left.
            assert [path.suffix for path in sorted(out.parent.iterdir())] == (["", ".png"] if plot else [""])
            assert not plot or Path(plot[1]).read_bytes().startswith(b"\x89PNG")
            made[name] = out
        return made[name]

    return of
