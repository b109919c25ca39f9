"""Several commands one after another in one folder, as `dkgp demo` and `dkgp fit` run them.

What came of a step is on record as soon as it is done, so that a run that was stopped or killed goes on with the step
that it was in, and in it from the checkpoint that its command has left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dkgp.codec import difference
from dkgp.commands.classify import ClassifyJob, run_classify
from dkgp.commands.evaluate import EvaluateJob, run_evaluate
from dkgp.commands.predict import PredictJob, run_predict
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import Document, dump, is_document, write_text
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.sparse import SparseJob, run_sparse
from dkgp.commands.train import TrainJob, run_train
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.data.remote.storage import exists, read_object
from dkgp.errors import InputError


def earlier_record(command: str, file: Path, settings: Document, reporter: Reporter) -> Document | None:
    """Return the record of the run to go on with; None, and a warning, where there is none.

    Raises `InputError` where it is of other settings.
    """
    if not is_document(file, command):
        reporter.warn(f"there is no {command} in '{file.parent}' to resume; it starts from the beginning")
        return None
    earlier: Document = json.loads(read_object(file))
    other = difference(earlier.get("settings", {}), settings)
    if other is not None:
        raise InputError(
            f"the {command} in '{file.parent}' has another {other}; repeat its options, or start without `resume`"
        )
    return earlier


class Steps:
    """The steps of a run, each with its seconds and what came of it; the peak of memory over all of them.

    Parameters
    ----------
    command : str
        Whose run it is.
    file : Path
        Where the record is kept.
    settings : Document
        What a run that goes on must share.
    earlier : Document, optional
        The record of the run that this one goes on with.
    """

    def __init__(
        self,
        command: str,
        file: Path,
        settings: Document,
        earlier: Document | None,
        memory: PeakMemory,
        reporter: Reporter,
    ) -> None:
        self._command, self._file, self._settings = command, file, settings
        self._memory, self._reporter = memory, reporter
        self.goes_on = earlier is not None
        self._earlier_peak = 0 if earlier is None else int(earlier["peak_memory_bytes"])
        self._done: dict[str, Document] = {} if earlier is None else earlier["phases"]
        self.seconds: dict[str, float] = {} if earlier is None else earlier["seconds_by_phase"]
        self._save()

    @property
    def peak_bytes(self) -> int:
        """The largest peak of all the runs that it took."""
        return max(self._earlier_peak, self._memory.bytes)

    def is_done(self, name: str) -> bool:
        """True of a step that is on record."""
        return name in self._done

    def run(self, name: str, work: Callable[[], Document]) -> Document:
        """Return what comes of a step, from the record where it is done."""
        if name not in self._done:
            began, before = time.perf_counter(), self.seconds.get(name, 0.0)
            try:
                document = work()
            finally:
                self.seconds[name] = before + time.perf_counter() - began
                self._save()
            self._done[name] = document
            self._save()
        return self._done[name]

    def tune(self, job: TuneJob) -> Document:
        """Tune."""
        return self.run("tune", lambda: run_tune(job, self._reporter))

    def train(self, job: TrainJob | SparseJob | ClassifyJob) -> Document:
        """Train a model, from what an earlier run has left of it."""
        job = replace(job, resume=self.goes_on and job.begun)
        if isinstance(job, TrainJob):
            return self.run("train", lambda: run_train(job, self._reporter))
        if isinstance(job, SparseJob):
            return self.run("train", lambda: run_sparse(job, self._reporter))
        return self.run("train", lambda: run_classify(job, self._reporter))

    def predict(self, job: PredictJob) -> Document:
        """Predict, from what an earlier run has left of it."""
        resume = self.goes_on and exists(job.out)
        return self.run("predict", lambda: run_predict(replace(job, resume=resume), self._reporter))

    def evaluate(self, job: EvaluateJob) -> Document:
        """Evaluate."""
        return self.run("evaluate", lambda: run_evaluate(job, self._reporter))

    def finish(self, document: Document) -> Document:
        """Put the document of the whole run on record; return it."""
        write_text(self._file, dump(document) + "\n")
        return document

    def _save(self) -> None:
        record = {
            "command": self._command,
            "finished": False,
            "settings": self._settings,
            "phases": self._done,
            "seconds_by_phase": self.seconds,
            "peak_memory_bytes": self.peak_bytes,
        }
        write_text(self._file, dump(record) + "\n")
