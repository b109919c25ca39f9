"""The service's client: what it sends, what it repeats and how often, how refusals come out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from dkgp.errors import DkgpError, ExitCode, InputError, MemoryBudgetError, ServiceError, UsageError, WaitTimeoutError
from dkgp.service import client as patience
from dkgp.service.client import ServiceClient, exit_code_of, is_this_machine
from dkgp.service.queue.records import JobStateError, QueueFullError, UnknownJobError

TOKEN = "a-token-that-is-long-enough"
ID = "0123456789ab"
Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Scripted:
    """Gives one answer after the other, and keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)


class Stream(httpx.SyncByteStream):
    """Lines of a stream; the end is torn where an exception is among them."""

    def __init__(self, *parts: dict[str, Any] | str | Exception) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part.encode() if isinstance(part, str) else json.dumps(part).encode() + b"\n"


def client_of(script: Scripted, *, seconds: float = 5.0, **options: Any) -> ServiceClient:
    return ServiceClient(
        options.pop("url", "http://127.0.0.1:1"),
        retry_seconds=seconds,
        transport=httpx.MockTransport(script),
        **options,
    )


def record(state: str = "queued", **more: Any) -> dict[str, Any]:
    return {"id": ID, "command": "train", "state": state, "exit_code": None, "cancel_requested": False, **more}


def answered(document: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=document)


def refused(status: int, kind: str = "InputError", message: str = "what is wrong") -> httpx.Response:
    return answered({"error": {"type": kind, "message": message}}, status)


def event(sequence: int, **more: Any) -> dict[str, Any]:
    return {"sequence": sequence, "time": "2026-01-01T00:00:00+00:00", "kind": "note", "message": "m", **more}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("dkgp.service.client.WAIT_POLL_SECONDS", (0.001, 0.002))


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    return clock


# ------------------------------------------------------------------------------------------------------------- sending


def test_a_submission_carries_command_options_key_and_token() -> None:
    script = Scripted(answered(record(), 201), answered(record(), 201))
    with client_of(script, token=TOKEN) as client:
        assert client.submit("train", {"dataset": "/d"}, name="n", deadline_seconds=5.0) == record()
        client.submit("train", {"dataset": "/d"})
    first, second = script.requests
    assert (first.method, first.url.path) == ("POST", "/v1/jobs")
    assert json.loads(first.content) == {
        "command": "train",
        "options": {"dataset": "/d"},
        "name": "n",
        "deadline_seconds": 5.0,
    }
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert json.loads(second.content) == {"command": "train", "options": {"dataset": "/d"}}
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


def test_a_path_in_the_address_is_kept() -> None:
    script = Scripted(answered(record()))
    client_of(script, url="https://host/dkgp/").job(ID)
    assert str(script.requests[0].url) == f"https://host/dkgp/v1/jobs/{ID}"


def test_lists_are_asked_for_by_state_and_page() -> None:
    script = Scripted(answered({"jobs": [], "counts": {}}))
    client_of(script).jobs(states=("running", "queued"), limit=7, before=ID)
    assert script.requests[0].url.params.multi_items() == [
        ("state", "running"),
        ("state", "queued"),
        ("limit", "7"),
        ("before", ID),
    ]


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://host", "http://", "http://host:port", "http://host?x=1", "http://[::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"http://host:port"):
        ServiceClient(url)


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="--token-file") as caught:
        ServiceClient("http://user:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "short", "a b" * 10, "line\nbreak-long-enough", "ümlaut-long-enough-for-it"])
def test_what_cannot_be_a_token_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="the token"):
        ServiceClient("http://127.0.0.1:1", token=token)


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://10.0.0.1:8780", True), ("http://service.example", True), ("https://service.example", False)]
    + [(f"http://{host}:8780", False) for host in ("127.0.0.1", "127.8.9.1", "localhost", "[::1]", "a.localhost")],
)
def test_a_token_in_plain_text_over_the_network_is_warned_of(url: str, warned: bool) -> None:
    said: list[str] = []
    ServiceClient(url, token=TOKEN, tell=said.append).close()
    assert any("plain text" in line for line in said) is warned
    assert TOKEN not in "".join(said)
    said.clear()
    ServiceClient(url, tell=said.append).close()
    assert not said


def test_names_that_look_like_this_machine_are_not() -> None:
    assert not any(map(is_this_machine, ("127.0.0.1.example", "localhost.example", "notlocalhost", "0.0.0.0", "")))


