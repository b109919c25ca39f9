"""`dkgp serve`: the queue, the supervisor that runs its jobs, and the HTTP service over both, until a signal."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError, MissingExtraError, StorageError
from dkgp.service.access import read_tokens
from dkgp.service.announcements import TOKEN_NAME, Announcement, announce, private_token, require_private_folder
from dkgp.service.certificate import checked_certificate, own_certificate
from dkgp.service.settings import ServiceSettings, is_loopback, resolve

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

BACKLOG = 1024
# Between these, requests are read: a flood of connections must not push one out before its request is looked at.
ACCEPTED_AT_ONCE = 32
# Answers under way when a signal comes; streams end by themselves.
ANSWER_SECONDS = 5
# Time for jobs to finish a round and write their checkpoints; slower ones are killed and resume from their last one.
STOP_SECONDS = 60.0
IDLE_CONNECTION_SECONDS = 30
# Further time for closing connections; then the process ends by force. Its jobs' processes go on or are found again.
FORCED_AFTER_SECONDS = 30.0
FORCED_EXIT_CODE = 1
_PACKAGES = {
    "fastapi": "fastapi",
    "prometheus_client": "prometheus-client",
    "pydantic": "pydantic",
    "uvicorn": "uvicorn",
}


def run_serve(
    settings: ServiceSettings,
    reporter: Reporter,
    *,
    on_listening: Callable[[Document], None] = lambda document: None,
) -> Document:
    """Serve until SIGTERM or SIGINT; jobs that run then save their state and go back to the queue.

    `on_listening` is called with the address, in a document, once connections are taken. Returns the address, how long
    it was served, and how many jobs are in each state. `InputError` where the address cannot be listened on, or the
    folder holds something else or is not this user's alone; `MissingExtraError` without the extra `service`.
    """
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise MissingExtraError(package, "service", "`dkgp serve`")
    from dkgp.service.queue.job_queue import JobQueue
    from dkgp.service.running.processes import SHARE_OF_JOBS, machine_bytes
    from dkgp.service.running.supervisor import Supervisor
    from dkgp.service.web.app import Service, create_app

    # The address first: where it is taken, nothing has been started or written.
    with listen(settings.host, settings.port) as listener, contextlib.ExitStack() as stack:
        folder = Path(settings.folder)
        require_private_folder(folder)
        read_tokens(folder)
        makes_token = settings.token is None and not settings.no_token
        if makes_token:
            settings = replace(settings, token=private_token(folder))
        total_bytes = int(SHARE_OF_JOBS * machine_bytes())
        if settings.job_memory_bytes is None:
            settings = replace(settings, job_memory_bytes=total_bytes // settings.concurrent_jobs)
        queue = JobQueue(
            Path(settings.folder),
            max_queued=settings.max_queued,
            max_queued_per_owner=settings.max_queued_per_token,
            max_folder_bytes=settings.max_folder_bytes,
        )
        stack.callback(queue.close)
        url = url_of(listener, settings.host, "https" if settings.speaks_tls else "http")
        certificate = _certificate(settings, folder)
        supervisor = Supervisor(
            queue,
            cluster=settings.cluster,
            concurrent_jobs=settings.concurrent_jobs,
            concurrent_per_owner=settings.concurrent_jobs_per_token,
            deadline_seconds=settings.job_deadline_seconds,
            memory_bytes=settings.job_memory_bytes,
            total_memory_bytes=total_bytes,
            keep_seconds=settings.keep_seconds,
            roots=settings.roots,
        )
        service = Service(settings, queue, supervisor)
        began = time.monotonic()
        _warn(settings, reporter)
        started: Document = {"command": "serve", "url": url, "pid": os.getpid(), "folder": settings.folder}
        authority = certificate[0] if certificate is not None and settings.https_cert is None else None
        # With a certificate of somebody else's, commands need the name that it is for.
        announcement = None
        if makes_token and settings.https_cert is None:
            announcement = _announced(listener, folder, authority, reporter)
        if announcement is not None:
            stack.callback(announcement.withdraw)

        def announced() -> None:
            reporter.note(f"dkgp serve: {url}")
            reporter.note(_bounds(settings))
            if authority is not None:
                reporter.note(f"other users need a copy of its certificate and set SSL_CERT_FILE={authority}")
            if announcement is not None:
                reporter.note(f"your commands, such as `dkgp submit`, read the access token in {folder / TOKEN_NAME}")
                reporter.note(f"create a token for another user: dkgp token add NAME --scope submit --folder {folder}")
            if makes_token and sys.stderr.isatty():
                # Not into the log of a service manager. A browser does not send the part after the #.
                reporter.note(f"in a browser: {url}/#token={settings.token}")
            on_listening(started)

        def stopping() -> None:
            if announcement is not None:
                announcement.withdraw()
            reporter.note(
                "stopping: running jobs save their state and go back to the queue; a second signal ends "
                "the command at once"
            )
            service.close()

        latest_end = LatestEnd()
        server = _server(create_app(service), announced, stopping, latest_end, certificate)
        supervisor.start()
        try:
            server.run(sockets=[listener])
        finally:
            supervisor.stop(0.0 if server.force_exit else STOP_SECONDS)
            latest_end.over = True
        return {
            **started,
            "seconds": time.monotonic() - began,
            "counts": queue.counts(),
            "warnings": list(reporter.warnings),
        }


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `InputError` where the address is taken or not this machine's."""
    family, address = resolve(host, port)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last service ended just now is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        advice = {
            errno.EADDRINUSE: "the port is already in use; stop that program, or choose another --port (0: any)",
            errno.EADDRNOTAVAIL: "this machine has no such address; give one of its own with --host",
            errno.EACCES: "only root may use ports below 1024; choose another --port",
        }.get(error.errno or 0, error.strerror or str(error))
        raise InputError(f"cannot listen on {_bracketed(address)}:{port}: {advice}") from None
    return listener


