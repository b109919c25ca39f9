"""The runs of `dkgp classify`, one class for each method."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from dkgp.cluster import BlockExecutor
from dkgp.codec import difference, to_json
from dkgp.commands.classify import ClassifyJob, check_classify, method_of
from dkgp.commands.presets import settled
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.reporting.outputs import Document, RecordLog, plain
from dkgp.commands.reporting.plots import plot_convergence, plot_newton, plot_path, plot_risk
from dkgp.commands.reporting.progress import Measure, Reporter, about_seconds, width_line
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.signals import interruptible
from dkgp.commands.solver_options import check_decisions
from dkgp.commands.solving import effort_limits, input_bytes, inputs_within, planned_solve, room, solving
from dkgp.commands.training import Outcome, TrainingRun
from dkgp.data import ClassifierRecord, Dataset, open_dataset, save_classifier
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential, fold_white
from dkgp.limits import measured_slowness
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import BasisSettings
from dkgp.models.classification.exact import DecisionError, ExactSettings, solver_for_labels, train_exact
from dkgp.models.classification.fixed_size.settings import foresee_search, most_widths
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import (
    LabelledData,
    Labels,
    label_weights,
    labels_of,
    rare_class,
    stratified_folds,
)
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RiskSettings, product_limit, require_separate, train_gp, train_logistic
from dkgp.models.classification.near import NearSettings, train_with_basis
from dkgp.models.classification.prototypes import DEFAULT_BASIS
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import likelihood_caution
from dkgp.models.memory import Memory, TrainingSizes
from dkgp.models.sparse.vif import SEARCHED
from dkgp.models.tuning.laplace import LabelLikelihood
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import coordinator_input_bytes_needed
from dkgp.operators.product_error import renamed
from dkgp.options import deciding_values
from dkgp.solvers import Checkpointing, Solver
from dkgp.solvers.registry import AUTO, build_solver, solver_memory
from dkgp.solvers.risk import risk_memory


class ClassifyRun(TrainingRun):
    """A run of `dkgp classify` by one method.

    `open` sets `labels`. `prepare` sets `weights` (n,), which are None if all samples have equal weight.
    """

    command, record = "classify", ClassifierRecord
    method: ClassVar[str]  # the method's name in the option groups
    job: ClassifyJob
    labels: Labels
    weights: FloatArray | None = None
    checkpointing: Checkpointing

    @property
    def likelihood(self) -> Likelihood | None:
        """The likelihood of the labels; None for a least-squares machine."""
        return None

    @property
    def takes_noise(self) -> bool:
        """True if the model also depends on the noise variance of the hyperparameters."""
        return False

    def open(self) -> None:
        """Open data and hyperparameters; `InputError` if the data have fewer than two classes."""
        self.dataset = open_dataset(self.job.dataset)
        self.labels = labels_of(self.dataset)
        self.hyperparameters = None
        if self.job.hyper is not None:
            self.hyperparameters = self.read_hyperparameters(self.job.hyper)
        self.keep_to_products()

    def prepare(self) -> None:
        """Compute the sample weights, refuse options that contradict the data, and warn of unusual data."""
        self.weights = label_weights(self.labels, self.job.weights_by_class, self.dataset.all_weights())
        self.check_hyperparameters(self.hyperparameters)
        if self.hyperparameters is not None:
            self.caution(self.hyperparameters)

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse hyperparameters or data that the method or `product_error` does not support; `InputError`."""
        if hyperparameters is not None:
            self.product_error.require_kernel(hyperparameters.kernel)

    def caution(self, hyperparameters: Hyperparameters) -> None:
        """Warn of hyperparameters that were tuned for another likelihood than the method's."""
        caution = likelihood_caution(hyperparameters, self.evidence)
        if caution is not None:
            self.reporter.warn(caution)

    @property
    def data(self) -> LabelledData:
        """The samples with labels and weights."""
        return LabelledData(self.dataset, self.labels, self.weights)

    @property
    def evidence(self) -> LabelLikelihood | None:
        """The likelihood whose evidence tunes the hyperparameters; for softmax, the logit of each class."""
        if self.likelihood is None:
            return None
        return "probit" if self.likelihood.name == "probit" else "logit"

    def kernel_and_noise(self) -> Hyperparameters:
        """Return the job's hyperparameters; if it has none, tune them on a subset and report that."""
        if self.hyperparameters is not None:
            return self.hyperparameters
        with self.reporter.search("tune") as progress:
            search = LabelTuning(
                seed=self.job.settings.seed,
                isotropic=self.job.settings.isotropic,
                progress=progress,
                likelihood=self.evidence,
            )
            count = min(search.subset, self.dataset.n_samples)
            link = "" if self.evidence is None else f" ({self.evidence} link, Laplace's approximation)"
            self.reporter.note(f"tuning hyperparameters by the marginal likelihood of {count:,} labels{link}")
            hyperparameters = tune_labels(self.data, search)
        self.check_hyperparameters(hyperparameters)
        return hyperparameters

    def identity(self) -> dict[str, Any]:
        """Return the options of the method: with data, hyperparameters and weights, they determine the model."""
        return deciding_values(self.job, self.method, "settings")

    @property
    def asked(self) -> dict[str, Any]:
        """All settings that determine the model."""
        origin: dict[str, Any] = {"kernel": None, "noise_variance": None}
        if self.hyperparameters is not None:
            noise = self.hyperparameters.noise_variance if self.takes_noise else None
            origin = {"kernel": self.hyperparameters.kernel.to_json(), "noise_variance": noise}
        origin |= {"method": self.job.method, "class_weight": sorted(self.job.class_weight), **self.identity()}
        if self.hyperparameters is not None:
            kernel, _ = fold_white(self.hyperparameters.kernel, 1.0)
            origin |= self.product_error.record(kernel, self.dataset.n_samples)
        everything: dict[str, Any] = plain({"fingerprint": self.dataset.fingerprint, **origin})
        return everything

    def checkpoints(self) -> Checkpointing:
        """Return the checkpoints."""
        return checkpointing_of(self.job, self.asked, None, self.reporter)

    @abstractmethod
    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Plan the memory, train, and return the model to store."""

    def save(self, trained: ClassifierRecord, measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model."""
        trained.summary.update({**measured, "asked": self.asked})
        job = self.job
        save_classifier(job.out, trained, dataset=self.dataset, by_reference=job.by_reference, overwrite=overwrite)
        return Outcome(trained, trained.summary, trained.certificate, trained.history)

    def difference(self, model: ClassifierRecord, converged: bool) -> str | None:
        """Return the name of a setting in which the stored model's run differs."""
        asked = model.summary.get("asked", {})  # models of an estimator have no such entry
        made = {"fingerprint": model.fingerprint, **renamed(asked), "by_reference": model.by_reference}
        return difference(made, {**self.asked, "by_reference": self.job.by_reference})

    def draw(self, outcome: Outcome) -> None:
        """Plot the progress of the run."""
        summary, record = outcome.summary, outcome.model
        title = f"{record.form}: n = {summary['n']:,}, d = {summary['d']}, {len(record.classes)} classes"
        assert self.job.plot is not None
        self.plot(self.job.plot, record, title)

    @abstractmethod
    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Plot the progress of a model's training to a file."""

    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""
        model = outcome.model
        return {
            **plain({name: value for name, value in outcome.summary.items() if name != "asked"}),
            "kernel": plain(model.kernel),
            "noise_variance": model.noise_variance,
            "intercept": plain(model.intercept),
            "class_weights": model.class_weights,
            "probabilities": model.calibration is not None or model.likelihood is not None,
            "likelihood": model.likelihood,
            "path": plain(model.path),
            "certificate": plain(model.certificate),
        }

    def warnings(self, outcome: Outcome) -> list[str]:
        """Return the warnings that apply to a model of any method."""
        summary, messages = outcome.summary, super().warnings(outcome)
        rarest = rare_class(self.labels)
        if not self.job.class_weight and rarest is not None:
            count, name = summary["counts"][rarest], summary["classes"][rarest]
            messages.append(
                f"the class '{name}' has {count:,} of {summary['n']:,} samples: a low error rate does not show whether "
                "this class is ever predicted. Check the balanced error, or give `class_weight` balanced"
            )
        return messages


