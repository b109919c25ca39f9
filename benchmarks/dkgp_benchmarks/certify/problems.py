"""Problems of `dkgp bench certify`, and the counts that come of holding proofs against dense solutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError
from dkgp.models.classification.exact import DECISION_TOLERANCE
from dkgp.models.classification.labels import Labels

FloatArray = NDArray[np.float64]

METHODS = ("ls-svm", "logistic", "gp")
# The one problem that needs no file.
GENERATED = "spirals"


@dataclass(frozen=True)
class BenchCertifyJob:
    """Problems to train on, and how far they are judged; defaults are those of the command."""

    data: str | None = None
    problems: tuple[str, ...] = ()
    method: str = METHODS[0]
    tolerance: float = DECISION_TOLERANCE
    subset: int = 2000
    isotropic: bool = False
    own_units: bool = False
    svm: bool = False
    seed: int = 0
    out: str | None = None


@dataclass(frozen=True)
class Problem:
    """Raw inputs (n, d) and codes (n,), of training and of test samples."""

    name: str
    inputs: FloatArray
    labels: Labels
    test_inputs: FloatArray
    test_codes: NDArray[np.int64]


@dataclass(frozen=True)
class Judged:
    """Counts of what was held against a dense solution.

    Attributes
    ----------
    labels, certified, wrong
        Labels, certified ones, wrong ones of these.
    beyond, outside
        Samples with a decision beyond its bound, and with a probability outside its interval.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("judged", "judged_certified", "wrong", "beyond", "outside")

    labels: int = 0
    certified: int = 0
    wrong: int = 0
    beyond: int = 0
    outside: int = 0

    def __add__(self, other: Judged) -> Judged:
        return Judged(*(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @property
    def counts(self) -> tuple[int, ...]:
        """In the order of `NAMES`."""
        return self.labels, self.certified, self.wrong, self.beyond, self.outside


def spirals(n: int, rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64]]:
    """Draw n samples of three spiral arms with noise, whose ends overlap: inputs (n, 2) and codes (n,)."""
    codes, along = rng.integers(0, 3, n), np.sqrt(rng.uniform(0.02, 1.0, n))
    angle = 2.0 * np.pi * (codes / 3.0 + 0.9 * along)
    arms = along[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return arms + 0.08 * rng.standard_normal((n, 2)), codes


def problems(job: BenchCertifyJob, files: tuple[str, ...]) -> Iterator[Problem]:
    """The problems that are asked for; of none, what is generated and those of `files` that are here."""
    folder = None if job.data is None else Path(job.data)
    names = job.problems
    if not names:
        names = (GENERATED, *(each for each in files if folder is not None and (folder / f"{each}.npz").is_file()))
    for name in names:
        rng = np.random.default_rng([job.seed, 14])
        if name == GENERATED:
            inputs, codes = spirals(4000, rng)
            yield Problem(name, inputs[:2000], Labels(("a", "b", "c"), codes[:2000]), inputs[2000:], codes[2000:])
        elif folder is None:
            raise InputError(f"'{name}' is a file in a folder of data sets; give `data`, or take '{GENERATED}'")
        else:
            yield _read(folder / f"{name}.npz", rng)


def _read(path: Path, rng: np.random.Generator) -> Problem:
    """A file's X and y, by its test_mask or a third drawn at random."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            inputs, y = np.asarray(archive["X"], dtype=np.float64), archive["y"]
            test = np.asarray(archive["test_mask"], dtype=bool) if "test_mask" in archive.files else None
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise InputError(f"'{path}' is no NPZ file with X and y: {error}") from error
    if inputs.ndim != 2 or y.shape != (len(inputs),) or (test is not None and test.shape != y.shape):
        raise InputError(f"'{path}' has X of shape {inputs.shape} and y of shape {y.shape}; expected (N, d) and (N,)")
    names, codes = np.unique(y, return_inverse=True)
    if test is None:
        test = np.zeros(len(y), dtype=bool)
        test[rng.permutation(len(y))[: len(y) // 3]] = True
    labels = Labels(tuple(str(name) for name in names), codes[~test])
    return Problem(path.stem, inputs[~test], labels, inputs[test], codes[test])
