"""The course of `dkgp fit`: ingest, tune, choose, train, predict, evaluate, report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from dkgp.codec import from_json, to_json
from dkgp.commands.chained import Steps, earlier_record
from dkgp.commands.evaluate import EvaluateJob
from dkgp.commands.evaluation import run_evaluate
from dkgp.commands.ingest import IngestJob, run_ingest
from dkgp.commands.predict.job import PredictJob
from dkgp.commands.reporting.memory import PeakMemory, available_bytes
from dkgp.commands.reporting.outputs import Document, check_output_file, is_document, write_text
from dkgp.commands.reporting.progress import Reporter, SilentReporter
from dkgp.commands.tune import AUTO_KERNEL, LEAST_SAMPLES, TuneJob
from dkgp.data import TableOptions, open_dataset
from dkgp.data.remote.claims import locked
from dkgp.data.remote.storage import exists, read_object, remove_object, remove_tree
from dkgp.data.sources.tables.survey import RefusedColumnsError, Survey
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError, OutputExistsError, UsageError
from dkgp.fit.attempts import Attempt, Attempts, Remedy, remedies, with_advice_for_fit
from dkgp.fit.budget import LEAST_KERNEL, LEAST_RIVALS, TRANSFORM, Budget
from dkgp.fit.budget import LEAST_SECONDS as LEAST_ATTEMPT
from dkgp.fit.budget import MODEL as MODEL_SHARE
from dkgp.fit.choice import Chooser
from dkgp.fit.classifiers import STOPPED, Comparison, compare_methods
from dkgp.fit.fallbacks import FEW_SAMPLES_KERNEL, Fallbacks, given_up, methods_given_up, smaller_subset
from dkgp.fit.job import (
    HYPER,
    MODEL,
    PAGE,
    PREDICTIONS,
    RECORD,
    STORES,
    TEST,
    TEST_SAMPLE,
    TRAIN,
    FitJob,
    candidate_words,
    chosen_kernel,
)
from dkgp.fit.page import write_page
from dkgp.fit.transforms import compare_transforms, draw
from dkgp.fit.ways import TrainingJob, Way, column_words, command_lines, spoken
from dkgp.kernels import parse_kernel
from dkgp.limits import Clock, finishing_within
from dkgp.models.classification.labels import labels_of
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.verdict import rival_seconds
from dkgp.models.warm_up import compile_seconds, helped, pieces_of_model
from dkgp.registry import byte_text

STEPS = ("ingest", "transform", "tune", "compare", "choose", "train", "predict", "evaluate", "report")
OF_NUMBERS, OF_LABELS = ("transform", "tune"), ("compare",)
# Share of the time for the comparison of kernels.
SHARE_OF_KERNELS = 0.2
# Share of the time for the evidence of all samples.
SHARE_OF_ALL_SAMPLES = 0.25
# Share of the time for the comparison of classifiers' methods.
SHARE_OF_METHODS = 0.2
# Share of the time for the comparison with simpler models, by a forecast.
SHARE_OF_RIVALS = 0.1
# Seconds of an idle machine that pictures take.
PICTURE_SECONDS = 3.0
# Seconds below which transforms of the target are not compared.
LEAST_SECONDS = 1.0


def run_fit(job: FitJob, reporter: Reporter, clock: Clock = time.monotonic) -> Document:
    """Fit, and write everything into the folder; return the results of each step.

    `clock` measures the time limit.

    Raises
    ------
    InputError, UsageError
        Anything wrong with sources or options, a budget too small, or a folder that holds something else.
    MemoryBudgetError
        No way to a model fits.
    InterruptedRunError
        A signal asked for the end; `resume` goes on.
    """
    return _Fit(job, reporter, clock).run()


class _Fit:
    """A fit that runs."""

    steps: Steps
    # Forecast of a fit of the smallest model, and why the limit is too short for another; empty if it is not.
    _least_seconds, _too_short = 0.0, ""

    def __init__(self, job: FitJob, reporter: Reporter, clock: Clock = time.monotonic) -> None:
        self.job, self.reporter, self.budget = job, reporter, Budget(job.seconds, clock, job.memory_bytes)
        self.fallbacks = Fallbacks(self.budget, job.seed, reporter)
        self.record = job.folder / RECORD
        self.memory_bytes = job.memory_bytes or int(psutil.Process().memory_info().rss) + available_bytes()
        self.chooser = Chooser(job, self.budget, reporter, self.memory_bytes)

    @property
    def labelled(self) -> bool:
        """True if labels are predicted."""
        return self.job.ingestion.labels is not None

    def run(self) -> Document:
        """Do every step that is not done."""
        with locked(self.job.out):
            try:
                return self._run()
            except (KeyboardInterrupt, InterruptedRunError) as interrupt:
                if not hasattr(self, "steps"):
                    raise  # nothing is written yet
                checkpoint = getattr(interrupt, "checkpoint", None)
                # Without a checkpoint, the text of a command says that nothing was saved, but the fit keeps its steps.
                lost = isinstance(interrupt, InterruptedRunError) and checkpoint is None
                text = "interrupted" if lost else str(interrupt) or "interrupted"
                raise InterruptedRunError(self._interrupted(text), checkpoint) from interrupt

    def _interrupted(self, text: str) -> str:
        """Return a message with the steps that are kept, and how to continue."""
        kept = [f"step {name}" for name in STEPS if self.steps.is_done(name)]
        if exists(self.job.place(f"{HYPER}.kernels")):
            kept.append("the finished kernels of the comparison")
        words = f"'{self.job.out}' keeps {', '.join(kept)}" if kept else "no step was finished"
        return f"{text}; {words}. To continue, run the same command with `resume`"

    def _run(self) -> Document:
        job = self.job
        job.check()
        self._check_memory()
        earlier = earlier_record("fit", self.record, job.settings(), self.reporter) if job.resume else None
        if earlier is not None and earlier["finished"]:
            self.reporter.note(f"the fit in '{job.out}' is already complete")
            return earlier
        if earlier is None:
            self._claim()
        before = read_object(self.record).decode() if self.record.exists() else None
        self._check_time("ingest")
        # In a hurry, helpers would compile code that the smallest model does not need.
        with PeakMemory() as memory, helped(enabled=not self._too_short):
            self.steps = Steps("fit", self.record, job.settings(), earlier, memory, self.reporter)
            self.budget.resume(sum(self.steps.seconds.values()))
            try:
                ingested = self._step("ingest", self._ingest)
                self._check_kernel(ingested)
            except (InputError, UsageError):
                self._leave_as_it_was(before)
                raise
            if earlier is None:
                self._remove([name for name in STORES if name not in (TRAIN, TEST)])
            compared = self._transform_step(ingested)
            ingested = self._transformed(ingested, compared)
            kernel = self._kernel(ingested["n_train"])
            tuned = None if self.labelled else self._tune(kernel)
            methods = self._step("compare", self._compare_methods) if self.labelled else None
            decision = self._step("choose", lambda: self._choose(methods))
            attempts = self._attempts(kernel, decision, tuned)
            taken = attempts.taken
            trained, predicted, evaluated = (
                taken.trained,
                taken.predicted,
                with_advice_for_fit(self._compared(taken.evaluated)),
            )
            document: Document = {
                "command": "fit",
                "finished": True,
                "out": job.out,
                "settings": job.settings(),
                "converged": trained.get("converged", True),
                "seconds": sum(self.steps.seconds.values()),
                "seconds_by_phase": self.steps.seconds,
                "peak_memory_bytes": self.steps.peak_bytes,
                "commands": command_lines(
                    replace(self._with_transform(compared), kernel=chosen_kernel(kernel, tuned)),
                    from_json(TableOptions, ingested["table"]),
                    ingested["ids"],
                    {
                        **decision,
                        "way": taken.way,
                        "hyper": taken.hyper,
                        "compare": "compare" in evaluated,
                        "has_variance": predicted.get("variance") is not None,
                        "sampled": Path(predicted["dataset"]).name == TEST_SAMPLE,
                    },
                    taken.tuning or candidate_words(tuned, ingested["n_train"], SHARE_OF_ALL_SAMPLES * job.seconds),
                ),
                "ingest": ingested,
                "transform": compared,
                "tune": tuned,
                "classifiers": methods,
                "choice": {**decision, **attempts.choice},
                "attempts": attempts.to_json(),
                "train": trained,
                "predict": predicted,
                "evaluation": evaluated,
                "time_limit_seconds": job.seconds,
                "least_seconds": self._least_seconds,
                "given_up": [
                    *([{"step": "fit", "text": self._too_short}] if self._too_short else []),
                    *given_up(
                        [
                            compared,
                            tuned,
                            smaller_subset(tuned, ingested["n_train"]),
                            methods_given_up(methods),
                            decision,
                            attempts.tried[0].trained,
                            taken.predicted,
                        ]
                    ),
                ],
                "report": job.place(PAGE),
            }
            self._step("report", lambda: self._page(document))
        document["seconds"] = sum(self.steps.seconds.values())
        document["peak_memory_bytes"] = self.steps.peak_bytes
        document["warnings"] = list(self.reporter.warnings)
        return self.steps.finish(document)

    def _page(self, document: Document) -> Document:
        """Write the page; without pictures if they would exceed the time limit."""
        with_pictures = self.budget.for_pictures >= PICTURE_SECONDS * self.budget.slowness()
        if not with_pictures:
            text = "the report has no pictures"
            self.reporter.warn(f"time limit: {text}")
            document["given_up"].append({"step": "report", "text": text})
        return write_page(self.job, document, with_pictures=with_pictures)

    # ------------------------------------------------------------------------------------------------- the steps

    def _ingest(self) -> Document:
        job = self.job.ingest_job()
        survey = None
        try:
            document = run_ingest(job, self.reporter)
        except RefusedColumnsError as error:
            survey = error.survey
            job = self._with_columns(job, error)
            document = run_ingest(job, self.reporter)
        if self.labelled:
            self._check_classes()
        return {
            **document,
            "table": to_json(job.table),
            "columns": [] if survey is None else survey.report(self.job.ingestion.table),
            "ids": list(job.ids),
            "suggested": None if survey is None else shlex.join(column_words(job.table, job.ids)),
        }

    def _check_kernel(self, ingested: Document) -> None:
        """Refuse a wrong kernel before any search."""
        if self.job.kernel == AUTO_KERNEL or self.labelled:
            return
        try:
            parse_kernel(self.job.kernel, ingested["d"], ingested["features"])
        except InputError:
            if not self.steps.goes_on:
                self._remove([TRAIN, TEST])
            raise

    def _check_classes(self) -> None:
        """Refuse a class of one training sample, which cross-validation cannot leave out."""
        labels = labels_of(open_dataset(self.job.place(TRAIN)))
        rare = [name for name, count in zip(labels.classes, labels.counts(), strict=True) if count < 2]
        if rare:
            self._remove([TRAIN, TEST])
            raise InputError(
                f"the class '{rare[0]}' has only one training sample; a fit needs at least 2 of each class. Add rows "
                "of this class, remove its row, or give it the label of another class"
            )

    def _with_columns(self, job: IngestJob, error: RefusedColumnsError) -> IngestJob:
        """The ingestion with the survey's suggestions; raises the error if they are switched off or change nothing."""
        texts = _text_targets(error.survey)
        if texts and not self.labelled:
            raise InputError(
                f"{error}\nThe target '{texts[0]}' contains text. To classify, "
                f"give `labels` {texts[0]} instead of `target`"
            ) from error
        table, ids = error.survey.table(job.table), error.survey.ids(job.table, job.ids)
        if not self.job.auto_columns or error.survey.unclear(job.table) or (table == job.table and ids == job.ids):
            raise error
        for line in error.survey.report(job.table):
            self.reporter.note(line)
        words = error.survey.line(job.table, job.ids)
        beside = " in addition to yours" if job.table or job.ids else ""
        self.reporter.note(f"reading columns with these options{beside}, which you can copy and change: {words}")
        return replace(job, table=table, ids=ids)

    @property
    def _tries_transforms(self) -> bool:
        """True if transforms of the target are compared."""
        return self.job.auto_transform and self.job.ingestion.transform is None and not self.labelled

    def _transform_step(self, ingested: Document) -> Document | None:
        """Compare transforms of the target unless one is named."""
        if not self._tries_transforms:
            return None
        self._check_time("tune")
        seconds = TRANSFORM * self.job.seconds
        return self._step("transform", lambda: self._compare_in_time(ingested, seconds))

    def _compare_in_time(self, ingested: Document, seconds: float) -> Document:
        text = "transforms of the target were not compared"
        if not self._too_short:
            attempt = self.budget.attempt(lambda: self._compare(ingested, seconds), seconds, seconds)
            if attempt.document is not None:
                return attempt.document
            text = f"comparing transforms of the target was stopped after {spoken(attempt.seconds)} without a result"
        self.reporter.warn(f"time limit: {text}")
        lost = [{"step": "transform", "text": text}]
        return {
            "transform": None,
            "reason": "the time limit was too short",
            "findings": [],
            "compared": [],
            "given_up": lost,
        }

    def _compare(self, ingested: Document, seconds: float) -> Document:
        job, kernel = self.job, self.job.kernel
        if seconds < LEAST_SECONDS:
            reason = f"the time for a comparison, {spoken(seconds)}, is too short"
            return {"transform": None, "reason": reason, "findings": [], "compared": []}
        train, test = open_dataset(job.place(TRAIN)), open_dataset(job.place(TEST))
        compared = compare_transforms(
            draw(train, test, job.seed),
            FEW_SAMPLES_KERNEL if kernel == AUTO_KERNEL else kernel,
            tuple(ingested["features"]),
            seconds=seconds,
            seed=job.seed,
            note=self.reporter.note,
        )
        for text in compared["findings"]:
            self.reporter.note(f"on held-out training samples: {text}")
        self.reporter.note(f"transform of the target: {compared['transform'] or 'none'} ({compared['reason']})")
        return compared

    def _with_transform(self, compared: Document | None) -> FitJob:
        """The job with the chosen transform."""
        name = None if compared is None else compared["transform"]
        return self.job if name is None else replace(self.job, ingestion=replace(self.job.ingestion, transform=name))

    def _transformed(self, ingested: Document, compared: Document | None) -> Document:
        """Ingest again with the chosen transform and the same columns."""
        if compared is None or compared["transform"] is None:
            return ingested
        job = self._with_transform(compared).ingest_job()
        job = replace(job, table=from_json(TableOptions, ingested["table"]), ids=tuple(ingested["ids"]))
        # Warnings were shown the first time.
        kept = {name: ingested[name] for name in ("table", "columns", "ids", "suggested")}
        return self.steps.run("ingest again", lambda: {**run_ingest(job, SilentReporter()), **kept})

    def _kernel(self, n: int) -> str:
        """The kernel; the default one if there are too few samples to compare kernels."""
        if self.job.kernel != AUTO_KERNEL or n >= LEAST_SAMPLES or self.labelled:
            return self.job.kernel
        self.reporter.note(f"{n} samples are too few to compare kernels; using the kernel {FEW_SAMPLES_KERNEL}")
        return FEW_SAMPLES_KERNEL

    def _tune(self, kernel: str) -> Document:
        job = self.job
        self._check_time("tune")
        self._say("tune")
        # The evidence of all samples is that of the model with neighbours, whose code has to be compiled first.
        compilation = self.budget.slowness() * compile_seconds(pieces_of_model("vif", LEAST_KERNEL))
        tuning = TuneJob(
            job.place(TRAIN),
            job.place(HYPER),
            kernel=kernel,
            kernel_seconds=max(1e-3, SHARE_OF_KERNELS * job.seconds),
            all_samples_seconds=max(1e-3, SHARE_OF_ALL_SAMPLES * job.seconds - compilation),
            seed=job.seed,
            resume=self.steps.goes_on,
            overwrite=True,
            cluster=job.cluster,
        )
        tuned = self.steps.run("tune", lambda: self.fallbacks.tune(tuning))
        remove_object(tuning.comparison_url)
        return tuned

    def _compare_methods(self) -> Document:
        """Compare the methods of classifiers on training samples."""
        job = self.job
        limit = SHARE_OF_METHODS * job.seconds

        def work() -> Document:
            train = open_dataset(job.place(TRAIN))
            return dict(to_json(compare_methods(train, seconds=limit, seed=job.seed, note=self.reporter.note)))

        if self._too_short:
            return dict(to_json(Comparison()))
        attempt = self.budget.attempt(work, limit, limit)
        if attempt.document is not None:
            return attempt.document
        reason = f"{STOPPED} {spoken(attempt.seconds)}"
        self.reporter.warn(f"{attempt.lack}: the methods were not compared, because {reason}")
        return dict(to_json(Comparison(left_out=dict.fromkeys(("logistic", "gp"), reason))))

    def _choose(self, methods: Document | None) -> Document:
        self.chooser.methods = None if methods is None else from_json(Comparison, methods)
        self._check_time("choose")
        return self.chooser.choose(hurried=bool(self._too_short))

    def _attempts(self, kernel: str, decision: Document, tuned: Document | None) -> Attempts:
        """Train, predict and evaluate; while the verdict calls for it and time allows, go on with another model."""
        first = self._attempt(0, decision["way"], HYPER, ())
        attempts = Attempts([first], [])
        if self.labelled or tuned is None:
            return attempts
        compared = tuned.get("comparison")
        name = kernel if compared is None else compared["kernel"]
        record = tuned.get("candidates")
        judged = not tuned.get("given_up") if record is None else bool(record["candidates"])
        for number, remedy in enumerate(remedies(first.kinds, first.way["name"], name, judged=judged), 1):
            if not attempts.taken.kinds:
                break
            choice = self.steps.run(f"remedy {number}", partial(self._remedy, remedy, first))
            if choice["way"] is None:
                attempts.not_tried.append({"model": remedy.words, "reason": choice["reason"]})
                self.reporter.note(f"not tried: {remedy.words} ({choice['reason']})")
                continue
            self.reporter.note(f"the evaluation found a problem; trying another model: {remedy.words}")
            self._another_in_time(number, remedy, choice["way"], attempts)
        return attempts

    def _another_in_time(self, number: int, remedy: Remedy, way: Document, attempts: Attempts) -> None:
        """Add another model to the attempts, or the reason why there was no time or memory for it."""
        tried: list[Attempt] = []

        def work() -> Document:
            tried.append(self._another(number, remedy, way, attempts))
            return {}

        limit = max(self.budget.for_predictions, LEAST_ATTEMPT)
        attempt = self.budget.attempt(work, limit, limit)
        if attempt.document is not None:
            attempts.tried.extend(tried)
            return
        aside = self._aside(number)
        if aside.exists():
            self._move(aside, self.job.folder)
            remove_tree(aside)
        reason = f"ended after {spoken(attempt.seconds)} ({attempt.lack})"
        attempts.not_tried.append({"model": remedy.words, "reason": reason})
        self.reporter.note(f"not tried: {remedy.words} ({reason})")

    def _aside(self, number: int) -> Path:
        """The folder of the best model while another is tried."""
        return self.job.folder / f"before-{number}"

    @staticmethod
    def _move(source: Path, target: Path, names: Sequence[str] = (MODEL, PREDICTIONS)) -> Document:
        target.mkdir(exist_ok=True)
        for name in names:
            if (source / name).exists():
                remove_tree(target / name)
                (source / name).rename(target / name)
        return {}

    def _attempt(
        self, number: int, way: Document, hyper: str, tuning: Sequence[str], trained: Document | None = None
    ) -> Attempt:
        """Train, predict and evaluate by a way; `number` 0 is the first. Without training if there is a model."""
        job, more = self.job, f" {number}" if number else ""
        names = [f"{name}{more}" for name in ("train", "predict", "evaluate")]
        if trained is None:
            trained = self._train(way, names[0], hyper)
            way = trained.get("way", way)
        predicted = self._predict(way, names[1])
        way = predicted.get("way", way)
        self._say("evaluate", names[2])
        evaluated = self.steps.command(names[2], EvaluateJob(job.place(PREDICTIONS), predicted["dataset"]))
        seconds = sum(self.steps.seconds.get(name, 0.0) for name in names)
        return Attempt(way, trained, predicted, evaluated, seconds, tuple(tuning), hyper)

    def _remedy(self, remedy: Remedy, first: Attempt) -> Document:
        """Return the way of a remedy, or None and the reason if its forecast exceeds the time that is left."""
        remaining = self.budget.for_predictions
        way = Way.from_document(first.way) if remedy.way == "same" else self.chooser.forecasts().near()
        forecast = 0.0 if way is None else way.seconds
        if way is not None and remedy.way == "approximate":
            way = Way.from_document(first.way).approximated(way)
        if way is None:
            return {"way": None, "reason": "too few samples, or noise that is known by sample"}
        if way.memory_bytes > self.memory_bytes:
            return {"way": None, "reason": f"its forecast of {byte_text(way.memory_bytes)} exceeds the memory"}
        # By the speed that was measured: the first model's time over its forecast.
        slowness = max(1.0, first.seconds / max(1e-9, first.way["seconds"]))
        seconds = slowness * forecast + remedy.price(self.steps.seconds.get("tune", 0.0))
        if seconds > remaining:
            left = spoken(max(0.0, remaining))
            return {"way": None, "reason": f"its forecast is {spoken(seconds)}, and {left} remain"}
        return {"way": to_json(way), "reason": ""}

    def _another(self, number: int, remedy: Remedy, way: Document, attempts: Attempts) -> Attempt:
        """Try another model in the place of the best one, which comes back if the other does not beat it."""
        job, best = self.job, attempts.taken
        aside = self._aside(number)
        hyper = HYPER
        words = remedy.tuning
        if remedy.tuning or remedy.continues:
            hyper = f"hyper-{number}.json"
            # The other half is for the model.
            seconds = 0.5 * self.budget.for_predictions
            options = remedy.options(job.place(HYPER), seconds)
            tuning = TuneJob(
                job.place(TRAIN), job.place(hyper), **options, seed=job.seed, overwrite=True, cluster=job.cluster
            )
            if remedy.continues:
                words = "--all-samples-seconds", f"{seconds:.3g}"
            with finishing_within(seconds) if remedy.continues else nullcontext():
                self.steps.command(f"tune {number}", tuning)
        model = best.trained if remedy.way == "approximate" else None
        names = (PREDICTIONS,) if model is not None else (MODEL, PREDICTIONS)
        self.steps.run(f"set aside {number}", lambda: self._move(job.folder, aside, names))
        attempt = self._attempt(number, way, hyper, words, model)
        better = attempt.beats(best)
        outcome = "chosen" if better else "the earlier model is kept"
        if attempt.gains_over(best) and not better:
            outcome += ", because it has the smaller error or the better coverage"
        self.reporter.note(
            f"{remedy.words}: NLPD {attempt.nlpd:.4g} nats per sample, before {best.nlpd:.4g}; {outcome}"
        )
        if not better:
            self.steps.run(f"restore {number}", lambda: self._move(aside, job.folder))
        remove_tree(aside)
        return attempt

    def _train(self, way: Mapping[str, Any], step: str = "train", hyper: str = HYPER) -> Document:
        self._say("train", step)
        taken = Way.from_document(way)
        if step != "train":
            return self.steps.train(self._training(taken, True, hyper), step)
        return self.steps.run(step, lambda: to_json(self.fallbacks.train(taken, self._training, self.chooser.smaller)))

    def _training(self, way: Way, first: bool, hyper: str = HYPER) -> TrainingJob:
        """Return the job of a way; only the first attempt continues an earlier run."""
        training = way.training(self.job, hyper)
        if not first:
            self._remove([MODEL])
        return replace(training, resume=first and self.steps.goes_on and training.begun)

    def _predict(self, way: Mapping[str, Any], step: str = "predict") -> Document:
        job, taken, out = self.job, Way.from_document(way), self.job.place(PREDICTIONS)
        self._say("predict", step)
        variance = None if self.labelled else taken.variance(job.seed)
        predicting = PredictJob(job.place(MODEL), job.place(TEST), out, variance, overwrite=True, cluster=job.cluster)
        if step != "predict":
            return self.steps.predict(predicting, step)
        predicting = replace(predicting, resume=self.steps.goes_on and exists(out))
        sample = job.place(TEST_SAMPLE)
        return self.steps.run(step, lambda: to_json(self.fallbacks.predict(predicting, taken, sample)))

    def _compared(self, evaluated: Document) -> Document:
        """Evaluate again beside simpler models, boosting on all training rows included, if there is time for it."""
        job, budget = self.job, self.budget
        if self.labelled:
            return evaluated
        limit = min(SHARE_OF_RIVALS * job.seconds, budget.for_predictions)
        if (rival_seconds(open_dataset(job.place(TRAIN))) + LEAST_RIVALS) * budget.slowness() > limit:
            return evaluated
        comparison = EvaluateJob(job.place(PREDICTIONS), evaluated["dataset"], compare=True)

        def work() -> Document:
            return budget.attempt(lambda: run_evaluate(comparison, self.reporter), limit, limit).document or evaluated

        return self.steps.run("compare", work)

    # ------------------------------------------------------------------------------------------------ the folder

    def _check_time(self, step: str) -> None:
        """Say if no time is left for more than the fixed costs of the steps from this one on.

        The fit then makes the smallest model as soon as possible.
        """
        if self._too_short:
            return
        name = "fixed-size" if self.labelled else "sparse"
        code = compile_seconds(pieces_of_model(name, LEAST_KERNEL))
        elapsed, more = self.budget.elapsed, self.budget.least(step, code)
        self._least_seconds = elapsed + more
        if more <= max(self.job.seconds - elapsed, MODEL_SHARE * self.job.seconds):
            return
        self._too_short = (
            f"the limit of {spoken(self.job.seconds)} is too short: {spoken(elapsed)} have passed, and loading "
            f"{'and compiling ' if code else ''}the code of dkgp takes about {spoken(more)} more on this machine at "
            "present. The fit makes a model that takes little time"
        )
        self.reporter.warn(self._too_short)

    def _check_memory(self) -> None:
        """Refuse a limit below the memory that dkgp itself needs; `MemoryBudgetError`."""
        least = int(psutil.Process().memory_info().rss) + RUNTIME_BYTES
        if self.memory_bytes < least:
            raise MemoryBudgetError(
                f"`memory_bytes` is {byte_text(self.memory_bytes)}; the libraries and compiled code of dkgp alone need "
                f"{byte_text(least)}. Raise `memory_bytes`"
            )

    def _claim(self) -> None:
        """Refuse a folder that holds other files; `overwrite` replaces an earlier fit."""
        folder, replaced = self.job.folder, self.job.overwrite and is_document(self.record, "fit")
        taken = [name for name in (*STORES, RECORD) if (folder / name).exists()]
        if taken and not replaced:
            advice = (
                "Continue it with `resume`, replace it with `overwrite`, or choose another `out`"
                if is_document(self.record, "fit")
                else "It does not belong to a fit; choose another `out`"
            )
            raise OutputExistsError(f"'{folder / taken[0]}' already exists. {advice}")
        check_output_file(self.record, replace=True, option="`out`")

    def _leave_as_it_was(self, before: str | None) -> None:
        """Remove all traces of a fit that was refused."""
        if self.steps.goes_on:
            return
        if before is not None:
            write_text(self.record, before)
            return
        remove_object(self.record)
        if not any(self.job.folder.iterdir()):
            self.job.folder.rmdir()

    def _remove(self, names: list[str]) -> None:
        """Remove outputs of an earlier fit, which this one replaces."""
        for name in (*names, f"{MODEL}.checkpoint", f"{HYPER}.kernels"):
            remove_tree(self.job.folder / name)

    def _step(self, name: str, work: Any) -> Document:
        self._say(name)
        return self.steps.run(name, work)

    def _say(self, name: str, step: str | None = None) -> None:
        skipped = OF_NUMBERS if self.labelled else OF_LABELS if self._tries_transforms else ("transform", *OF_LABELS)
        names = [step for step in STEPS if step not in skipped]
        done = ", already done" if self.steps.is_done(step or name) else ""
        self.reporter.note(f"step {names.index(name) + 1} of {len(names)}: {name}{done}")


def _text_targets(survey: Survey) -> list[str]:
    """Targets that hold text other than marks of missing values."""
    return [
        column.name
        for column in survey.columns
        if column.name in survey.targets and column.texts and not column.kind
        if not (column.gap_texts or column.reads_like_numbers)
    ]