class LikelihoodRun(ClassifyRun):
    """A run of a method with a likelihood: logistic regression or a Gaussian process."""

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the labels."""
        return self.job.likelihood(self.labels)

    def identity(self) -> dict[str, Any]:
        """Return the options of the method and the likelihood."""
        risk = {"likelihood": to_json(self.likelihood), "regularisation": self.job.regularisation}
        return {**super().identity(), **risk}


class FixedSizeRun(ClassifyRun):
    """A run of a fixed-size LS-SVM; see `dkgp.models.classification.fixed_size`."""

    method = "fixed-size"
    compiles = ("fixed-size",)

    @property
    def takes_noise(self) -> bool:
        """True if the job sets `given_noise`."""
        return self.job.given_noise

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse more folds than the smallest class has samples."""
        stratified_folds(self.labels, self.job.settings.folds, self.job.settings.seed)

    def caution(self, hyperparameters: Hyperparameters) -> None:
        """Warn of hyperparameters that were tuned for another purpose, if the model uses their noise."""
        if self.takes_noise:
            super().caution(hyperparameters)

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Search and fit; report a note and a record for each kernel of the search."""
        job, kernel, noise_variance = self.job, None, None
        if self.hyperparameters is not None:
            kernel = self.hyperparameters.kernel
            noise_variance = self.hyperparameters.noise_variance if job.given_noise else None
        plan, inputs_bytes = self._planned(kernel, executor)
        self.begin()
        with (
            RecordLog(job.log_json, resume=job.resume) as log,
            self.reporter.work("classify") as show,
            interruptible(self.reporter.warn) as interruption,
        ):

            def after_evaluation(record: dict[str, Any]) -> None:
                self.reporter.note(width_line(record))
                log.write({"iteration": record["pass"], **record})

            if job.settings.judges_by_pools:
                self._announce(executor, plan.about["together"])
            trained = train_fixed_size(
                self.data,
                job.settings,
                RunContext(
                    executor,
                    inputs_bytes,
                    callback=after_evaluation,
                    within=show,
                    checkpointing=self.checkpointing,
                    interrupted=interruption,
                ),
                kernel=kernel,
                noise_variance=noise_variance,
                together=plan.about["together"],
            )
        record = trained.record(self.data)
        record.summary["memory_plan"] = plan.to_json()
        return record

    def _announce(self, executor: BlockExecutor, together: int) -> None:
        """Report the estimated cost of the search."""
        settings, n, outputs = self.job.settings, self.dataset.n_samples, self.labels.n_outputs
        foreseen = foresee_search(
            (n, self.dataset.n_features, outputs), settings.pool_size(n, outputs), folds=settings.folds,
            threads=executor.parallelism, together=together, search=settings.search,
        )  # fmt: skip
        slowness = max(1.0, measured_slowness())
        load = "on idle cores" if slowness == 1.0 else "at the present load"
        self.reporter.note(
            f"forecast: about {about_seconds(slowness * foreseen.seconds)} {load}, at most {foreseen.passes} passes "
            f"over {n:,} samples. The search scores up to {most_widths(settings.search)} multiples of the length "
            f"scales with {foreseen.judging:,} prototypes each. The model then selects prototypes among "
            f"{foreseen.pool:,} candidates"
        )

    def _planned(self, kernel: Kernel | None, executor: BlockExecutor) -> tuple[Memory, int]:
        """The projected memory, and the bytes of inputs that the coordinator may hold.

        Raises `MemoryBudgetError` if a pool does not fit even with one kernel at a time.
        """
        n, d = self.dataset.n_samples, self.dataset.n_features
        width = feature_width(SquaredExponential(gamma=(1.0,) * d) if kernel is None else kernel)
        resident, budget = room(self)

        def plan(free: int) -> Memory:
            sizes = TrainingSizes(n, d, self.labels.n_outputs, executor, self.job.cluster.cache_bytes, width)
            return self.job.settings.memory(sizes, budget_bytes=free)

        memory = plan(budget - resident - coordinator_input_bytes_needed(n, d, width))
        inputs = inputs_within(self, width, budget - resident - memory.coordinator_bytes)
        if not inputs:
            memory = plan(budget - resident)
        memory.require(budget, resident)
        return memory, inputs

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Plot the scores by cardinality, and the search."""
        plot_path(path, record.path, record.history, record.summary, title=title)


