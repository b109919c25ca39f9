"""Data sets that benchmarks name: those of the papers, what is here of them, and what stands in for the rest."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.problem import FRIEDMAN1, write_rows
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, ingest, write_friedman1
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters, tune_dataset

FloatArray = NDArray[np.float64]

# At most this share of a data set without a split of its own is kept for testing.
LARGEST_TEST_SHARE = 0.25
_MASK = "test_mask"


@dataclass(frozen=True)
class PaperData:
    """A data set of one of the papers.

    Attributes
    ----------
    name, paper
        As the paper has it; "GBCD" or "KCG".
    n, n_test, d
        Samples and features there.
    file
        Name of its .npz file, without the ending; none where it is generated.
    stand_in
        A file that takes its place where it is missing; NAME:TARGET for another target than y.
    remark
        What a reader must know.
    """

    name: str
    paper: str
    n: int
    n_test: int | None
    d: int
    file: str | None
    stand_in: str | None = None
    remark: str = ""


PAPER_DATA = (
    PaperData("Calhouse", "GBCD", 18_000, 2_640, 8, "california"),
    PaperData("Outaouais", "GBCD", 20_000, 9_000, 37, "outaouais", remark="of a challenge; not to be had"),
    PaperData("Kin40k", "GBCD", 30_000, 10_000, 8, "kin40k"),
    PaperData(
        "Sarcos",
        "GBCD",
        44_484,
        4_449,
        21,
        "sarcos",
        "sarcos_test4449",
        "the official test file alone stands in, split anew: small, not comparable",
    ),
    PaperData("Friedman1", "GBCD", 100_000, 5_000, 10, None, remark="generated; test targets without noise"),
    PaperData(
        "HumanEva pose",
        "GBCD",
        26_572,
        8_757,
        300,
        "humaneva",
        "sarcos_test4449:Y7",
        "45 targets at once; the seven torques stand in",
    ),
    PaperData("Abalone", "KCG", 3_133, 1_044, 8, "abalone", remark="sex as three features: d = 10"),
    PaperData(
        "USPS", "KCG", 7_291, 2_007, 256, "usps", remark="a classification problem; named, it runs as regression"
    ),
    PaperData("Soil", "KCG", 1_709, 383, 3, "soil", remark="not to be had"),
    PaperData(
        "COVTYPE", "KCG", 581_012, None, 54, "covtype", remark="not to be had; size of the source, none in the paper"
    ),
    PaperData(
        "Puget Sound",
        "KCG",
        100_000,
        None,
        2,
        "pugetsound",
        "dem_bigtujunga",
        "another elevation model stands in, Big Tujunga",
    ),
)

DATA_COLUMNS = (
    Column("data", "data set", text=True),
    Column("paper", "paper", text=True),
    Column("n_paper", "train", ",d"),
    Column("n_test_paper", "test", ",d"),
    Column("d_paper", "d", "d"),
    Column("here", "here", text=True),
    Column("n_here", "samples", ",d"),
    Column("d_here", "d", "d"),
    Column("targets_here", "targets", "d"),
    Column("remark", "", text=True),
)


@dataclass(frozen=True)
class Library:
    """The data sets a user can name: Friedman1, and the .npz files of a folder.

    Attributes
    ----------
    folder
        None for Friedman1 alone.
    """

    folder: Path | None

    @classmethod
    def of(cls, folder: str | None) -> Library:
        """Open a folder; `InputError` where it is none."""
        if folder is None:
            return cls(None)
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise InputError(f"--data '{folder}' is no folder; expected one that holds .npz files")
        return cls(path)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the data sets that are here."""
        files = [] if self.folder is None else sorted(path.stem for path in self.folder.glob("*.npz"))
        return (FRIEDMAN1, *files)

    def has(self, name: str) -> bool:
        """True if NAME or NAME:TARGET is here."""
        return name == FRIEDMAN1 or (self.folder is not None and self.path(name).is_file())

    def found(self, paper: PaperData) -> str | None:
        """Name of a paper's data set here, or of what stands in for it."""
        if paper.file is None:
            return FRIEDMAN1
        return next((name for name in (paper.file, paper.stand_in) if name is not None and self.has(name)), None)

    def resolve(self, name: str) -> str:
        """Return the name of a data set that is here for what a user typed: a file's, or a paper's own.

        Raises
        ------
        UsageError
            It is not here; the message has those that are.
        """
        if self.has(name):
            return name
        papers = {paper.name.lower().replace(" ", ""): paper for paper in PAPER_DATA}
        papers |= {paper.file: paper for paper in PAPER_DATA if paper.file is not None}
        known = papers.get(name.lower())
        if known is not None and (path := self.found(known)) is not None:
            return path
        why = f"{known.name} of the paper is absent" if known is not None else f"there is no data set '{name}'"
        where = "give --data DIR with its .npz file" if self.folder is None else f"in '{self.folder}'"
        raise UsageError(f"{why}, {where}; --problem takes {', '.join(self.names)}")

    def known(self, name: str) -> str | None:
        """Return what `resolve` does; None where that is not here."""
        try:
            return self.resolve(name)
        except UsageError:
            return None

    def path(self, name: str) -> Path:
        """File of NAME or NAME:TARGET."""
        assert self.folder is not None
        return self.folder / f"{name.partition(':')[0]}.npz"

    def shape(self, name: str) -> tuple[int, int, int]:
        """Samples, features and targets of a file."""
        path, target = self.path(name), name.partition(":")[2] or "y"
        arrays = _arrays(path, ("X", target))
        n, d = arrays["X"]
        return n, d, 1 if len(arrays[target]) == 1 else arrays[target][1]


