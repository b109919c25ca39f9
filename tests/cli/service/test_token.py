"""`dkgp token`: a token is made, listed and revoked; each is written down."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.invoke import files_below, refused, run, run_json


def test_a_token_is_printed_once_alone_and_written_down(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    result = run("token", "add", "alice", "--scope", "submit", "--folder", folder)
    assert result.exit_code == 0, result.stderr
    secret = result.stdout.strip()
    assert secret.startswith("dkgp_")
    assert "shown only once" in result.stderr
    assert folder.stat().st_mode & 0o777 == 0o700
    listed = run_json("token", "list", "--folder", folder)
    assert [(known["name"], known["scope"], known["expires"]) for known in listed["tokens"]] == [
        ("alice", "submit", None)
    ]
    assert "alice" in run("token", "list", "--folder", folder).stdout
    assert run("token", "revoke", "alice", "--folder", folder).stdout == "alice revoked\n"
    assert run("token", "list", "--folder", folder).stdout == "there are no tokens except the service's own\n"
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["what"], line["token"]) for line in lines] == [("token add", "alice"), ("token revoke", "alice")]
    assert all(secret not in Path(path).read_text() for path in files_below(folder))


def test_what_is_refused_leaves_the_tokens_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    run("token", "add", "alice", "--scope", "read", "--days", "7", "--folder", folder)
    before = files_below(folder)
    refused(run("token", "add", "alice", "--scope", "admin", "--folder", folder), "revoke it first", exit_code=2)
    refused(run("token", "add", "a b", "--scope", "read", "--folder", folder), "1 to 64 letters", exit_code=2)
    refused(run("token", "add", "bob", "--scope", "root", "--folder", folder), "root", exit_code=2)
    refused(run("token", "revoke", "bob", "--folder", folder), "there are: alice")
    assert files_below(folder) == before
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    refused(run("token", "add", "bob", "--scope", "read", "--folder", tmp_path / "open"), "others may write")