class ExactRun(ClassifyRun):
    """A run of the exact LS-SVM; see `dkgp.models.classification.exact`."""

    method = "exact"

    @property
    def takes_noise(self) -> bool:
        """True: the problem contains s2 = 1/gamma_K."""
        return True

    def identity(self) -> dict[str, Any]:
        """Return the options of the method, with the intercept as True or False."""
        return {**super().identity(), "intercept": self.job.fit_intercept}

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse data that `product_error` does not support; with a known kernel, before any work."""
        super().check_hyperparameters(hyperparameters)
        if hyperparameters is not None:
            self._check_limit(hyperparameters)

    def _check_limit(self, hyperparameters: Hyperparameters) -> None:
        if self.product_error.number is not None:
            limit = self._rule(hyperparameters).gradient_tolerance(self.dataset.n_samples)
            check_decisions(self.product_error, limit, self.job.tolerance)

    def _rule(self, hyperparameters: Hyperparameters) -> DecisionError:
        """Return the stopping rule that bounds the error of decisions by the tolerance."""
        n, noise, weights = self.dataset.n_samples, hyperparameters.noise_variance, self.weights
        least = noise if weights is None else noise / float(weights.max())
        level = noise / n * (1.0 if weights is None else float((1.0 / weights).mean()))
        largest = _largest(self.dataset, hyperparameters.kernel)
        return DecisionError(self.job.tolerance, least, largest, self.job.fit_intercept, level)

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Solve for alpha and the intercept until decisions are within the tolerance."""
        job, dataset, labels = self.job, self.dataset, self.labels
        hyperparameters = self.kernel_and_noise()
        kernel = hyperparameters.kernel
        rule = self._rule(hyperparameters)
        least, tolerance = rule.noise_variance, rule.gradient_tolerance(dataset.n_samples)
        solver, choice = self._solver(kernel, least, tolerance, executor)
        if choice:
            reason = choice["auto"]["reason"]
            told = f"the solver is {solver.name}"
            self.reporter.note(f"{told}, the fastest by a forecast", f"{told}: {reason}")
        self._check_limit(hyperparameters)
        plan = planned_solve(
            self,
            kernel,
            labels.n_outputs + job.fit_intercept,
            solver_memory(solver, dataset.n_samples, feature_width(kernel)),
            executor,
            products=choice["auto"]["products"] if choice else None,
        )
        with solving(self, executor, input_bytes(plan), tolerance) as context:
            settings = ExactSettings(
                solver=solver,
                tolerance=job.tolerance,
                limits=effort_limits(job.max_passes, job.max_seconds),
                fit_intercept=job.fit_intercept,
                calibrate=job.settings.probability,
                seed=job.settings.seed,
            )
            trained = train_exact(self.data, hyperparameters, context, settings)
        summary = {
            **trained.summary,
            **choice,
            "solver": choice["auto"]["solver"] if choice else job.solver,
            "memory_plan": plan.to_json(),
            "gradient_tolerance": tolerance,
        }
        return trained.record(self.data, summary)

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Plot the convergence if the solver has rounds."""
        if record.history:
            plot_convergence(path, record.history, tolerance=record.summary["gradient_tolerance"], title=title)

    def _solver(
        self, kernel: Kernel, noise_variance: float, tolerance: float, executor: BlockExecutor
    ) -> tuple[Solver, dict[str, Any]]:
        """Return the job's solver, or the choice of "auto" with its reason."""
        job, dataset = self.job, self.dataset
        if job.solver != AUTO:
            solver = build_solver(job.solver, {}, seed=job.settings.seed)
            return solver.resolved(dataset.n_samples, dataset.n_features), {}
        return solver_for_labels(
            dataset,
            kernel,
            noise_variance,
            self.labels.n_outputs + job.fit_intercept,
            tolerance,
            RunContext(executor, product_error=self.product_error),
            job.settings.seed,
            memory_budget(job.memory_limit_bytes)[1],
        )


