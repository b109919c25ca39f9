"""Declarations of the commands, which the command line, the jobs service and batch scripts read.

The fields of a command's job declare its options (`dkgp.options`). A command's module is imported at first use.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dkgp.options import Declared, declared_options

if TYPE_CHECKING:
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter


@dataclass(frozen=True)
class Recipe:
    """A command NAME. Its module defines the dataclass `NameJob` and the function `run_name`, which runs such a job."""

    name: str
    help: str
    examples: tuple[str, ...]
    module: str = ""  # `dkgp.commands.NAME` by default
    must_converge: bool = False  # a document with `converged` false means exit code 4
    as_job: bool = False  # the jobs service and `dkgp submit` run it
    goes_on: bool = False  # with `--resume` it continues from its checkpoint instead of starting over

    @property
    def kind(self) -> type[Any]:
        """The dataclass of the job."""
        kind: type[Any] = getattr(self._imported(), f"{self.name.capitalize()}Job")
        return kind

    def declared(self) -> dict[str, Declared]:
        """Return all options, by name."""
        return declared_options(self.kind)

    @property
    def on_cluster(self) -> bool:
        """True if the command has the cluster options."""
        return any(path[0] == "cluster" for each in self.declared().values() for path in each.paths)

    @property
    def resumes(self) -> bool:
        """True if the command has `--resume`."""
        return any(field.name == "resume" for field in fields(self.kind))

    def check(self, job: Any) -> None:
        """Refuse contradictory options, as far as possible without data; `UsageError` or `InputError`."""
        check = getattr(self._imported(), f"check_{self.name}", None)
        if check is not None:
            check(job)
        elif hasattr(job, "check"):
            job.check()

    def run(self, job: Any, reporter: Reporter) -> Document:
        """Run a job; raises the errors of its run function."""
        document: Document = getattr(self._imported(), f"run_{self.name}")(job, reporter)
        return document

    def finished(self, job: Any, reporter: Reporter) -> Document | None:
        """Return the record of an earlier run that finished this job; None if there is none."""
        finished = getattr(importlib.import_module(self.kind.__module__), f"finished_{self.name}", None)
        document: Document | None = None if finished is None else finished(job, reporter)
        return document

    def _imported(self) -> Any:
        return importlib.import_module(self.module or f"dkgp.commands.{self.name}")


RECIPES: dict[str, Recipe] = {}


def recipe_of(job: Any) -> Recipe:
    """Return the recipe that runs a job."""
    return RECIPES[type(job).__name__.removesuffix("Job").lower()]


def _declare(name: str, help: str, examples: tuple[str, ...], **settings: Any) -> None:
    RECIPES[name] = Recipe(name, inspect.cleandoc(help), examples, **settings)


_declare(
    "train",
    """Train an exact Gaussian process on the store DATASET.

    Solves (K + s2 I) alpha = y without ever holding the kernel matrix. A run that stops before its tolerance saves its
    model, says so, and ends with exit code 4; --resume continues it from its checkpoint.
    """,
    (
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --tol 1e-4",
        "dkgp train train.zarr --out model.zarr --tune",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --resume",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot run.png",
    ),
    module="dkgp.commands.tuned",
    must_converge=True,
    as_job=True,
    goes_on=True,
)
_declare(
    "sparse",
    """Train a sparse Gaussian process on the store DATASET, with a proven distance to the exact one.

    The model predicts without the training set. Time grows with n m², memory with m². If you ask for a gap or a
    distance and the model misses it, the model is saved, the command says so, and ends with exit code 4.
    """,
    (
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --gap 0.025 --plot basis.png",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis k-means --certify-passes 3",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis-size auto --target-distance 0.01",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --resume",
    ),
    must_converge=True,
    as_job=True,
    goes_on=True,
)
_declare(
    "classify",
    """Train a classifier on the labels of the store DATASET.

    A fixed-size least-squares support vector machine finds kernel, noise and prototypes by cross-validation, in a few
    passes over the data, and predicts from the prototypes alone. An exact one is solved on all samples, so that its
    labels can be certified. Both give probabilities that are calibrated on held-out samples.

    Kernel logistic regression and Gaussian process classification have probabilities of their own: on all samples, each
    within a proven interval, or on a basis of some samples. Without --hyper the kernel maximises the evidence of a
    subset's labels.

    A run that stops before its tolerance saves its model, says so, and ends with exit code 4. --resume continues an
    interrupted or killed run to the same bits.
    """,
    (
        "dkgp classify train.zarr --out model.zarr",
        "dkgp classify train.zarr --out model.zarr --class-weight balanced --plot path.png",
        "dkgp classify train.zarr --out model.zarr --as-in-the-paper",
        "dkgp classify train.zarr --out model.zarr --pool 3000 --prototypes entropy --search annealing --isotropic",
        "dkgp classify train.zarr --out model.zarr --method exact --hyper hyper.json --resume",
        "dkgp classify train.zarr --out model.zarr --method logistic --plot gap.png",
        "dkgp classify train.zarr --out model.zarr --method gp --basis-size 1000 --link probit",
    ),
    must_converge=True,
    as_job=True,
    goes_on=True,
)
_declare(
    "pursue",
    """Find a linear regression with few nonzero weights on the store DATASET, and the whole path to it.

    Features and targets are standardised; weights are printed in their own units. One pass over the samples computes
    all sums that paths and cross-validation need: about F d² numbers for d features and F folds. If these do not fit in
    memory, a numeric --cardinality takes one pass over the samples for each feature. `dkgp predict` and `dkgp evaluate`
    read the model like any other; its means have no bounds.
    """,
    (
        "dkgp pursue train.zarr --out weights.zarr",
        "dkgp pursue train.zarr --out weights.zarr --cardinality 5 --plot path.png",
        "dkgp pursue train.zarr --out weights.zarr --method lasso --cardinality one-standard-error --json",
    ),
)
_declare(
    "tune",
    """Find length scales and noise for the store DATASET by maximum likelihood on random subsets.

    Or by a sparse model's evidence on all samples (--objective bound). The threads of this process do the work unless
    you ask for a cluster; the result has the same bits everywhere. Values are those of the standardised data.
    """,
    (
        "dkgp tune train.zarr --out hyper.json --kernel rbf --subset 2000",
        "dkgp tune train.zarr --out hyper.json --subsets 4 --plot scales.png --folds 10",
        "dkgp tune train.zarr --out hyper.json --kernel 'matern32 + linear' --objective loo",
        "dkgp tune train.zarr --out hyper.json --bounds 'gamma*=0.001:10' --fix noise_variance=0.01",
        "dkgp tune train.zarr --out better.json --start hyper.json --prior 'gamma*=lognormal(0.1, 1)'",
        "dkgp tune train.zarr --out hyper.json --refine --refine-steps 10",
        "dkgp tune train.zarr --out hyper.json --objective bound --basis-size 500",
        "dkgp tune labelled.zarr --out hyper.json --likelihood logit --folds 10",
    ),
    as_job=True,
)
_declare(
    "predict",
    """Predict at the samples of the store DATASET: means with a proven bound on their error, and variances.

    The suffix of --out decides the form: a store, which `dkgp evaluate` reads, or a table for other programs, as
    `dkgp export` writes them.

    A classifier predicts decisions, classes and probabilities. If the model is certified, each decision has a proven
    bound and each probability a proven interval, probability_lower to probability_upper.

    With --variance, the exact variance lies between variance_lower and variance_upper, and the middle is reported. A
    sparse model reports its method's own variance beside the exact model's interval. Samples whose interval stays wider
    than --variance-gap are counted, with a warning; the exit code is 0. The proofs hold for the Gaussian process with
    the model's hyperparameters; they assume that a user() function in its kernel is positive definite.

    With --stdin, instead, each line of standard input is answered by a line on standard output as soon as it is read:
    delimited fields, by name if the first line is a header, else in the training set's order. The answer has mean and
    mean_error_bound, with --variance also std, lower_95 and upper_95, as `dkgp export` writes them. A line that cannot
    be predicted is answered by nan and named on standard error, and the exit code is 3.
    """,
    (
        "dkgp predict model.zarr test.zarr --out pred.zarr",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --variance-gap 0.02",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --resume",
        "dkgp predict model.zarr new.zarr --out pred.csv --variance",
        "tail -f readings.csv | dkgp predict model.zarr --stdin --variance",
    ),
    as_job=True,
    goes_on=True,
)
_declare(
    "evaluate",
    """Compare the predictions in PREDICTION with the targets of the store DATASET that they were made for.

    With variances the table also has the negative log predictive density, the coverage of 95 % intervals, and the
    certified gaps. For a sparse model's predictions it has their largest distance from the exact model's, and the share
    of variances that is proven wrong. Scores take the middle of proven intervals. All figures of the table are in the
    targets' units.

    Ends with a verdict: each fault in a sentence, with the next step. --compare adds errors of simpler models.

    For classes: error, balanced error, area under the curve, log loss, Brier score and calibration error, the confusion
    matrix, and the share of labels that are certified. Labels are matched by the classes' names.
    """,
    (
        "dkgp evaluate pred.zarr test.zarr",
        "dkgp evaluate pred.zarr test.zarr --compare --plot fit.png",
        "dkgp evaluate classes.zarr test.zarr --abstain --plot classes.png",
    ),
    as_job=True,
)
_declare(
    "export",
    """Write the predictions in PREDICTION as a table OUT, a row a sample: .csv, .csv.gz, .parquet or .nc.

    Columns are row (from 1), with --dataset the columns that `dkgp ingest --id` kept and the true targets, then mean,
    std, lower_95, upper_95 and mean_error_bound; with several targets each after the target's name and a dot. Classes
    have class, certified, a probability and a decision for each class. std belongs to the middle of the interval that
    the variance is proven to lie in, or is a sparse model's own.
    """,
    (
        "dkgp export pred.zarr pred.csv --dataset test.zarr",
        "dkgp export pred.zarr pred.parquet",
    ),
    module="dkgp.commands.predict",
)
_declare(
    "plan",
    """Estimate time and memory of training on the store DATASET, for 1 to 256 workers.

    Chooses the solver as `train` would, forecasts its products or passes from a probe of the samples, and measures this
    machine and the round trip to the scheduler that you name (or between processes here). Refuses what `train` would
    refuse. Writes nothing but the files that you ask for. The plan assumes workers on machines like this one, one each;
    the time is that of the solve, without waiting for a cluster to start.
    """,
    (
        "dkgp plan train.zarr --hyper hyper.json",
        "dkgp plan train.zarr --hyper hyper.json --workers 1,2,4,8 --threads-per-worker 8 --figures machine.json",
        "dkgp plan train.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot plan.png",
        "dkgp plan train.zarr --hyper hyper.json --variance --test-samples 5000 --variance-gap 0.01",
        "dkgp plan train.zarr --hyper hyper.json --sparse vfe --basis-size 2000",
        "dkgp plan labelled.zarr --hyper hyper.json --classify shared --pool 3000",
        "dkgp plan labelled.zarr --hyper hyper.json --classify logistic",
        "dkgp plan train.zarr --hyper hyper.json --workers 1,4,16 --cache-tiles 8GiB",
        "dkgp plan train.zarr --hyper hyper.json --validate",
    ),
    module="dkgp.plan.plan",
)
_declare(
    "demo",
    """Train an exact Gaussian process on Friedman's first problem, from nothing.

    Generates noisy training data and noise-free test data straight into stores, tunes, trains, predicts (variances
    included) and evaluates, each step by its own command; ends with a table and a plot. A second run replaces the
    results of the first; with --resume it continues them, also in the middle of training. A million samples take a
    quarter of an hour on two cores.
    """,
    (
        "dkgp demo --out demo-output",
        "dkgp demo --out demo-output --quick",
        "dkgp demo --out million --samples 1000000 --resume",
    ),
    module="dkgp.commands.chained",
    must_converge=True,
)
_declare(
    "fit",
    """Fit a Gaussian process to the table SOURCES (files, globs, folders, URLs), or a classifier with --labels.

    Reads the table with a tenth held out, tunes, chooses a model that time and memory allow and says why, trains,
    predicts the held-out samples with variances, evaluates, and writes a report: report.html, which ends with the
    commands that reproduce it.
    """,
    (
        "dkgp fit DATA.csv --target price",
        "dkgp fit DATA.csv --target price --time 5min --memory 8GiB --out prices",
        "dkgp fit DATA.csv --labels species",
        "dkgp fit DATA.csv --target price --categorical cut,color --date sold --drop id --impute median",
        "dkgp fit DATA.csv --target price --resume",
    ),
    module="dkgp.fit",
    must_converge=True,
    as_job=True,
    goes_on=True,
)
