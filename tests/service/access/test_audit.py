"""The audit log: private, bounded, and it goes on where the disk does not."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from dkgp.service.access import AuditLog


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