def test_no_proxy_is_asked_for_what_is_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(record()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody is there
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with ServiceClient(f"http://127.0.0.1:{server.server_port}", retry_seconds=0) as client:
                assert client.job(ID) == record()
        finally:
            server.shutdown()
            thread.join()


# ----------------------------------------------------------------------------------------------------------- repeating


def test_a_submission_is_repeated_with_the_same_key_until_it_is_answered() -> None:
    script = Scripted(
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
        httpx.ReadTimeout("slow"),
        refused(503, "ShuttingDown"),
        refused(429, "QueueFullError"),
        httpx.Response(502, text="<html>"),
        answered(record(), 201),
    )
    said: list[str] = []
    assert client_of(script, tell=said.append).submit("tune", {}) == record()
    assert len({request.headers["idempotency-key"] for request in script.requests}) == 1
    assert len(script.requests) == 8
    assert len(said) == 1
    assert "trying again for 5 s" in said[0]


def test_the_deadline_ends_it(clock: Clock) -> None:
    script = Scripted(*[httpx.ConnectError("refused")] * 1000)
    with pytest.raises(ServiceError, match=r"no answer .* http://127.0.0.1:1 .*`dkgp serve`") as caught:
        client_of(script, seconds=2.0).job(ID)
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    assert 1 < len(script.requests) < 1000
    assert clock.now == pytest.approx(2.0)


def test_a_full_queue_says_so_in_the_end() -> None:
    busy = httpx.Response(
        429, json={"error": {"type": "QueueFullError", "message": "full"}}, headers={"Retry-After": "9"}
    )
    script = Scripted(busy, busy)
    with pytest.raises(QueueFullError, match="full"):
        client_of(script, seconds=0.05).submit("tune", {})
    assert len(script.requests) == 2  # the pause that the service asked for reaches to the deadline


def test_what_trying_again_cannot_cure_is_not_tried_again() -> None:
    script = Scripted(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))
    with pytest.raises(ServiceError, match="SSL_CERT_FILE"):
        client_of(script, url="https://host").job(ID)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("status", "kind", "expected", "exit_code"),
    [
        (400, "BadRequest", ServiceError, 5),
        (401, "Unauthorized", UsageError, 2),
        (403, "InputError", InputError, 3),
        (403, "Forbidden", InputError, 3),
        (404, "UnknownJobError", UnknownJobError, 3),
        (409, "JobStateError", JobStateError, 3),
        (413, "TooLarge", InputError, 3),
        (422, "UsageError", UsageError, 2),
        (422, "InputError", InputError, 3),
        (422, "MemoryBudgetError", MemoryBudgetError, 3),
        (422, "MissingExtraError", InputError, 3),
        (422, "ExitCode", InputError, 3),
        (422, "SomethingElse", InputError, 3),
        (500, "InternalError", ServiceError, 5),
    ],
)
def test_refusals_have_the_class_and_exit_code_of_the_command_line(
    status: int, kind: str, expected: type[DkgpError], exit_code: int
) -> None:
    script = Scripted(refused(status, kind, "the tolerance must be positive"))
    with pytest.raises(expected, match="the tolerance must be positive") as caught:
        client_of(script).submit("train", {})
    assert type(caught.value) is expected
    assert caught.value.exit_code == exit_code
    assert ("--token-file" in str(caught.value)) is (status == 401)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>hello</html>", headers={"content-type": "text/html"}),
        httpx.Response(200, json=["no", "object"]),
        httpx.Response(404, text="nginx"),
        httpx.Response(500, json={"detail": "another service"}),
    ],
)
def test_what_is_no_dkgp_service_is_told_apart(answer: httpx.Response) -> None:
    with pytest.raises(ServiceError, match="not as a dkgp service does"):
        client_of(Scripted(answer)).job(ID)


def test_the_token_follows_no_redirect() -> None:
    script = Scripted(httpx.Response(307, headers={"location": "http://elsewhere/"}), answered(record()))
    with pytest.raises(ServiceError, match="http://elsewhere/"):
        client_of(script, token=TOKEN).job(ID)
    assert len(script.requests) == 1


# ------------------------------------------------------------------------------------------------- cancel, resume, find


@pytest.mark.parametrize(
    ("verb", "found"), [("cancel", record("running", cancel_requested=True)), ("resume", record("queued"))]
)
def test_a_refusal_after_a_lost_answer_may_mean_that_it_was_done(verb: str, found: dict[str, Any]) -> None:
    script = Scripted(httpx.ReadError("reset"), refused(409), answered(found))
    assert getattr(client_of(script), verb)(ID) == found
    assert [request.method for request in script.requests] == ["POST", "POST", "GET"]


@pytest.mark.parametrize(
    "answers", [(refused(409),), (httpx.ReadError("reset"), refused(409), answered(record("done")))]
)
def test_a_refusal_to_cancel_is_one(answers: tuple[Answer, ...]) -> None:
    with pytest.raises(JobStateError):
        client_of(Scripted(*answers)).cancel(ID)


def listing(*ids: str) -> httpx.Response:
    return answered({"jobs": [{"id": job_id} for job_id in ids], "counts": {}})


def test_a_prefix_finds_its_job_on_any_page() -> None:
    script = Scripted(listing("aaaa00000000", "bbbb00000000"), listing("aabb00000000"), listing())
    assert client_of(script).find("aab") == "aabb00000000"
    assert [request.url.params.get("before") for request in script.requests] == [None, "bbbb00000000", "aabb00000000"]