@dataclass(frozen=True)
class PreparedData:
    """A problem ready to be solved.

    Attributes
    ----------
    name
        Of the data set.
    train, test
        Stores, both in the training samples' standardisation.
    inputs, targets, test_inputs, test_targets
        The same in memory, standardised: (n, d), (n, p), (t, d), (t, p).
    found
        Hyperparameters, tuned on a subset of `train`.
    """

    name: str
    train: Dataset
    test: Dataset
    inputs: FloatArray
    targets: FloatArray
    test_inputs: FloatArray
    test_targets: FloatArray
    found: Hyperparameters

    @property
    def n(self) -> int:
        """Training samples."""
        return len(self.inputs)

    @property
    def n_samples(self) -> int:
        """Number of training samples."""
        return self.n

    @property
    def n_features(self) -> int:
        """Features."""
        return int(self.inputs.shape[1])

    @property
    def n_targets(self) -> int:
        """Targets."""
        return int(self.targets.shape[1])

    def input_rows(self, indices: NDArray[np.intp]) -> FloatArray:
        """Some of the inputs: (len(indices), d)."""
        return self.inputs[indices]

    def to_json(self) -> dict[str, Any]:
        """Sizes and hyperparameters."""
        return {
            "n": self.n,
            "n_test": len(self.test_inputs),
            "d": self.inputs.shape[1],
            "targets": self.targets.shape[1],
            "hyperparameters": self.found.to_json(),
        }


