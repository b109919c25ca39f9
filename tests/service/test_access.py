"""Tokens by name, and the audit log."""

from __future__ import annotations

import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dkgp.errors import InputError, StorageError, UsageError
from dkgp.service import access
from dkgp.service.access import AuditLog, Caller, TokenBook, add_token, read_tokens, revoke_token
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.locks import FileLock

ADMIN = "the-token-of-the-service-itself"


def test_a_token_is_recognised_and_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    book = TokenBook(tmp_path, ADMIN)
    secret, made = add_token(tmp_path, "alice", "submit")
    assert book.caller(secret.encode()) == Caller("alice", "submit")
    assert book.caller(ADMIN.encode()) == Caller("admin", "admin")
    for wrong in (b"", secret[:-1].encode(), secret.encode() + b"x", made.digest.encode(), b"\xff"):
        assert book.caller(wrong) is None
    for path in tmp_path.iterdir():
        assert secret.encode() not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # 32 random bytes: nobody finds them by trying hashes.
    assert len(secret) >= 43
    assert add_token(tmp_path, "bob", "read")[0] != secret


def test_a_revoked_token_is_refused_by_the_next_request(tmp_path: Path) -> None:
    book = TokenBook(tmp_path, ADMIN)
    secrets = {name: add_token(tmp_path, name, "submit")[0].encode() for name in ("alice", "bob")}
    assert book.caller(secrets["alice"]) is not None
    revoke_token(tmp_path, "alice")
    assert book.caller(secrets["alice"]) is None
    assert book.caller(secrets["bob"]) == Caller("bob", "submit")
    # A new token of the name is another one.
    again, _ = add_token(tmp_path, "alice", "read")
    assert book.caller(again.encode()) == Caller("alice", "read")
    assert book.caller(secrets["alice"]) is None


def test_a_token_ends_with_its_time(tmp_path: Path) -> None:
    secret, made = add_token(tmp_path, "alice", "submit", days=1.0)
    assert made.expires is not None
    left = datetime.fromisoformat(made.expires) - datetime.now(UTC)
    assert timedelta(hours=23) < left <= timedelta(days=1)
    assert TokenBook(tmp_path, ADMIN).caller(secret.encode()) is not None
    content = json.loads((tmp_path / "tokens.json").read_text())
    content["tokens"][0]["expires"] = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    (tmp_path / "tokens.json").write_text(json.dumps(content))
    assert TokenBook(tmp_path, ADMIN).caller(secret.encode()) is None


@pytest.mark.parametrize("spoil", ["open", "link", "not JSON", "unknown scope", "no digest", "gone"])
def test_tokens_that_somebody_else_may_have_written_let_nobody_in(tmp_path: Path, spoil: str) -> None:
    secret, _ = add_token(tmp_path, "alice", "admin")
    book = TokenBook(tmp_path, ADMIN)
    assert book.caller(secret.encode()) is not None
    path = tmp_path / "tokens.json"
    content = json.loads(path.read_text())
    if spoil == "open":
        path.chmod(0o620)
    elif spoil == "link":
        path.rename(tmp_path / "elsewhere.json")
        path.symlink_to(tmp_path / "elsewhere.json")
    elif spoil == "not JSON":
        path.write_text("{")
    elif spoil == "unknown scope":
        path.write_text(json.dumps({"tokens": [{**content["tokens"][0], "scope": "root"}]}))
    elif spoil == "no digest":
        path.write_text(json.dumps({"tokens": [{**content["tokens"][0], "digest": ""}]}))
    else:
        path.unlink()
    assert book.caller(secret.encode()) is None
    assert book.caller(b"") is None
    assert book.caller(ADMIN.encode()) == Caller("admin", "admin")
    if spoil != "gone":
        with pytest.raises(InputError, match="dkgp token add"):
            read_tokens(tmp_path)


@pytest.mark.parametrize("name", ["", "admin", "anybody", "-x", "a b", "a\nb", "ä", "x" * 65, "../x"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="1 to 64 letters"):
        add_token(tmp_path, name, "read")
    assert not (tmp_path / "tokens.json").exists()


def test_what_else_is_refused(tmp_path: Path) -> None:
    add_token(tmp_path, "alice", "read")
    before = (tmp_path / "tokens.json").read_bytes()
    with pytest.raises(UsageError, match="revoke it first"):
        add_token(tmp_path, "alice", "admin")
    with pytest.raises(UsageError, match="one of read, submit, admin"):
        add_token(tmp_path, "bob", "root")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than 0"):
        add_token(tmp_path, "bob", "read", days=float("nan"))
    with pytest.raises(InputError, match="there are: alice"):
        revoke_token(tmp_path, "bob")
    assert (tmp_path / "tokens.json").read_bytes() == before


def test_commands_at_the_same_time_lose_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = [threading.Thread(target=add_token, args=(tmp_path, f"t{number}", "read")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {known.name for known in read_tokens(tmp_path)} == {f"t{number}" for number in range(8)}
    monkeypatch.setattr(access, "_LOCK_SECONDS", 0.1)
    lock = FileLock.acquire(tmp_path / access.TOKENS_LOCK)
    assert lock is not None
    with pytest.raises(StorageError, match="another command"):
        add_token(tmp_path, "late", "read")
    lock.release()


def test_whose_a_job_is() -> None:
    assert Caller("alice", "submit").owns("alice")
    assert not Caller("alice", "submit").owns("bob")
    # A job from before there were owners is the admin's alone.
    assert not Caller("alice", "submit").owns(None)
    assert Caller("carol", "admin").owns(None)
    assert Caller("carol", "admin").owns("bob")
    assert not Caller("alice", "read").owns("alice")


def test_the_folder_is_still_taken_for_a_queue(tmp_path: Path) -> None:
    add_token(tmp_path, "alice", "read")
    for name in ("audit.jsonl", "audit.1.jsonl", "certificate.pem", "certificate-key.pem", "token"):
        (tmp_path / name).touch()
    JobQueue(tmp_path).close()
    (tmp_path / "audit.x.jsonl").touch()
    with pytest.raises(InputError, match=r"audit\.x\.jsonl"):
        JobQueue(tmp_path)
    assert os.listdir(tmp_path)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_json_and_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    (tmp_path / "audit.jsonl").touch(0o666)
    audit.write("POST /v1/jobs", who="alice\n", status=201)
    (line,) = lines(audit.path)
    assert (line["what"], line["who"], line["status"]) == ("POST /v1/jobs", "alice\n", 201)
    assert str(line["time"]).endswith("+00:00")
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_it_is_bounded_and_the_newest_lines_are_kept(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, largest_bytes=2000, kept_files=2)
    for number in range(200):
        audit.write("POST /v1/jobs", number=number)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.1.jsonl", "audit.2.jsonl", "audit.jsonl"]
    assert sum((tmp_path / name).stat().st_size for name in files) <= 3 * 2000
    kept = [
        line["number"] for name in ("audit.2.jsonl", "audit.1.jsonl", "audit.jsonl") for line in lines(tmp_path / name)
    ]
    assert kept == list(range(int(str(kept[0])), 200))
    assert AuditLog(tmp_path, largest_bytes=2000).lost == 0


def test_a_link_in_its_place_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "audit.jsonl").symlink_to(victim)
    audit = AuditLog(tmp_path)
    audit.write("POST /v1/jobs")
    assert audit.lost == 1
    assert victim.read_text() == "mine"


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "gone")
    audit.write("POST /v1/jobs")
    audit.write("POST /v1/jobs")
    assert audit.lost == 2
