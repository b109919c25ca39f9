"""The methods of `dkgp classify`: one line each, which of them an option belongs to, and a job checked by its own."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from dkgp.commands.classify.exact import Exact
from dkgp.commands.classify.fixed_size import FixedSize
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.method import ClassifyMethod
from dkgp.errors import InputError, UsageError
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.prototypes import PROTOTYPES

__all__ = ["METHODS", "check_job", "method_of"]

METHODS: dict[str, ClassifyMethod] = {"fixed-size": FixedSize(), "exact": Exact()}
# A setting that people know by another name, since it is on unless they say so.
SAID = {"probability": "no_probability"}
_DEFAULTS = {each.name: each.default for each in fields(ClassifyJob) if each.name != "settings"}
_SETTINGS = {each.name: each.default for each in fields(FixedSizeSettings)}


def method_of(job: ClassifyJob) -> ClassifyMethod:
    """Return what trains a job's model: a line of the table."""
    return METHODS[job.method]


def check_job(job: ClassifyJob) -> None:
    """Refuse what can be seen to be wrong without the data.

    Raises
    ------
    UsageError
        Options that do not go together.
    InputError
        A value out of range.
    """
    if job.method not in METHODS:
        raise InputError(f"`method` must be one of {', '.join(METHODS)}; got '{job.method}'")
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
            owners = _owners_said(name)
            raise UsageError(f"`{SAID.get(name, name)}` belongs to `method` {owners}; choose that, or leave it out")


def _owners_said(option: str) -> str:
    """Say which methods an option belongs to: "exact or logistic"."""
    names = list(dict.fromkeys(each.said for each in METHODS.values() if option in each.own))
    return " or ".join(", ".join(part) for part in (names[:-1], names[-1:]) if part)
