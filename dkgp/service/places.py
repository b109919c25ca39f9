"""Every place that a job would touch, held against the service's roots: those its options name, and those these name.

The service does this when it takes a job, so that what is wrong is said at once; the job's own process does it again
when it runs, since other files may have come to lie where the job's paths lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dkgp.data.remote.limits import limited_to
from dkgp.data.stores.models.references import limited_references, named_training_set, require_reference
from dkgp.service.roots import Roots
from dkgp.service.specification import job_paths

# Options that name a model, which may name its training set.
_MODELS = ("model", "warm_start")


def check_places(roots: Roots, command: str, options: Mapping[str, Any]) -> None:
    """Refuse a job that would touch what it may not.

    `OutsideRootsError` for a place outside the roots or of ambiguous text, `StoreError` for a model whose training
    set is no place; errors of `job_from_options` where the options describe no job.
    """
    folders: dict[str, str] = {}
    for path in job_paths(command, options):
        roots.require(path.url, path.field, path.access, folders)
        # The text as it was given too: where it goes through symbolic links and back, programs read it differently.
        if isinstance(text := options.get(path.field), str):
            roots.require(text, path.field, path.access, folders)
    for field in _MODELS:
        # A model that is not there yet may be the output of a job that waits.
        if (model := options.get(field)) is not None and (named := named_training_set(model)) is not None:
            with _limited(roots, f"{field}: its training set"):
                require_reference(named, model)


@contextmanager
def kept_within(roots: Roots, command: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Check a job's places, and everything that stores name while it runs; errors as of `check_places`."""
    check_places(roots, command, options)
    with limited_to(roots.limits), _limited(roots, "a model's training set"):
        yield


@contextmanager
def _limited(roots: Roots, field: str) -> Iterator[None]:
    with limited_references(lambda place: roots.require(place, field)):
        yield
