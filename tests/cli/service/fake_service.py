"""A jobs service that answers within this process, for the commands that talk to one."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from dkgp.service import client as client_module

TIME = "2026-03-04T05:06:07.000+00:00"


def job_record(job_id: str, state: str = "queued", **more: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": job_id,
        "command": "train",
        "name": None,
        "owner": None,
        "options": {},
        "state": state,
        "attempt": 1,
        "resume": False,
        "created": TIME,
        "started": None,
        "finished": None,
        "exit_code": None,
        "error": None,
        "document": None,
        "cancel_requested": False,
        "deadline_seconds": None,
        "progress": None,
        "dashboard_link": None,
    }
    return record | more


class FakeService:
    """Keeps records and events in memory, and every request that came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.refusal: tuple[int, str, str] | None = None
        self.requests: list[httpx.Request] = []
        # What a job becomes as soon as it is submitted.
        self.outcome: dict[str, Any] = {}
        real = client_module.open_connection

        def connect(url: str, token: str | None, tell: Any, *given: Any) -> httpx.Client:
            return real(url, token, tell, httpx.MockTransport(self.answer))

        monkeypatch.setattr(client_module, "open_connection", connect)

    def add(self, record: dict[str, Any], *events: dict[str, Any]) -> dict[str, Any]:
        self.jobs[record["id"]] = record
        self.events[record["id"]] = [{"sequence": number, "time": TIME, **event} for number, event in enumerate(events)]
        return record

    @property
    def submitted(self) -> list[dict[str, Any]]:
        return [
            json.loads(request.content)
            for request in self.requests
            if request.url.path == "/v1/jobs" and request.content
        ]

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.refusal is not None:
            status, kind, message = self.refusal
            return httpx.Response(status, json={"error": {"type": kind, "message": message}})
        parts = request.url.path.strip("/").split("/")[2:]
        if not parts and request.method == "POST":
            return httpx.Response(201, json=self._submit(json.loads(request.content)))
        if not parts:
            return httpx.Response(200, json=self._list(request.url.params))
        record = self.jobs.get(parts[0])
        if record is None:
            return httpx.Response(404, json={"error": {"type": "UnknownJobError", "message": f"no job {parts[0]}"}})
        if parts[1:] == ["events"]:
            after = int(request.url.params["after"])
            lines = [json.dumps(event) for event in self.events[parts[0]] if event["sequence"] > after]
            return httpx.Response(200, text="\n".join(lines) + "\n")
        if parts[1:] == ["cancel"]:
            record.update(state="cancelled" if record["state"] == "queued" else record["state"], cancel_requested=True)
        if parts[1:] == ["resume"]:
            record.update(state="queued", resume=True)
        return httpx.Response(200, json=record)

    def _submit(self, body: dict[str, Any]) -> dict[str, Any]:
        number = f"{len(self.jobs) + 1:012x}"
        events = self.outcome.get("events", ())
        more = {name: value for name, value in self.outcome.items() if name != "events"}
        return self.add(job_record(number, **{**body, **more}), *events)

    def _list(self, parameters: httpx.QueryParams) -> dict[str, Any]:
        states, found = parameters.get_list("state"), list(reversed(self.jobs.values()))
        if (before := parameters.get("before")) is not None:
            found = found[[record["id"] for record in found].index(before) + 1 :]
        counts: dict[str, int] = {}
        for record in self.jobs.values():
            counts[record["state"]] = counts.get(record["state"], 0) + 1
        chosen = [record for record in found if not states or record["state"] in states]
        return {"jobs": chosen[: int(parameters["limit"])], "counts": counts}
