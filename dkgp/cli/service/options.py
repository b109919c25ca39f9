"""Options of the commands that talk to a jobs service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.service.client import ServiceClient

F = TypeVar("F", bound=Callable[..., Any])

SERVICE_NAMES = ("service", "token_file", "retry")
DEFAULT_URL = "http://127.0.0.1:8780"

CALL_RETRY_SECONDS = 15.0
# A service may be down for minutes, for an update of its machine, while somebody waits for a long job.
FOLLOW_RETRY_SECONDS = 600.0


def service_options(function: F) -> F:
    """Add the options that say where the service is and how to be let in; `client_from` takes the values."""
    options = (
        click.option(
            "--service",
            metavar="URL",
            envvar="DKGP_SERVICE_URL",
            show_envvar=True,
            help=f"The jobs service.  [default: the one that you run on this machine, else {DEFAULT_URL}]",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            help="File that holds the service's token.  [default: $DKGP_SERVICE_TOKEN, else that of your own service]",
        ),
        click.option(
            "--retry",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="How long to try while the service does not answer.  [default: 15; 600 where a job is waited for]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def client_from(options: dict[str, Any], reporter: Reporter, *, patient: bool = False) -> ServiceClient:
    """Take the service's options out of a command's options; return a client.

    One that is `patient`, since its command waits for a job, tries longer while the service does not answer.
    """
    from dkgp.service.announcements import find_service
    from dkgp.service.client import ServiceClient
    from dkgp.service.settings import read_token

    values = {name: options.pop(name) for name in SERVICE_NAMES}
    retry = values["retry"]
    if retry is None:
        retry = FOLLOW_RETRY_SECONDS if patient else CALL_RETRY_SECONDS
    url, token = values["service"], read_token(values["token_file"])
    announced = None
    if token is None:
        announced = find_service(url or DEFAULT_URL) or (find_service(None) if url is None else None)
    return ServiceClient(
        url or DEFAULT_URL if announced is None else announced.url,
        token=token if announced is None else announced.token(),
        retry_seconds=retry,
        tell=reporter.warn,
        is_there=None if announced is None else announced.is_there,
        authority=None if announced is None else announced.authority,
    )