def data_rows(library: Library, others: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Rows of Table 1: the papers' data sets, present, replaced or absent, and others that were named."""
    rows: list[dict[str, Any]] = []
    for paper in PAPER_DATA:
        row: dict[str, Any] = {"data": paper.name, "paper": paper.paper, "n_paper": paper.n, "d_paper": paper.d}
        row |= {"n_test_paper": paper.n_test, "remark": paper.remark, "status": "absent", "here": "absent"}
        path = library.found(paper)
        if path == FRIEDMAN1:
            row |= {"status": "here", "here": FRIEDMAN1, "n_here": None, "d_here": 10, "targets_here": 1}
        elif path is not None:
            n, d, p = library.shape(path)
            stands_in = path == paper.stand_in
            row |= {
                "status": "stand-in" if stands_in else "here",
                "here": f"{path} (stands in)" if stands_in else path,
                "n_here": n,
                "d_here": d,
                "targets_here": p,
            }
        elif paper.stand_in is not None and "stands in" not in paper.remark:
            row["remark"] = f"{paper.remark}; {paper.stand_in}.npz would stand in".lstrip("; ")
        rows.append(row)
    papers = {library.found(paper) for paper in PAPER_DATA}
    for name in dict.fromkeys(others):
        if name not in papers:
            n, d, p = library.shape(name)
            rows.append({"data": "-", "paper": "-", "status": "here", "here": name, "n_here": n, "d_here": d})
            rows[-1] |= {"targets_here": p, "remark": "in neither paper"}
    return rows


def prepare_data(
    library: Library,
    name: str,
    n: int,
    n_test: int,
    subset: int,
    seed: int,
    folder: Path,
    reporter: Reporter,
    kernel: str | None = None,
    found: Hyperparameters | None = None,
) -> PreparedData:
    """Draw training and test samples into stores below `folder`, read them, and tune the kernel, or the default one.

    A file with a `test_mask` is split by it (by its first column), any other at random. Nothing is tuned where
    hyperparameters are given.

    Raises
    ------
    InputError
        A file that cannot be used.
    """
    inside = folder / name.replace(":", "-")
    inside.mkdir(parents=True)
    with reporter.work(f"prepare {name}") as show:
        if name == FRIEDMAN1:
            train, test = write_friedman1(
                inside / "train.zarr", inside / "test.zarr", n, n_test, seed=seed, progress=show
            )
            assert test is not None
        else:
            train, test = _draw(library, name, n, n_test, seed, inside, reporter)
    if found is None:
        with reporter.search(f"tune {name}") as progress:
            found = tune_dataset(train, kernel=kernel, subset=subset, seed=seed, progress=progress)
    return PreparedData(name, train, test, *_read(train), *_read(test), found)


def _draw(
    library: Library, name: str, n: int, n_test: int, seed: int, folder: Path, reporter: Reporter
) -> tuple[Dataset, Dataset]:
    path = library.path(name)
    target = name.partition(":")[2] or "y"
    shapes = _arrays(path, ("X", target))
    order = np.random.default_rng(seed)
    if shapes.get(_MASK, ()) != () and shapes[_MASK][0] == shapes["X"][0]:
        mask = _MASK if len(shapes[_MASK]) == 1 else f"{_MASK}:0"
        report = ingest(str(path), folder / "a.zarr", target=target, test_mask=mask, test_out=folder / "b.zarr")
        assert report.test is not None
        pools = [report.train, report.test]
        rows = [order.permutation(pool.n_samples)[:most] for pool, most in zip(pools, (n, n_test), strict=True)]
    else:
        report = ingest(str(path), folder / "a.zarr", target=target)
        total = report.train.n_samples
        test_size = max(1, min(n_test, int(LARGEST_TEST_SHARE * total)))
        permuted = order.permutation(total)
        pools = [report.train, report.train]
        rows = [permuted[test_size : test_size + n], permuted[:test_size]]
    for warning in report.warnings:
        reporter.warn(f"{name}: {warning}")
    if len(rows[0]) < 2:
        raise InputError(f"'{path}' has {report.n_samples:,} samples; too few to train and to test on")
    train = write_rows(pools[0], rows[0], folder / "train.zarr")
    return train, write_rows(pools[1], rows[1], folder / "test.zarr", train.standardisation)


def _read(dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    return dataset.inputs(0, dataset.n_samples), dataset.all_targets()


def _arrays(path: Path, wanted: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's arrays; `InputError` where one that is wanted is not there."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = [name for name in archive.files if name in (*wanted, _MASK)]
            shapes = {name: tuple(archive[name].shape) for name in names}
            files = list(archive.files)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"'{path}' is not a whole NPZ file: {error}") from error
    for name in wanted:
        if not shapes.get(name):
            raise InputError(f"'{path}' has no array '{name}'; it has {', '.join(files) or 'none'}")
    if len(shapes["X"]) != 2:
        raise InputError(f"'X' of '{path}' has shape {shapes['X']}; expected (n, d)")
    return shapes
