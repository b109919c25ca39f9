"""Everything that dkgp reads from outside, tiny and whole, and the command that reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from dkgp.data.stores.manifest import MANIFEST_NAME
from tests.cli.invoke import run_json
from tests.data.sources.forms import FORMS
from tests.data.stores.kinds import rewrite_manifest
from tests.fuzz.mutations import Generator, changed_json, damaged

Command = Callable[[Path, Path], list[object]]

N = 60


@dataclass(frozen=True)
class Subject:
    """A file or folder, how it is damaged, and a command of its place and of one for the output."""

    whole: Path
    damage: Callable[[Path, Generator], str]
    command: Command

    def copied(self, folder: Path) -> Path:
        place = folder / self.whole.name
        shutil.copytree(self.whole, place) if self.whole.is_dir() else shutil.copy(self.whole, place)
        return place


# --- damages of what lies at a place; what they say is for whoever looks for the reason -------------------------------


def of_bytes(place: Path, rng: Generator) -> str:
    """One file, where it is a folder any one below it, larger ones as often as small ones."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    path = files[int(rng.integers(len(files)))]
    path.write_bytes(damaged(path.read_bytes(), rng))
    return str(path.relative_to(place.parent))


def of_chunks(place: Path, rng: Generator) -> str:
    """Two objects of a store that change places, or one that is there twice under two names."""
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.parent != place)
    one, other = (files[int(index)] for index in rng.choice(len(files), 2, replace=False))
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    if rng.random() < 0.7:
        other.write_bytes(contents[0])
    return f"{one.relative_to(place)} and {other.relative_to(place)}"


def of_manifest(place: Path, rng: Generator) -> str:
    """A manifest that somebody has written: it says something else, and its checksum agrees."""

    def change(manifest: dict[str, Any]) -> None:
        changed = changed_json(manifest, rng)
        manifest.clear()
        manifest.update(changed if isinstance(changed, dict) else {})

    rewrite_manifest(place, change)
    return MANIFEST_NAME


def of_json(place: Path, rng: Generator) -> str:
    if rng.random() < 0.3:
        return of_bytes(place, rng)
    place.write_text(json.dumps(changed_json(json.loads(place.read_text()), rng)))
    return place.name


def of_zarr(place: Path, rng: Generator) -> str:
    """Zarr's own descriptions."""
    files = sorted(place.rglob("*zarr.json")) + sorted(place.rglob(".z*"))
    path = files[int(rng.integers(len(files)))]
    path.write_text(json.dumps(changed_json(json.loads(path.read_text()), rng)))
    return str(path.relative_to(place))


# --- what is read -----------------------------------------------------------------------------------------------------


def table() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(N, 3)).round(6), columns=["a", "b", "c"])
    frame["kind"] = np.array(["red", "grün", "a, b"])[rng.integers(3, size=N)]
    frame["day"] = [f"2024-0{1 + index % 9}-1{index % 10}" for index in range(N)]
    frame["y"] = (np.sin(frame["a"]) + frame["b"] * frame["c"]).round(6)
    return frame


def build(folder: Path) -> dict[str, Subject]:
    """Write one of everything; return the subjects by name."""
    stores, frame = build_stores(folder), table()
    numbers = frame[["a", "b", "c", "y"]]
    local = ("--cluster", "none")

    def ingest(*more: object, target: object = "y") -> Command:
        return lambda place, out: ["ingest", place, out, "--target", target, *more]

    def predict(place: Path, out: Path) -> list[object]:
        return ["predict", place, stores["test"], "--out", out, *local]

    def variances(place: Path, out: Path) -> list[object]:
        return [*predict(place, out), "--variance"]

    def train(place: Path, out: Path) -> list[object]:
        return ["train", place, "--hyper", folder / "hyper.json", "--out", out, "--max-passes", 30, *local]

    def resume(place: Path, out: Path) -> list[object]:
        return [*stores["training"], "--out", out, "--checkpoint", place, "--resume"]

    coded = ("--categorical", "kind", "--date", "day")
    subjects = {
        "table": Subject(folder / "table.csv", of_bytes, ingest(*coded)),
        "labels": Subject(
            folder / "table.csv",
            of_bytes,
            lambda place, out: ["ingest", place, out, "--labels", "kind", "--features", "a,b,c"],
        ),
        "hyperparameters": Subject(
            folder / "hyper.json",
            of_json,
            lambda place, out: [
                "train", stores["data"], "--hyper", place, "--out", out, "--max-passes", 30, *local
            ],
        ),
        "hyperparameters shown": Subject(folder / "hyper.json", of_json, lambda place, out: ["info", place]),
        "checkpoint": Subject(stores["checkpoint"], of_bytes, resume),
        "checkpoint shown": Subject(stores["checkpoint"], of_bytes, lambda place, out: ["info", place]),
        "coded, its manifest": Subject(
            stores["coded"],
            of_manifest,
            lambda place, out: ["ingest", folder / "table.csv", out, "--like", place],
        ),
        "data again": Subject(stores["data"], of_bytes, ingest()),
        "predictions": Subject(
            stores["prediction"], of_bytes, lambda place, out: ["evaluate", place, stores["test"]]
        ),
        "predictions, their manifest": Subject(
            stores["prediction"], of_manifest, lambda place, out: ["evaluate", place, stores["test"]]
        ),
        "finished kernels": Subject(
            stores["kernels"],
            of_json,
            lambda place, out: [*stores["comparison"], "--out", place.with_suffix(""), "--resume"],
        ),
        "configuration": Subject(
            stores["configuration"],
            of_bytes,
            lambda place, out: [
                "train", stores["data"], "--hyper", folder / "hyper.json", "--out", out, "--max-passes", 30,
                *local, "--cluster-config", place,
            ],
        ),
    }  # fmt: skip
    for name, form in FORMS.items():
        place = folder / name.replace(" ", "-") / form.file
        place.parent.mkdir()
        form.write(numbers, place)
        target = "y" if form.named else "3"
        subjects[name] = Subject(place, of_bytes, ingest(target=target))
    for name, command in {
        "data": train,
        "model": predict,
        "factor": variances,
        "sparse": variances,
        "fixed-size": predict,
        "logistic": predict,
        "gp": predict,
        "labels near": predict,
    }.items():
        for what, damage in (
            ("", of_bytes),
            (", chunks", of_chunks),
            (", arrays", of_zarr),
            (", manifest", of_manifest),
        ):
            subjects[f"{name}{what}"] = Subject(stores[name], damage, command)
    for name in ("data", "model", "sparse", "logistic", "prediction"):
        subjects[f"{name}, shown"] = Subject(stores[name], of_manifest, lambda place, out: ["info", place])
    return subjects


