"""The service's folder is its user's alone, and so is the token in it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, UsageError
from dkgp.service.announcements import private_token, read_private_token, require_private_folder
from dkgp.service.serve import run_serve
from dkgp.service.settings import ServiceSettings


def test_a_new_folder_is_closed_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        require_private_folder(tmp_path / "below" / "queue")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "below" / "queue").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o2770, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "queue"
    folder.mkdir()
    folder.chmod(mode)
    settings = ServiceSettings(str(folder), port=0, roots=(str(tmp_path),))
    with pytest.raises(InputError, match=rf"others may write to the folder .*{mode:04o}.*chmod 700"):
        run_serve(settings, SilentReporter())
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "queue"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(InputError, match="belongs to another user .*Name a folder of your own with --folder"):
        run_serve(ServiceSettings(str(folder), port=0, roots=(str(tmp_path),)), SilentReporter())
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_that_was_given_away_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(InputError, match="uid 65534"):
        require_private_folder(folder)


def test_a_link_is_followed_once(tmp_path: Path) -> None:
    """What it points to is what is checked and used, wherever it points later."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert ServiceSettings(str(tmp_path / "link"), roots=(str(tmp_path),)).folder == str(tmp_path / "real")


def test_the_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(8) as pool:
            tokens = set(pool.map(lambda _: private_token(tmp_path), range(32)))
    finally:
        os.umask(before)
    assert len(tokens) == 1
    assert len(tokens.pop()) >= 43
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_tokens_of_two_folders_differ(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(private_token(tmp_path / name))
    assert made[0] != made[1]


def test_a_token_that_was_planted_or_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="cannot be read"):
        private_token(tmp_path)
    token.unlink()
    os.mkfifo(token, 0o600)
    with pytest.raises(InputError, match="no file of yours"):
        private_token(tmp_path)
    token.unlink()
    token.write_text("short\n")
    token.chmod(0o640)
    with pytest.raises(InputError, match=r"open to others \(mode 0640\); remove it and start `dkgp serve` again"):
        private_token(tmp_path)
    token.chmod(0o600)
    with pytest.raises(UsageError, match="at least 16"):
        private_token(tmp_path)
    token.write_text("a-token-of-somebody-elses\n")
    assert read_private_token(token) == "a-token-of-somebody-elses"
    monkeypatch.setattr(os, "geteuid", lambda: token.stat().st_uid + 1)
    with pytest.raises(InputError, match="no file of yours"):
        read_private_token(token)