def _largest(dataset: Dataset, kernel: Kernel) -> float:
    """Return the largest k(x, x) of the samples."""
    if kernel.stationary:
        return float(kernel.diagonal(dataset.inputs(0, 1))[0])
    return max(float(kernel.diagonal(dataset.inputs(*rows)).max()) for rows in dataset.row_chunks())


class LogisticRun(LikelihoodRun):
    """A run of kernel logistic regression on all samples."""

    method = "logistic"

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse data that `product_error` does not support; with a known kernel, before any work."""
        super().check_hyperparameters(hyperparameters)
        if hyperparameters is not None:
            self.check_limit(hyperparameters)

    def check_limit(self, hyperparameters: Hyperparameters) -> None:
        """Refuse a `product_error` that is too large for the tolerance of decisions; `UsageError`."""
        limit = product_limit(self.data, hyperparameters.kernel, self.risk_settings)
        check_decisions(self.product_error, limit, self.job.tolerance)

    @property
    def risk_settings(self) -> RiskSettings:
        """The risk and its stopping tolerance."""
        job = self.job
        return RiskSettings(
            self.likelihood,
            regularisation=job.regularisation,
            method=job.solver,
            tolerance=job.tolerance,
            gap=job.gap,
            limits=effort_limits(job.max_passes, job.max_seconds),
            seed=job.settings.seed,
        )

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Minimise the risk until the decisions, or the risk, are within the tolerance."""
        job, dataset, likelihood = self.job, self.dataset, self.likelihood
        hyperparameters = self.kernel_and_noise()
        self.check_limit(hyperparameters)
        memory = risk_memory(job.solver, dataset.n_samples, likelihood.n_outputs, dataset.n_features)
        plan = planned_solve(self, hyperparameters.kernel, likelihood.n_outputs, memory, executor)
        goal: tuple[float, Measure] = (job.tolerance, "distance") if job.gap is None else (job.gap, "duality_gap")
        with solving(self, executor, input_bytes(plan), goal[0], measure=goal[1]) as context:
            train = train_gp if self.method == "gp" else train_logistic
            trained = train(self.data, hyperparameters, context, self.risk_settings)
        summary = {**trained.summary, "method": self.method, "memory_plan": plan.to_json()}
        return trained.record(self.data, summary)

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Plot the gap of the risk over the products."""
        plot_risk(path, record.history, title=title, goal=self.job.gap)


class GPRun(LogisticRun):
    """A run of a Gaussian process classifier on all samples."""

    method = "gp"

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse softmax, whose approximation couples the classes, and data that `product_error` does not support."""
        require_separate(self.likelihood, self.labels.n_samples)
        super().check_hyperparameters(hyperparameters)