def url_of(listener: socket.socket, host: str, scheme: str = "http") -> str:
    """Return the address of a socket that listens, with its true port."""
    name = host if host in ("localhost", "ip6-localhost") else str(listener.getsockname()[0])
    return f"{scheme}://{_bracketed(name)}:{listener.getsockname()[1]}"


def _certificate(settings: ServiceSettings, folder: Path) -> tuple[Path, Path | None] | None:
    if settings.https_cert is not None:
        key = None if settings.https_key is None else Path(settings.https_key).expanduser()
        return checked_certificate(Path(settings.https_cert).expanduser(), key)
    return own_certificate(folder, settings.host) if settings.https else None


def _announced(
    listener: socket.socket, folder: Path, authority: Path | None, reporter: Reporter
) -> Announcement | None:
    try:
        return announce(listener, folder / TOKEN_NAME, authority)
    except (OSError, RuntimeError, StorageError) as error:
        reporter.warn(
            f"commands do not find this service's token by themselves ({error}); give them --token-file "
            f"{folder / TOKEN_NAME}"
        )
        return None


class LatestEnd:
    """Ends this process so many seconds after a signal, even if its threads still work: no request keeps it alive.

    Once the service is `over`, only a process that is ending is ended: one that goes on to other things goes on.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS + STOP_SECONDS + FORCED_AFTER_SECONDS) -> None:
        self.seconds, self.over = seconds, False

    def begin(self) -> None:
        """Start counting."""
        timer = threading.Timer(self.seconds, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        # The main thread counts as ended once the interpreter waits for the others.
        if self.over and threading.main_thread().is_alive():
            return
        print(f"dkgp serve: ended by force, {self.seconds:.0f} s after the signal", file=sys.stderr, flush=True)
        os._exit(FORCED_EXIT_CODE)


def _server(
    app: ASGIApp,
    announce: Callable[[], None],
    stopping: Callable[[], None],
    latest_end: LatestEnd,
    certificate: tuple[Path, Path | None] | None,
) -> Server:
    import uvicorn

    from dkgp.service.web.limits import HANDSHAKE_SECONDS, MOST_HANDSHAKES, limited_handshakes, protocol_type

    class OrderlyServer(uvicorn.Server):
        """Ends with its caller going on, where uvicorn's own would raise the signal again."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with limited_handshakes(self.config.ssl is not None, HANDSHAKE_SECONDS, MOST_HANDSHAKES):
                await super().startup(sockets)
            for listener in sockets or ():
                # asyncio has set it to the number of connections that it accepts at once.
                listener.listen(BACKLOG)
            if self.started:
                announce()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Before it waits for connections: a stream that is followed would never end by itself.
            stopping()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if not self.should_exit:
                latest_end.begin()
            self.force_exit = self.should_exit
            self.should_exit = True

    return OrderlyServer(
        uvicorn.Config(
            app,
            # Its limits count on asyncio's own tasks.
            loop="asyncio",
            backlog=ACCEPTED_AT_ONCE,
            http=protocol_type(),
            ws="none",
            lifespan="off",
            log_config=None,
            # Its warnings are of requests that anybody can send, a line or two for each.
            log_level="error",
            access_log=False,
            # A header that any client can set must not decide who it is.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_CONNECTION_SECONDS,
            timeout_graceful_shutdown=ANSWER_SECONDS,
            ssl_certfile=None if certificate is None else certificate[0],
            ssl_keyfile=None if certificate is None or certificate[1] is None else certificate[1],
        )
    )


def _warn(settings: ServiceSettings, reporter: Reporter) -> None:
    if settings.token is None:
        reporter.warn(
            "there is no token, so every user of this machine can submit jobs, which run with your rights. Leave out "
            "--no-token if others can log in"
        )
    elif settings.plain_http and not is_loopback(settings.host):
        reporter.warn(
            f"the service speaks plain HTTP at {settings.host}, so others on the network can read token and data. "
            f"Protect them with a TLS proxy, a tunnel or a private network"
        )


def _bounds(settings: ServiceSettings) -> str:
    """Describe the roots and each job's limits."""
    memory = "" if settings.job_memory_bytes is None else f"{settings.job_memory_bytes / 2**30:.3g} GiB of memory"
    seconds = settings.job_deadline_seconds
    limits = [memory, "" if seconds is None else f"{seconds / 3600:.4g} hours"]
    known = " and ".join(filter(None, limits))
    return f"jobs read and write in {', '.join(settings.roots)}" + (f"; limits of a job: {known}" if known else "")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
