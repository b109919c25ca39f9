"""The methods of `dkgp classify`: one line each, and a job checked and run by its own."""

from __future__ import annotations

from dkgp.commands.classify.exact import ExactRun
from dkgp.commands.classify.fixed_size import FixedSizeRun
from dkgp.commands.classify.job import ON_BASIS, ClassifyJob
from dkgp.commands.classify.of_samples import GPRun, LogisticRun
from dkgp.commands.classify.on_basis import GPOnBasisRun, LogisticOnBasisRun
from dkgp.commands.classify.run import ClassifyRun
from dkgp.commands.presets import settled
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.training import finished_run
from dkgp.errors import InputError, UsageError
from dkgp.options import Declared, foreign_options

METHODS: dict[str, type[ClassifyRun]] = {
    each.method: each for each in (FixedSizeRun, ExactRun, LogisticRun, LogisticOnBasisRun, GPRun, GPOnBasisRun)
}


def run_classify(job: ClassifyJob, reporter: Reporter) -> Document:
    """Train and save; see `Run.run`."""
    job = settled("classify", job)
    check_classify(job)
    return METHODS[_method(job)](job, reporter).run()


def finished_classify(job: ClassifyJob, reporter: Reporter) -> Document | None:
    """Return the record of the model at `job.out` where it is what the job would make; see `TrainingRun.done`."""
    try:
        return finished_run(METHODS[_method(settled("classify", job))], job, reporter)
    except InputError:
        return None


def check_classify(job: ClassifyJob) -> None:
    """Refuse what can be seen to be wrong without the data, beside values out of range.

    Raises
    ------
    UsageError
        Options that do not go together.
    InputError
        A value that makes no sense with others.
    """
    for option in foreign_options(job, _method(job)):
        raise UsageError(_refusal(job, option))
    METHODS[_method(job)].check_options(job)
    _ = job.weights_by_class


def _method(job: ClassifyJob) -> str:
    """The job's line of the table; without a basis where there is no such method on one, whose options are refused."""
    on_basis = f"{job.method} on a basis"
    return on_basis if job.basis_size is not None and on_basis in METHODS else job.method


def _refusal(job: ClassifyJob, declared: Declared) -> str:
    """Say of an option that a job's method has no use for where it belongs."""
    option, on_basis = declared.option, job.basis_size is not None
    methods = () if option.group is None else option.group.methods
    if (job.method if on_basis else f"{job.method} on a basis") in methods:
        if on_basis:
            return f"`{option.name}` is of a model of all samples, `basis_size` of one on a basis; leave one out"
        size = "say how many samples that has with `basis_size`"
        return f"`{option.name}` is of a model on a basis; {size}, or leave it out"
    names = [name for name in METHODS if name in methods and name not in ON_BASIS]
    names = names or [name.removesuffix(" on a basis") for name in methods]
    owners = " or ".join(", ".join(part) for part in (names[:-1], names[-1:]) if part)
    return f"`{option.name}` belongs to `method` {owners}; choose that, or leave it out"
