"""Keywords of a test's own training run, sorted into its context and the rest."""

from __future__ import annotations

from typing import Any

from dkgp.models import RunContext
from dkgp.operators.product_error import ProductError

CONTEXT = ("callback", "within", "checkpointing", "interrupted", "coordinator_input_bytes", "product_error", "note")


def in_context(executor: Any, options: dict[str, Any]) -> RunContext:
    """The context of a training run; its keywords are taken out of `options`."""
    settings = {name: options.pop(name) for name in CONTEXT if name in options}
    if "product_error" in settings:
        settings["product_error"] = ProductError.of(settings["product_error"])
    return RunContext(executor, **settings)
