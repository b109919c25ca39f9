"""`dkgp bench classify --table tuned`: a kernel by the evidence of all labels, with neighbours, and by a subset's.

Both classify test samples by one and the same Gaussian process on a basis with neighbours, so that only the
hyperparameters differ. The kernel is a squared exponential with a length scale for each feature.
"""

from __future__ import annotations

import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import memory_dataset
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.laplace import averaged
from dkgp.models.classification.likelihoods import Likelihood, Link
from dkgp.models.classification.near import NearSettings, train_near, tune_labels_by_neighbours
from dkgp.models.sparse.near import NearPredictor
from dkgp.models.sparse.search import BASIS_SIZES
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp_benchmarks.classify.many.problems import MANY, classes_of
from dkgp_benchmarks.classify.many.race import table_of
from dkgp_benchmarks.classify.problems import PROBLEMS, load, problem_names
from dkgp_benchmarks.records import Record

# Training and test samples at most, and by what their kernel is found.
SAMPLES, TESTED = 5000, 3000
# Of leaves' matrices that are kept from step to step.
KEPT_BYTES = 1 << 30
SUBSET, NEIGHBOURS = "subset", "neighbours"
LIKELIHOOD: Link = "logit"
# Problems of two classes; every sample is drawn anew, whatever split a file has.
NAMES = ("banana", "magic", "adult-codes", "made-twonorm", "made-ringnorm", "htru2-like", "covtype-like")

COLUMNS = (
    Column("problem", "problem", text=True),
    Column("n", "train", ",d"),
    Column("d", "d", "d"),
    Column("tuned_by", "tuned by", text=True),
    Column("log_loss", "log loss", ".4f"),
    Column("error", "error, %", ".2f"),
    Column("amplitude", "amplitude", ".3g"),
    Column("evaluations", "evaluations", "d"),
    Column("processor_seconds", "tuning, processor s", ".1f"),
)


def tuned_problems(folder: Path | None) -> list[str]:
    """Return the names of the problems whose data are present."""
    here = {*MANY, *problem_names(folder, 5), *problem_names(folder, 3), "made-twonorm", "made-ringnorm"}
    return [name for name in NAMES if name in here]


def drawn(name: str, folder: Path | None, seed: int) -> tuple[LabelledData, np.ndarray, np.ndarray]:
    """Training samples, and inputs (r, d) and codes (r,) to test on, both standardised by the former."""
    if name in MANY:
        classes = classes_of(MANY[name], folder, seed)
        inputs = np.concatenate([classes.inputs, classes.test_inputs])
        codes = np.concatenate([classes.labels.codes, classes.test_codes])
    else:
        samples = load(PROBLEMS[name], folder, seed)
        inputs, codes = samples.inputs, samples.codes
    order = np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(len(codes))
    n = min(SAMPLES, 2 * len(codes) // 3)
    train, test = order[:n], order[n : n + TESTED]
    labels = Labels(("a", "b"), codes[train].astype(np.int64))
    dataset = memory_dataset(inputs[train], labels.codes.astype(np.float64), classes=labels.classes)
    return LabelledData(dataset, labels), dataset.standardisation.inputs(inputs[test]), codes[test]


def measure_tuned(name: str, tuned_by: str, folder: Path | None, seed: int) -> dict[str, Any]:
    """Find a kernel, train, and classify the test samples: a row."""
    data, inputs, codes = drawn(name, folder, seed)
    likelihood = Likelihood.of(LIKELIHOOD, "ovr", 2)
    with closing(LocalExecutor(available_cores(), TileBudget(KEPT_BYTES))) as executor:
        began = time.process_time()
        if tuned_by == SUBSET:
            found = tune_labels(data, LabelTuning(seed=seed, likelihood=LIKELIHOOD, tolerance=1e-4), executor)
        else:
            choices = Choices(likelihood=LIKELIHOOD)
            size = min(BASIS_SIZES["vif"], data.n)
            found = tune_labels_by_neighbours(data, executor, choices, SearchSettings(seed), basis_size=size)
        seconds = time.process_time() - began
        trained = train_near(data, found, executor, NearSettings(seed=seed), likelihood=likelihood)
    predictor = NearPredictor(trained.kernel, trained.prototypes, trained.kernel_lower, trained.near)
    mean, variance, _ = predictor.predicted(inputs, None)
    probabilities = averaged(likelihood, mean, variance)
    return {
        "problem": name,
        "n": data.n,
        "d": inputs.shape[1],
        "tuned_by": tuned_by,
        "log_loss": float(-np.log(probabilities[np.arange(len(codes)), codes]).mean()),
        "error": 100.0 * float(np.mean(np.argmax(probabilities, axis=1) != codes)),
        "amplitude": float(found.kernel.diagonal(inputs[:1])[0]),
        "evaluations": found.evaluations,
        "processor_seconds": seconds,
    }


def tuned_table(names: list[str], folder: Path | None, seed: int, record: Record, reporter: Reporter) -> Document:
    """Both rows of every problem, what is on record left as it is; and on how many the neighbours' log loss is less."""
    title = f"Kernels by the evidence of all labels with neighbours, and of a subset: log loss of {TESTED:,} others"
    units = [(name, tuned_by) for name in names for tuned_by in (SUBSET, NEIGHBOURS)]

    def measure(name: str, tuned_by: str) -> list[dict[str, Any]]:
        return [measure_tuned(name, tuned_by, folder, seed)]

    table = table_of("tuned", title, COLUMNS, units, measure, record, reporter)
    losses = [row["log_loss"] for row in table["rows"]]
    away = np.array(losses[1::2]) - np.array(losses[::2])
    table["figures"] = {
        "lower_log_loss_by_neighbours": f"{int((away < 0.0).sum())} of {len(away)}",
        "log_loss_difference_mean": float(away.mean()),
    }
    return table
