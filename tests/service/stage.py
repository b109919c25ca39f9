"""The HTTP service in this process: over a real queue, with a supervisor that only notes that it was woken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from dkgp.service.queue.events import EventWriter
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.serve import listen, url_of
from dkgp.service.settings import ServiceSettings
from dkgp.service.web.app import Service, create_app
from dkgp.service.web.limits import protocol_type

TOKEN = "a-token-for-these-tests-alone"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
DEADLINE_SECONDS = 120.0


class Woken:
    """Counts how often it was told to look at the queue."""

    def __init__(self) -> None:
        self.times = 0

    def wake(self) -> None:
        self.times += 1


class Direct(httpx.BaseTransport):
    """Hands requests to an ASGI application without a network between."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            response = await self._transport.handle_async_request(request)
            content = await response.aread()
            return httpx.Response(response.status_code, headers=response.headers, content=content)

        return asyncio.run(answer())


@dataclass
class Stage:
    """A service, its parts, and a client that shows the token."""

    root: Path
    queue: JobQueue
    service: Service
    app: Any
    supervisor: Woken
    client: httpx.Client

    def anonymous(self, **headers: str) -> httpx.Client:
        """A client that shows no token."""
        return httpx.Client(transport=Direct(self.app), base_url="http://127.0.0.1:8780", headers=headers)

    def options(self, out: str = "model.zarr", **more: Any) -> dict[str, Any]:
        """Options of a training job inside the root, whose inputs exist."""
        (self.root / "train.zarr").mkdir(exist_ok=True)
        (self.root / "hyper.json").touch()
        return {
            "dataset": str(self.root / "train.zarr"),
            "hyper": str(self.root / "hyper.json"),
            "out": out if "://" in out else str(self.root / out),
            **more,
        }

    def submit(self, out: str = "model.zarr", **more: Any) -> dict[str, Any]:
        """Submit a training job; return its record."""
        response = self.client.post("/v1/jobs", json={"command": "train", "options": self.options(out), **more})
        assert response.status_code == 201, response.text
        record: dict[str, Any] = response.json()
        return record

    def events(self, job_id: str) -> EventWriter:
        """Return the writer of events of the job's process."""
        return EventWriter(self.queue.folder_of(job_id) / "events.jsonl")


@contextlib.contextmanager
def staged(folder: Path, *, token: str | None = TOKEN, **settings: Any) -> Iterator[Stage]:
    """A service on a queue in the folder, whose root is the folder's `data`."""
    root = folder / "data"
    root.mkdir(exist_ok=True)
    chosen = ServiceSettings(
        str(folder / "queue"), token=token, no_token=token is None, **{"roots": (str(root),), **settings}
    )
    queue = JobQueue(
        Path(chosen.folder),
        max_queued=chosen.max_queued,
        max_queued_per_owner=chosen.max_queued_per_token,
        max_folder_bytes=chosen.max_folder_bytes,
    )
    supervisor = Woken()
    service = Service(chosen, queue, supervisor)
    app = create_app(service)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    client = httpx.Client(transport=Direct(app), base_url="http://127.0.0.1:8780", headers=headers)
    with client:
        yield Stage(root, queue, service, app, supervisor, client)
    queue.close()


@contextlib.contextmanager
def served(stage: Stage, **limits: Any) -> Iterator[str]:
    """The service on a port of its own, with these limits of its connections; yields its address."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                stage.app,
                http=protocol_type(**limits),
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=5,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener, "127.0.0.1")
        finally:
            server.should_exit = True
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()
