"""Settings for the classes that start clusters, checked against these classes' own signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dkgp.cluster.options import nearest
from dkgp.errors import UsageError

# Module that a worker loads before it registers, so that no round waits for its imports.
PRELOAD = "dkgp.operators.preload"
# What dkgp sets by itself, and the option that says it.
_OPTIONS = {
    "n_workers": "`workers`",
    "threads_per_worker": "`threads_per_worker`",
    "memory_limit": "`worker_memory_bytes`",
    "security": "`tls_ca`, `tls_cert` and `tls_key`, or `plain_text`",
}
# What a job that waits for its results has no use for.
_REFUSED = {"self", "asynchronous", "loop", "start", "ip"}


def parameters(*functions: Callable[..., Any]) -> set[str]:
    """Return the names that can be given to these functions."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in kinds
    } - _REFUSED


def check_settings(kind: str, settings: Mapping[str, Any], known: set[str]) -> None:
    """Refuse settings that the cluster's class does not have, or that an option of dkgp's own says.

    `UsageError` names the setting, never its value, which may be a secret.
    """
    for name in settings:
        if name in _OPTIONS:
            raise UsageError(f"the setting {name!r} is said by {_OPTIONS[name]}; give that instead")
        if name not in known:
            available = ", ".join(sorted(known - set(_OPTIONS)))
            raise UsageError(f"`cluster` {kind} has no setting {name!r}{nearest(name, known)}. Known: {available}")


def refuse_both(settings: Mapping[str, Any], name: str, option: str) -> None:
    """Refuse a setting that says the same as an option that was given."""
    if name in settings:
        raise UsageError(f"got both {option} and the setting {name!r}, which say the same; give one of them")