class LogisticOnBasisRun(LikelihoodRun):
    """A run of kernel logistic regression on a basis."""

    method = "logistic on a basis"
    form: ClassVar[Literal["logistic", "gp"]] = "logistic"

    @property
    def settings(self) -> BasisSettings:
        """Settings of the job's basis."""
        job = self.job
        assert job.basis_size is not None
        return BasisSettings(
            job.basis_size, job.basis or DEFAULT_BASIS, job.certify, tolerance=job.tolerance, seed=job.settings.seed
        )

    def identity(self) -> dict[str, Any]:
        """Return the options of the method, the resolved basis and the likelihood."""
        return {**super().identity(), "basis": self.job.basis or DEFAULT_BASIS}

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Choose the basis, take Newton steps, and certify the distance if the job asks for that."""
        job, hyperparameters = self.job, self.kernel_and_noise()
        plan, inputs_bytes = self._planned(hyperparameters.kernel, executor)
        if plan.useful_bytes:
            executor.tiles = replace(executor.tiles, bytes=plan["kept_bytes"])
        with solving(self, executor, inputs_bytes, job.tolerance, measure="relative_residual") as context:
            trained = train_with_basis(
                self.data,
                hyperparameters,
                context,
                self.settings,
                likelihood=self.likelihood,
                form=self.form,
                regularisation=job.regularisation,
            )
        summary = {**trained.summary, "method": self.form, "memory_plan": plan.to_json()}
        return trained.record(self.data, summary)

    def _planned(self, kernel: Kernel, executor: BlockExecutor) -> tuple[Memory, int]:
        """The projected memory, and the coordinator's bytes of inputs; `MemoryBudgetError` beyond the memory limit."""
        likelihood, width = self.likelihood, feature_width(kernel)
        n, d = self.dataset.n_samples, self.dataset.n_features
        resident, budget = room(self)
        sizes = TrainingSizes(n, d, likelihood.n_outputs, executor, self.job.cluster.cache_bytes, width)
        plan = self.settings.memory(sizes, coupled=likelihood.coupled)
        plan.require(budget, resident)
        inputs = inputs_within(self, width, budget - resident - plan.coordinator_bytes)
        return plan.with_kept(executor.tiles, budget - inputs, resident) if plan.useful_bytes else plan, inputs

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Plot the Newton steps."""
        plot_newton(path, record.history, tolerance=self.job.tolerance, title=title)


class GPOnBasisRun(LogisticOnBasisRun):
    """A run of a Gaussian process classifier on a basis, with or without neighbours."""

    method, form = "gp on a basis", "gp"

    @property
    def settings(self) -> BasisSettings:
        """Settings of the basis, and of the neighbours if the job has any."""
        settings, job = super().settings, self.job
        if job.neighbours is None:
            return settings
        searched = SEARCHED if job.search_samples is None else job.search_samples
        return NearSettings(
            settings.size,
            settings.basis,
            tolerance=settings.tolerance,
            seed=settings.seed,
            neighbours=job.neighbours,
            searched=searched,
        )


RUNS: dict[str, type[ClassifyRun]] = {
    each.method: each for each in (FixedSizeRun, ExactRun, LogisticRun, LogisticOnBasisRun, GPRun, GPOnBasisRun)
}


def run_classify(job: ClassifyJob, reporter: Reporter) -> Document:
    """Train and save; see `Run.run`."""
    job = settled("classify", job)
    check_classify(job)
    return RUNS[method_of(job)](job, reporter).run()


def finished_classify(job: ClassifyJob, reporter: Reporter) -> Document | None:
    """Return the record of the model at `job.out` if this job would train the same model; see `TrainingRun.done`."""
    try:
        return RUNS[method_of(settled("classify", job))].earlier(job, reporter)
    except InputError:
        return None
