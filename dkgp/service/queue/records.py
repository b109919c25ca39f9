"""Records of jobs, the states they can be in, and the errors of the queue."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from dkgp.errors import DkgpError, InputError

State = Literal["queued", "running", "done", "not_converged", "failed", "cancelled"]

STATES: tuple[State, ...] = ("queued", "running", "done", "not_converged", "failed", "cancelled")
TERMINAL: tuple[State, ...] = ("done", "not_converged", "failed", "cancelled")
RESUMABLE: tuple[State, ...] = ("not_converged", "failed", "cancelled")

# Of a job's name, in characters.
LONGEST_NAME = 200
# Fields that a list of jobs leaves out: it may hold thousands of jobs.
LONG_FIELDS = ("options", "document")


class QueueFullError(DkgpError):
    """As many jobs wait as the queue takes; try again later."""


class JobStateError(DkgpError):
    """The job's state, or that of another job, does not allow the request."""


class UnknownJobError(InputError):
    """There is no job with this id."""


class ForbiddenError(InputError):
    """The token's scope does not allow the request."""


def unknown_job(job_id: str) -> UnknownJobError:
    """Return the error of a job that is not there, and of one that is somebody else's: nobody can tell them apart."""
    return UnknownJobError(
        f"there is no job {job_id!r}; check the id. The service may also have removed the record of an old job"
    )


@dataclass(frozen=True)
class JobRecord:
    """One job as the queue holds it; JSON types only.

    Attributes
    ----------
    id : str
        12 hexadecimal digits.
    command : str
        One of `dkgp.service.specification.COMMANDS`, such as "train" or "krige fit".
    options : dict
        As `dkgp.service.specification` reads them; defaults left out.
    state : str
        One of `STATES`.
    attempt : int
        How often it was started; 0 before the first time.
    resume : bool
        Whether its next attempt resumes an earlier one.
    created, started, finished : str
        ISO 8601, UTC; `started` is of the last attempt.
    queued : str, optional
        When it last went into the queue, ISO 8601, UTC.
    waited_seconds, ran_seconds : float
        Time in the queue and in attempts that are over, since it was submitted or last resumed. A wait or an attempt
        under way is not in it: it has lasted since `queued` or `started`.
    name, owner : str, optional
        As the user called it, and the name of the token that submitted it; None before there were owners.
    exit_code : int, optional
        The exit code of the command line.
    error : dict, optional
        "type", "message", "exit_code", and "checkpoint" where there is one to go on from.
    document : dict, optional
        The document that the command prints with `--json`.
    cancel_requested : bool
        Whether a running job is to end.
    deadline_seconds : float, optional
        How long it may run, attempts together.
    memory_bytes : int, optional
        Memory limit of all its processes on the service's machine.
    progress : dict, optional
        The latest progress event.
    dashboard_link : str, optional
        Of the cluster it runs on.
    """

    id: str
    command: str
    options: dict[str, Any]
    state: State
    attempt: int
    resume: bool
    created: str
    name: str | None = None
    owner: str | None = None
    started: str | None = None
    finished: str | None = None
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    document: dict[str, Any] | None = None
    cancel_requested: bool = False
    deadline_seconds: float | None = None
    memory_bytes: int | None = None
    progress: dict[str, Any] | None = None
    dashboard_link: str | None = None
    queued: str | None = None
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0

    @property
    def is_terminal(self) -> bool:
        """True if it has ended."""
        return self.state in TERMINAL

    def to_json(self) -> dict[str, Any]:
        """Return the record in plain JSON types."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """Return the record without its long fields: options and document."""
        return {name: value for name, value in asdict(self).items() if name not in LONG_FIELDS}

    def bare(self) -> JobRecord:
        """Return the record as a stranger may see it: state and times, without contents and owner."""
        error = self.error and {
            "type": self.error.get("type"),
            "message": "told to the job's owner alone",
            "exit_code": self.error.get("exit_code"),
        }
        hidden: dict[str, Any] = dict.fromkeys(("name", "owner", "document", "progress", "dashboard_link"))
        return replace(self, options={}, error=error, **hidden)
