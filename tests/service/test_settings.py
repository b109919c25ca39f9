"""What `dkgp serve` accepts as its settings, and where its token comes from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dkgp.errors import InputError, UsageError
from dkgp.service.settings import ServiceSettings, check_token, is_loopback, read_token

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_token(tmp_path: Path, host: str) -> None:
    assert is_loopback(host)
    assert ServiceSettings(str(tmp_path), host=host, no_token=True).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "8.8.8.8"])
def test_nothing_else_is_bound_without_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match=r"open to everybody .* --no-token was given.*--host 127.0.0.1"):
        ServiceSettings(str(tmp_path), host=host, no_token=True)
    assert ServiceSettings(str(tmp_path), host=host, token=TOKEN, https=True).host == host
    assert ServiceSettings(str(tmp_path), host=host, plain_http=True).no_token is False


def test_a_token_and_none_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both a token .* and --no-token"):
        ServiceSettings(str(tmp_path), token=TOKEN, no_token=True)


def test_unknown_host_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'no\.such\.host\.invalid' is no address"):
        ServiceSettings(str(tmp_path), host="no.such.host.invalid")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"port": 65536}, "65535.*got 65536"),
        ({"port": -1}, "got -1"),
        ({"concurrent_jobs": 0}, "concurrent jobs.*at least 1; got 0"),
        ({"max_queued": 0}, "queued jobs.*at least 1"),
        ({"max_body_bytes": 0}, "bytes of a request.*at least 1"),
        ({"job_deadline_seconds": 0.0}, "job deadline must be above 0"),
        ({"job_deadline_seconds": float("nan")}, "job deadline must be above 0"),
        ({"keep_seconds": -1.0}, "kept must be above 0"),
        ({"token": "short"}, "at least 16.*got 5 characters"),
        ({"token": "sixteen letters and spaces"}, "without spaces"),
        ({"token": "sixteen-letters-\N{LATIN SMALL LETTER E WITH ACUTE}"}, "printable ASCII"),
        ({"roots": ("relative/../..", "s3://")}, "empty, '.' or '..' part"),
        ({"roots": ("simplecache::s3://bucket/a",)}, "--root.*chains file systems"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, setting: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ServiceSettings(str(tmp_path), **setting)  # type: ignore[arg-type]


def test_roots_are_what_they_really_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path / "link")
    assert ServiceSettings("queue").roots == (str(real),)
    assert ServiceSettings("queue").folder == str(real / "queue")
    given = (str(tmp_path / "link"), str(real), "s3://bucket/runs/", "gcs://b")
    assert ServiceSettings("queue", roots=given).roots == (str(real), "s3://bucket/runs", "gs://b")
    with pytest.raises(InputError, match="'/no/such/folder' is not a folder"):
        ServiceSettings("queue", roots=("/no/such/folder",))


def test_the_token_is_not_shown(tmp_path: Path) -> None:
    assert TOKEN not in repr(ServiceSettings(str(tmp_path), token=TOKEN))
    with pytest.raises(UsageError) as caught:
        check_token("secret word", "the token")
    assert "secret word" not in str(caught.value)


def test_token_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}-file\n")
    file.chmod(0o640)
    environment = {"DKGP_SERVICE_TOKEN": f"{TOKEN}-environment"}
    assert read_token(file, environment) == f"{TOKEN}-file"
    assert read_token(None, environment) == f"{TOKEN}-environment"
    assert read_token(None, {}) is None
    assert read_token(None, {"DKGP_SERVICE_TOKEN": " "}) is None
    with pytest.raises(UsageError, match="the token in DKGP_SERVICE_TOKEN must be at least 16"):
        read_token(None, {"DKGP_SERVICE_TOKEN": "short"})


def test_token_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(InputError, match=r"read by every user .*mode 0644.*chmod 600"):
        read_token(file, {})
    for mode in (0o620, 0o602, 0o660):
        file.chmod(mode)
        with pytest.raises(InputError, match=rf"written by others \(mode {mode:04o}\).*chmod 600"):
            read_token(file, {})
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_token(tmp_path / "missing", {})
    with pytest.raises(InputError, match="is not a file"):
        read_token(tmp_path, {})
    file.chmod(0o600)
    file.write_bytes(os.urandom(5000))
    with pytest.raises(UsageError, match="larger than 4096 bytes"):
        read_token(file, {})
    file.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(UsageError, match="printable ASCII"):
        read_token(file, {})
    file.write_text("")
    with pytest.raises(UsageError, match="got 0 characters"):
        read_token(file, {})
