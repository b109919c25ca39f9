"""Commands that run a job: what each says of itself, and examples; its options are the job's (`dkgp.options`)."""

from __future__ import annotations

from dkgp.cli.command import JobCommand
from dkgp.cli.lines import LinesCommand

train = JobCommand(
    "train",
    """Train an exact Gaussian process on the store DATASET.

    Solves (K + s2 I) alpha = y without ever holding the kernel matrix. A run that stops short of its tolerance saves
    its model all the same, says so, and ends with exit code 4; --resume goes on from its checkpoint.
    """,
    (
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --tol 1e-4",
        "dkgp train train.zarr --out model.zarr --tune",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --resume",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot run.png",
    ),
    module="dkgp.commands.chained.training",
    must_converge=True,
)

sparse = JobCommand(
    "sparse",
    """Train a sparse Gaussian process on the store DATASET, with a proven distance to the exact one.

    The model predicts without the training set. Time is in proportion to n m², memory to m². Where a gap or a distance
    was asked for and is not met, the model is saved all the same, says so, and the command ends with exit code 4.
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
)

classify = JobCommand(
    "classify",
    """Train a classifier on the labels of the store DATASET.

    A fixed-size least-squares support vector machine finds kernel, noise and prototypes by cross-validation, in a few
    passes over the data, and predicts without them. An exact one is solved for on all samples, so that its labels can
    be certified. Either gives probabilities calibrated on samples that it was not fitted to.

    Kernel logistic regression and Gaussian process classification have probabilities by themselves, on all samples each
    within a proven interval, or on a basis of some of them. Without --hyper their kernel is found by the evidence of a
    subset's labels.

    A run that stops short of its tolerance saves its model all the same, says so, and ends with exit code 4. --resume
    goes on with what a run that was interrupted or killed has saved, to the same bits.
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
)

pursue = JobCommand(
    "pursue",
    """Find a linear regression with few nonzero weights on the store DATASET, and the whole path to it.

    Features and targets are standardised; weights are told in their own units. One pass over the samples brings all
    sums that paths and cross-validation take: of d features and F folds some F d² numbers. Where these do not fit, a
    --cardinality that is a number takes a pass over the samples a feature. `dkgp predict` and `dkgp evaluate` take the
    model as any other; its means have no bounds.
    """,
    (
        "dkgp pursue train.zarr --out weights.zarr",
        "dkgp pursue train.zarr --out weights.zarr --cardinality 5 --plot path.png",
        "dkgp pursue train.zarr --out weights.zarr --method lasso --cardinality one-standard-error --json",
    ),
)

tune = JobCommand(
    "tune",
    """Find length scales and noise for the store DATASET by maximum likelihood on random subsets.

    Or by a sparse model's evidence on all samples (--objective bound). The work is done by this process's threads
    unless a cluster is asked for; the result has the same bits wherever it runs. Values are those of the standardised
    data.
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
)

predict = LinesCommand(
    "predict",
    """Predict at the samples of the store DATASET: means with a proven bound on their error, and variances.

    Into a store, which `dkgp evaluate` reads, or into a table for other programs, as `dkgp export` writes them: the
    suffix of --out decides.

    Of a classifier decisions, classes and probabilities; where the model is certified each decision with a proven bound
    and each probability in a proven interval, probability_lower to probability_upper.

    With --variance, the exact variance lies between variance_lower and variance_upper, and the middle is what is
    reported; of a sparse model its method's own is, beside the exact model's interval. Samples whose interval stays
    wider than --variance-gap are counted, with a warning; the exit code is 0. The proofs are of the Gaussian process
    with the model's hyperparameters; of a user() function in its kernel they take for granted that it is positive
    definite.

    With --stdin, instead, each line of standard input is answered by a line on standard output as soon as it is read:
    delimited fields, by name where the first line is a header, else in the training set's order; mean and
    mean_error_bound, with --variance also std, lower_95 and upper_95, as `dkgp export` has them. What cannot be
    predicted is answered by nan and named on standard error, and the exit code is 3.
    """,
    (
        "dkgp predict model.zarr test.zarr --out pred.zarr",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --variance-gap 0.02",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --resume",
        "dkgp predict model.zarr new.zarr --out pred.csv --variance",
        "tail -f readings.csv | dkgp predict model.zarr --stdin --variance",
    ),
)

evaluate = JobCommand(
    "evaluate",
    """Compare the predictions in PREDICTION with the targets of the store DATASET that they were made for.

    With variances also the negative log predictive density, the coverage of 95 % intervals, and the certified gaps; of
    a sparse model's predictions how far from the exact model's they are at most, and which share of variances is proven
    wrong. Scores take the middle of proven intervals. All figures of the table are in the targets' units.

    Ends with a verdict: what is wrong, in sentences, with what to do next. --compare adds errors of simpler models.

    Of classes: error, balanced error, area under the curve, log loss, Brier score and calibration error, the confusion
    matrix, and the share of labels that are certified. Labels are matched by the classes' names.
    """,
    (
        "dkgp evaluate pred.zarr test.zarr",
        "dkgp evaluate pred.zarr test.zarr --compare --plot fit.png",
        "dkgp evaluate classes.zarr test.zarr --abstain --plot classes.png",
    ),
)

export = JobCommand(
    "export",
    """Write the predictions in PREDICTION as a table OUT, a row a sample: .csv, .csv.gz, .parquet or .nc.

    Columns are row (from 1), with --dataset the columns that `dkgp ingest --id` kept and the true targets, then mean,
    std, lower_95, upper_95 and mean_error_bound; of several targets each behind the target's name and a dot. Of classes
    class, certified, a probability and a decision for each class. std is of the middle of the interval that the
    variance is proven to lie in, or a sparse model's own.
    """,
    (
        "dkgp export pred.zarr pred.csv --dataset test.zarr",
        "dkgp export pred.zarr pred.parquet",
    ),
    module="dkgp.commands.predict",
)

plan = JobCommand(
    "plan",
    """Say what training on the store DATASET will take, for 1 to 256 workers.

    Settles the solver as `train` would, foresees its products or passes from a probe of the samples, measures this
    machine and the round trip to the scheduler given (or between processes here), and lays the work out. Refuses what
    `train` would refuse. Nothing is written but what is asked for. It plans for workers with a machine like this one
    each; the time is that of the solve, without waiting for a cluster to start.
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

demo = JobCommand(
    "demo",
    """Train an exact Gaussian process on Friedman's first problem, from nothing.

    Generates noisy training data and noise-free test data straight into stores, tunes, trains, predicts (variances
    included) and evaluates, each step as its own command would; ends with a table and a plot. Run again, it replaces
    its own results; with --resume it goes on from them, also in the middle of its training. A million samples take a
    quarter of an hour on two cores.
    """,
    (
        "dkgp demo --out demo-output",
        "dkgp demo --out demo-output --quick",
        "dkgp demo --out million --samples 1000000 --resume",
    ),
    module="dkgp.commands.chained.demo",
    must_converge=True,
)