def build_stores(folder: Path) -> dict[str, Any]:
    """A store of every kind, and what else lies beside them."""
    frame = table()
    numbers = frame[["a", "b", "c", "y"]]
    numbers.to_csv(folder / "numbers.csv", index=False)
    frame.to_csv(folder / "table.csv", index=False)
    (folder / "hyper.json").write_text(
        json.dumps(
            {
                "kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.5, 0.3, 0.2]},
                "noise_variance": 0.1,
                "feature_names": ["a", "b", "c"],
            }
        )
    )
    hyper, local = ("--hyper", folder / "hyper.json"), ("--cluster", "none")
    data, test, labels, coded = (folder / f"{name}.zarr" for name in ("data", "test", "labels", "coded"))
    run_json(
        "ingest", folder / "numbers.csv", data, "--target", "y", "--test-fraction", 0.2, "--test-out", test,
        "--chunk-rows", 20,
    )  # fmt: skip
    run_json("ingest", folder / "table.csv", labels, "--labels", "kind", "--features", "a,b,c", "--chunk-rows", 25)
    run_json("ingest", folder / "table.csv", coded, "--target", "y", "--categorical", "kind", "--date", "day")
    places: dict[str, Any] = {"data": data, "test": test, "labels": labels, "coded": coded}

    def make(name: str, *command: object) -> None:
        places[name] = folder / f"{name}.zarr"
        run_json(*command, *hyper, "--out", places[name], *local)

    make("model", "train", data)
    make("factor", "train", data, "--with-variances")
    make("sparse", "sparse", data, "--basis-size", 12)
    make("fixed-size", "classify", labels, "--pool", 10, "--folds", 3, "--search", "none")
    make("logistic", "classify", labels, "--method", "logistic")
    make("gp", "classify", labels, "--method", "gp", "--basis-size", 10)
    make("labels near", "classify", labels, "--method", "gp", "--basis-size", 10, "--neighbours", 12)
    places["prediction"] = folder / "prediction.zarr"
    run_json("predict", places["model"], test, "--out", places["prediction"], "--variance", *local)
    # A run that stops early keeps its checkpoint: it can be gone on with, with more passes.
    places["checkpoint"], unfinished = folder / "unfinished.checkpoint", folder / "unfinished.zarr"
    begin = ["train", data, *hyper, "--solver", "gbcd", "--block-size", 4, "--tol", 1e-10, *local]
    command = [*begin, "--out", unfinished, "--checkpoint", places["checkpoint"], "--checkpoint-every", 0]
    run_json(*command, "--max-passes", 1, exit_code=4)
    places["training"] = [*begin, "--max-passes", 2]
    places["comparison"] = ["tune", data, "--kernel", "auto", "--subset", 30, *local]
    with patch("dkgp.commands.searches.remove_object"):
        run_json(*places["comparison"], "--out", folder / "finished.json")
    places["kernels"] = folder / "finished.json.kernels"
    places["configuration"] = folder / "configuration.yaml"
    places["configuration"].write_text(
        "dkgp:\n  cluster:\n    kind: none\n    threads-per-worker: 1\n    cache-tiles: 10MB\n    worker-wait: 5 s\n"
    )
    return places
