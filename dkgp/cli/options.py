"""Options that commands without a declared job share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import declared_options, job_parameter
from dkgp.cli.flags import in_flags
from dkgp.options import Declared, options_of, read_options

if TYPE_CHECKING:
    from dkgp.cluster import ClusterOptions

F = TypeVar("F", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """Return an epilog that shows commands as they are typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def cluster_options(function: F) -> F:
    """Add the options that say where the work runs; `cluster_from` takes the values."""

    def parameters() -> list[click.Parameter]:
        from dkgp.cluster import ClusterOptions

        parameters = [
            job_parameter(Declared(option, ((name,),))) for name, option in options_of(ClusterOptions).items()
        ]
        for parameter in parameters:
            if isinstance(parameter, click.Option):
                parameter.help = in_flags(parameter.help or "", parameters)
        return parameters

    return declared_options(parameters)(function)


def cluster_from(options: dict[str, Any]) -> ClusterOptions:
    """Take the cluster options out of a command's options; what was not given may be configured."""
    from dkgp.cluster import ClusterOptions, configured_options

    fields = options_of(ClusterOptions)
    values = read_options(fields, {name: options.pop(option.name) for name, option in fields.items()})
    return configured_options({**values, **{name: dict(values.get(name, ())) for name in ("settings", "resources")}})
