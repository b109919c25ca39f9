"""Calls made from the service's own OpenAPI document: none is an error of the service, slow, or tells too much.

Schemathesis makes thousands, right ones and wrong ones by the document; they go over real connections, with a token and
without.
"""

from __future__ import annotations

import collections
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from tests.service.stage import BEARER, DEADLINE_SECONDS, TOKEN, Stage, served, staged

SECONDS, BYTES = 10.0, 50 * 2**20
# Open to everybody, by design.
OPEN = {"/healthz"}


@dataclass
class Calls:
    """Calls of a served stage, and what came of them."""

    stage: Stage
    address: str
    operations: list[Any]
    statuses: collections.Counter[tuple[bool, int]] = field(default_factory=collections.Counter)
    slowest: float = 0.0
    largest: int = 0  # bytes that one call took

    def send(self, client: httpx.Client, case: Any, known: bool) -> None:
        """One call, with the token or without."""
        arguments = case.as_transport_kwargs(base_url=self.address)
        headers = {**arguments["headers"], **(BEARER if known else {})}
        content = {name: arguments[name] for name in ("json", "data") if name in arguments}
        if "data" in content:
            content["content"] = content.pop("data")
        held = reset_peak()
        began = time.process_time()  # the service's too; one that waits for long ends by the client's patience
        try:
            with client.stream(
                arguments["method"], arguments["url"], params=arguments.get("params"), headers=headers, **content
            ) as response:
                kind = response.headers.get("content-type", "")
                # A job's events go on until it ends.
                text = "" if "event-stream" in kind else response.read().decode()
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError, TypeError, ValueError):
            return  # no HTTP client sends that
        seconds = time.process_time() - began
        self.slowest = max(self.slowest, seconds)
        self.largest = max(self.largest, peak_bytes() - held)
        self.statuses[known, response.status_code] += 1
        self._check(case, known, response.status_code, text, repr(arguments))
        assert seconds < SECONDS, (seconds, arguments)

    def _check(self, case: Any, known: bool, status: int, text: str, sent: str) -> None:
        assert status < 500, (status, text, sent)
        if not known and case.operation.path not in OPEN:
            assert status >= 400, (status, sent)
        hidden = (TOKEN, "Traceback", "site-packages", str(self.stage.queue.folder), str(Path(__file__).parents[3]))
        told = [words for words in hidden if words in text and words not in sent]
        assert not told, (told, text, sent)
        if status >= 400:
            assert re.match(r'\{"error":', text.replace(" ", "")) or not text, text


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Calls]:
    import schemathesis  # takes seconds, of whoever only collects tests too

    with staged(tmp_path) as stage:
        document = stage.anonymous().get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) >= 10
        # So that ids lead somewhere.
        stage.submit()
        with served(stage) as address:
            yield Calls(stage, address, operations)


def reset_peak() -> int:
    """Bytes that this process holds, from which its peak is counted from now on: drawing calls takes memory as well."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def call_all(calls: Calls, count: int) -> None:
    """So many calls of each operation, right and wrong by the document, with the token and without."""
    from schemathesis import GenerationMode

    with httpx.Client(timeout=DEADLINE_SECONDS, trust_env=False) as client:
        client.get(f"{calls.address}/healthz")
        for operation in calls.operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

                @seed(0)
                @settings(
                    max_examples=count,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(operation.as_strategy(generation_mode=mode))
                def call(case: Any) -> None:
                    for known in (True, False):
                        calls.send(client, case, known)

                try:
                    call()
                except Unsatisfiable:
                    # What takes no parameter cannot be called wrongly.
                    assert mode is GenerationMode.NEGATIVE, operation.label
    print(f"\n{sum(calls.statuses.values())} calls, {dict(sorted(calls.statuses.items()))}")
    print(f"slowest {calls.slowest:.3f} s, {calls.largest / 2**20:.1f} MiB more for one at most")
    assert calls.largest < BYTES
    # Neither is everything refused, nor everything taken.
    assert {status for known, status in calls.statuses if known} >= {200, 404, 422}
    assert calls.statuses[False, 401] > count


@pytest.mark.long
def test_calls_made_from_the_description(calls: Calls) -> None:
    call_all(calls, 2)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_thousands_of_calls_made_from_the_description(calls: Calls) -> None:
    call_all(calls, 250)
