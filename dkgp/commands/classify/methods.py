"""The methods of `dkgp classify`: one line each, which of them an option belongs to, and a job checked by its own."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from dkgp.commands.classify.exact import Exact
from dkgp.commands.classify.fixed_size import FixedSize
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.method import ClassifyMethod
from dkgp.commands.classify.of_samples import OfSamples
from dkgp.commands.classify.on_basis import OnBasis
from dkgp.errors import InputError, UsageError
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.prototypes import PROTOTYPES

__all__ = ["METHODS", "check_job", "method_of"]

# By name, and whether the model is of a basis.
METHODS: dict[tuple[str, bool], ClassifyMethod] = {
    ("fixed-size", False): FixedSize(),
    ("exact", False): Exact(),
    ("logistic", False): OfSamples("logistic"),
    ("logistic", True): OnBasis("logistic"),
    ("gp", False): OfSamples("gp"),
    ("gp", True): OnBasis("gp"),
}
NAMES = tuple(dict.fromkeys(name for name, _ in METHODS))
# A setting that people know by another name, since it is on unless they say so.
SAID = {"probability": "no_probability"}
_DEFAULTS = {each.name: each.default for each in fields(ClassifyJob) if each.name != "settings"}
_SETTINGS = {each.name: each.default for each in fields(FixedSizeSettings)}


def method_of(job: ClassifyJob) -> ClassifyMethod:
    """Return what trains a job's model: a line of the table."""
    asked = (job.method, job.basis_size is not None)
    # Without a basis where there is no such method on one: its options are refused in words.
    return METHODS[asked if asked in METHODS else (job.method, not asked[1])]


def check_job(job: ClassifyJob) -> None:
    """Refuse what can be seen to be wrong without the data.

    Raises
    ------
    UsageError
        Options that do not go together.
    InputError
        A value out of range.
    """
    if job.method not in NAMES:
        raise InputError(f"`method` must be one of {', '.join(NAMES)}; got '{job.method}'")
    if job.settings.prototypes not in PROTOTYPES:
        raise InputError(f"`prototypes` must be one of {', '.join(PROTOTYPES)}; got '{job.settings.prototypes}'")
    if job.settings.seed < 0:
        raise InputError(f"`seed` must not be negative; got {job.settings.seed}")
    if not (math.isfinite(job.tolerance) and job.tolerance > 0.0):
        raise InputError(f"`tolerance` must be positive and finite; got {job.tolerance}")
    for name in ("max_passes", "max_seconds"):
        limit = getattr(job, name)
        if limit is not None and not limit > 0.0:
            raise InputError(f"`{name}` must be positive; got {limit}")
    _check_owned(job)
    method_of(job).check(job)
    _ = job.weights_by_class


def _check_owned(job: ClassifyJob) -> None:
    """Refuse options of other methods that are not at their defaults; `UsageError`."""
    for name in sorted(set().union(*(each.own for each in METHODS.values())) - method_of(job).own):
        holder: Any = job if name in _DEFAULTS else job.settings
        default = _DEFAULTS[name] if name in _DEFAULTS else _SETTINGS[name]
        if getattr(holder, name) != default:
            raise UsageError(_refusal(job, name))


def _refusal(job: ClassifyJob, option: str) -> str:
    """Say of an option that a job's method has no use for where it belongs."""
    told, on_basis = SAID.get(option, option), job.basis_size is not None
    other = METHODS.get((job.method, not on_basis))
    if other is not None and option in other.own:
        if on_basis:
            return f"`{told}` is of a model of all samples, `basis_size` of one on a basis; leave one of them out"
        return f"`{told}` is of a model on a basis; say how many samples that has with `basis_size`, or leave it out"
    names = list(dict.fromkeys(each.said for each in METHODS.values() if option in each.own))
    owners = " or ".join(", ".join(part) for part in (names[:-1], names[-1:]) if part)
    return f"`{told}` belongs to `method` {owners}; choose that, or leave it out"