def test_a_whole_id_needs_no_search() -> None:
    assert client_of(Scripted()).find(ID) == ID


@pytest.mark.parametrize(
    ("prefix", "kind", "message"),
    [
        ("aa", UsageError, "2 jobs' ids begin with 'aa' .*give more digits"),
        ("c", UnknownJobError, "no job's id begins"),
    ],
)
def test_prefixes_of_several_jobs_or_none(prefix: str, kind: type[DkgpError], message: str) -> None:
    script = Scripted(listing("aaaa00000000", "aabb00000000"), listing())
    with pytest.raises(kind, match=message):
        client_of(script).find(prefix)


@pytest.mark.parametrize("prefix", ["", "xyz", "../../etc", "0123456789abc", "AB"])
def test_what_is_no_id_never_reaches_the_service(prefix: str) -> None:
    with pytest.raises(UsageError, match="12 hexadecimal digits"):
        client_of(Scripted()).find(prefix)


# -------------------------------------------------------------------------------------------------- following, waiting


def test_following_goes_over_torn_streams_and_restarts_without_gap_or_repeat() -> None:
    script = Scripted(
        httpx.Response(200, stream=Stream(event(0), "\n", event(1), httpx.ReadError("torn"))),
        httpx.ConnectError("restarting"),
        refused(503, "ShuttingDown"),
        httpx.Response(200, stream=Stream(event(1), event(2))),
        answered(record("running")),
        httpx.Response(200, stream=Stream(event(3))),
        answered(record("done")),
        httpx.Response(200, stream=Stream(event(4))),
    )
    assert [found["sequence"] for found in client_of(script).follow(ID)] == [0, 1, 2, 3, 4]
    streams = [request.url.params for request in script.requests if request.url.path.endswith("/events")]
    assert [(int(found["after"]), found["follow"]) for found in streams] == [
        (-1, "true"),
        (1, "true"),
        (1, "true"),
        (1, "true"),
        (2, "true"),
        (3, "false"),
    ]


def test_events_so_far_are_read_once() -> None:
    script = Scripted(httpx.Response(200, stream=Stream(event(5), event(6))))
    assert [found["sequence"] for found in client_of(script).events(ID, after=4)] == [5, 6]
    assert dict(script.requests[0].url.params) == {"after": "4", "follow": "false"}


@pytest.mark.parametrize("line", ["<html>\n", "[]\n", '{"kind": "note"}\n', "3\n"])
def test_a_stream_of_something_else_is_told_apart(line: str) -> None:
    script = Scripted(httpx.Response(200, stream=Stream(line)))
    with pytest.raises(ServiceError, match="not as a dkgp service does"):
        list(client_of(script).events(ID))


def test_following_an_unknown_job_is_refused() -> None:
    with pytest.raises(UnknownJobError, match="no such job"):
        list(client_of(Scripted(refused(404, "UnknownJobError", "no such job"))).follow(ID))


def test_long_quiet_between_two_failures_does_not_use_up_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1000.0, 1000.1])
    monkeypatch.setattr(patience.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: None)
    script = Scripted(
        httpx.ConnectError("once"),
        httpx.Response(200, stream=Stream("\n", httpx.ReadError("torn"))),
        httpx.ConnectError("again"),
        httpx.Response(200, stream=Stream(event(0))),
        answered(record("failed")),
        httpx.Response(200, stream=Stream()),
    )
    assert len(list(client_of(script, seconds=10.0).follow(ID))) == 1


def test_waiting_ends_with_the_job() -> None:
    script = Scripted(
        answered(record("queued")),
        httpx.ConnectError("restarting"),
        answered(record("running")),
        answered(record("done")),
    )
    assert client_of(script).wait(ID)["state"] == "done"


def test_waiting_gives_up_at_its_time() -> None:
    script = Scripted(*[answered(record("running"))] * 1000)
    with pytest.raises(WaitTimeoutError, match="still running") as caught:
        client_of(script).wait(ID, until=time.monotonic() + 0.02)
    assert caught.value.exit_code == 124


def test_waiting_gives_up_at_its_time_where_nobody_answers(clock: Clock) -> None:
    script = Scripted(answered(record("running")), *[httpx.ConnectError("refused")] * 100_000)
    with pytest.raises(ServiceError):
        client_of(script, seconds=600.0).wait(ID, until=2.0)
    assert clock.now == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize(
    ("state", "exit_code", "expected"),
    [
        ("done", 0, 0),
        ("done", None, 0),
        ("not_converged", 4, 4),
        ("not_converged", None, 4),
        ("failed", 3, 3),
        ("failed", None, 1),
        ("cancelled", None, 130),
        ("cancelled", 130, 130),
    ],
)
def test_exit_code_of_a_record(state: str, exit_code: int | None, expected: int) -> None:
    assert exit_code_of(record(state) | {"exit_code": exit_code}) == expected
