"""The methods of `dkgp classify`: one line each, and a job checked by its own."""

from __future__ import annotations

from dkgp.commands.classify.exact import Exact
from dkgp.commands.classify.fixed_size import FixedSize
from dkgp.commands.classify.job import ON_BASIS, ClassifyJob
from dkgp.commands.classify.method import ClassifyMethod
from dkgp.commands.classify.of_samples import OfSamples
from dkgp.commands.classify.on_basis import OnBasis
from dkgp.errors import UsageError
from dkgp.options import Declared, foreign_options

__all__ = ["METHODS", "check_job", "method_of"]

METHODS: dict[str, ClassifyMethod] = {
    "fixed-size": FixedSize(),
    "exact": Exact(),
    "logistic": OfSamples("logistic"),
    "logistic on a basis": OnBasis("logistic"),
    "gp": OfSamples("gp"),
    "gp on a basis": OnBasis("gp"),
}


def _name_of(job: ClassifyJob) -> str:
    """The job's line of the table; without a basis where there is no such method on one, whose options are refused."""
    on_basis = f"{job.method} on a basis"
    return on_basis if job.basis_size is not None and on_basis in METHODS else job.method


def method_of(job: ClassifyJob) -> ClassifyMethod:
    """Return what trains a job's model."""
    return METHODS[_name_of(job)]


def check_job(job: ClassifyJob) -> None:
    """Refuse what can be seen to be wrong without the data, beside values out of range.

    Raises
    ------
    UsageError
        Options that do not go together.
    InputError
        A value that makes no sense with others.
    """
    for each in foreign_options(job, _name_of(job)):
        raise UsageError(_refusal(job, each))
    method_of(job).check(job)
    _ = job.weights_by_class


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
