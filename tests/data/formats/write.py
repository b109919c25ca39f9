"""Writes stores of every kind with whichever dkgp is on the path, for `test_formats.py` to read for ever.

    git worktree add /tmp/old COMMIT                        # where older formats are to be written
    PYTHONPATH=/tmp/old python tests/data/formats/write.py tests/data/formats

A file KIND-VERSION.zip holds the store, what Zarr itself reads of its arrays (`expected.json`), and, of a model, inputs
and what that dkgp predicted at them. Files that are there stay. It uses of dkgp only the command line.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from click.testing import CliRunner

from dkgp.cli import main

N, N_TEST = 14, 3
LOCAL = ("--cluster", "none")


def rows(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (count, 2))
    return np.column_stack([X, np.sin(X[:, 0]) + X[:, 1], rng.uniform(0.01, 0.05, count)])


def run(*command: object) -> bool:
    """Run a command; False where this dkgp does not know it."""
    result = CliRunner().invoke(main, [str(part) for part in command])
    if result.exit_code not in (0, 4):
        print(f"  {' '.join(str(part) for part in command[:2])}: {result.output.strip().splitlines()[-1:]}")
    return result.exit_code in (0, 4)


def arrays_of(store: Path) -> dict[str, Any]:
    """The arrays as Zarr reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zarr.open_group(store, mode="r")
        return {name: array[:].tolist() for name, array in sorted(group.arrays())}


def keep(name: str, folder: Path, content: dict[str, Path], expected: dict[str, Any]) -> None:
    """Write a file of some stores, the first of which it is about; unless there is one."""
    store = next(iter(content.values()))
    manifest = json.loads((store / "dkgp-manifest.json").read_text()) if name != "checkpoint" else {"version": 1}
    place = folder / f"{name.replace(' ', '-')}-{manifest['version']}.zip"
    if place.exists():
        return
    print(f"  {place.name}")
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, path in content.items():
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    archive.write(file, f"{root}/{file.relative_to(path)}")
        archive.writestr("expected.json", json.dumps({**expected, "version": manifest["version"]}))


def write(folder: Path, work: Path) -> None:
    table, test = rows(N, 0), rows(N_TEST, 1)
    np.savetxt(work / "data.csv", table, delimiter=",", header="a,b,y,v", comments="")
    np.savetxt(work / "test.csv", test, delimiter=",", header="a,b,y,v", comments="")
    labels = np.where(table[:, 2] > 0, "up", "down")
    lines = [f"{a},{b},{label}" for (a, b), label in zip(table[:, :2], labels, strict=True)]
    (work / "labels.csv").write_text("a,b,label\n" + "\n".join(lines) + "\n")
    kernel = {"type": "rbf", "variance": 1.0, "gamma": [0.5, 0.3]}
    (work / "hyper.json").write_text(json.dumps({"kernel": kernel, "noise_variance": 0.1}))
    hyper, chosen = ("--hyper", work / "hyper.json"), ("--target", "y", "--features", "a,b", "--chunk-rows", 8)
    data, labelled, at = work / "data.zarr", work / "labels.zarr", work / "test.zarr"
    run("ingest", work / "data.csv", data, *chosen)
    run("ingest", work / "test.csv", at, *chosen)
    keep("dataset", folder, {"store": data}, {"arrays": arrays_of(data), "names": ["a", "b"]})
    if run("ingest", work / "labels.csv", labelled, "--labels", "label", "--chunk-rows", 8):
        keep("labels", folder, {"store": labelled}, {"arrays": arrays_of(labelled), "names": ["a", "b"]})

    def trained(name: str, command: str, dataset: Path, *more: object, variance: bool = False) -> None:
        model, prediction = work / f"{name}.zarr", work / f"{name}-prediction.zarr"
        if not run(command, dataset, "--out", model, *more, *LOCAL):
            return
        if not run("predict", model, at, "--out", prediction, *(["--variance"] if variance else []), *LOCAL):
            return
        expected = {"arrays": arrays_of(model), "predicted": arrays_of(prediction), "inputs": test[:, :2].tolist()}
        keep(name, folder, {"store": model}, expected)
        keep(f"prediction of {name}", folder, {"store": prediction}, {"arrays": arrays_of(prediction)})

    trained("model", "train", data, *hyper)
    trained("model with a factor", "train", data, *hyper, "--with-variances", variance=True)
    trained("model with a mean", "train", data, *hyper, "--mean", "linear", variance=True)
    trained("sparse model", "sparse", data, *hyper, "--basis-size", 5, variance=True)
    trained("linear model", "pursue", data)
    trained("fixed-size classifier", "classify", labelled, *hyper, "--pool", 5, "--folds", 2, "--search", "none")
    for method in ("exact", "logistic", "gp"):
        trained(f"{method} classifier", "classify", labelled, *hyper, "--method", method)
    near = ("--method", "gp", "--basis-size", 5, "--neighbours", 8)
    trained("gp classifier with neighbours", "classify", labelled, *hyper, *near)
    noisy = work / "noisy.zarr"
    if run("ingest", work / "data.csv", noisy, *chosen, "--noise-column", "v"):
        keep("dataset with noise", folder, {"store": noisy}, {"arrays": arrays_of(noisy), "names": ["a", "b"]})
        noisy_test = work / "noisy-test.zarr"
        run("ingest", work / "test.csv", noisy_test, *chosen, "--noise-column", "v")
        at = noisy_test
        trained("model with noise", "train", noisy, *hyper, variance=True)
    covered = work / "covered.zarr"
    if run("ingest", work / "data.csv", covered, *chosen, "--covariates", "b"):
        keep("dataset with covariates", folder, {"store": covered}, {"arrays": arrays_of(covered), "names": ["a", "b"]})
    command = ("train", data, *hyper, "--solver", "gbcd", "--block-size", 2, "--tol", 1e-9, *LOCAL)
    place = work / "unfinished.checkpoint"
    run(*command, "--out", work / "unfinished.zarr", "--checkpoint", place, "--max-passes", 1)
    if place.exists():
        kept = work / "kept.checkpoint"
        shutil.copytree(place, kept)
        run(*command, "--out", work / "whole.zarr", "--checkpoint", place, "--resume")
        alpha = arrays_of(work / "whole.zarr")["alpha"]
        keep("checkpoint", folder, {"store": kept, "data": data}, {"alpha": alpha, "kernel": kernel})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(sys.argv[1]), Path(scratch))
