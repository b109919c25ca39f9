"""The service's private folder and token, and records by which commands find a service."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dkgp.cli import main
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, UsageError
from dkgp.service.announcements import announce, find_service, private_token, read_private_token, require_private_folder
from dkgp.service.serve import listen, run_serve
from dkgp.service.settings import ServiceSettings
from tests.data.stores.references import knocks
from tests.service.process import service_here


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's state folder, with no services of other tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DKGP_SERVICE_URL", "DKGP_SERVICE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state" / "dkgp" / "services"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "queue").mkdir()
    private_token(tmp_path / "queue")
    return tmp_path / "queue" / "token"


def test_a_service_is_found_where_it_listens_and_nowhere_else(token_file: Path, state: Path) -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        announcement = announce(listener, token_file)
        (record,) = state.iterdir()
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert token_file.read_text().strip() not in record.read_text()
        for url in (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/", f"http://localhost:{port}", None):
            found = find_service(url)
            assert found is not None, url
            # A name may lead elsewhere, on the way of another address family too.
            assert found.url == f"http://127.0.0.1:{port}"
            assert found.token() == token_file.read_text().strip()
        for url in (
            f"http://127.0.0.1:{port + 1}",
            f"http://127.0.0.2:{port}",
            f"http://[::1]:{port}",
            f"https://127.0.0.1:{port}",
            f"http://127.0.0.1:{port}/elsewhere",
            f"http://127.0.0.1.example.org:{port}",
            f"http://example.org:{port}",
            f"http://localhost.example.org:{port}",
            "http://127.0.0.1",
            "http://127.0.0.1:port",
            "nonsense",
        ):
            assert find_service(url) is None, url
        announcement.withdraw()
        assert list(state.iterdir()) == []
        assert find_service(None) is None
        assert not found.is_there()


def test_a_service_at_all_addresses_is_found_on_this_machine(token_file: Path) -> None:
    with listen("0.0.0.0", 0) as listener:
        port = listener.getsockname()[1]
        announcement = announce(listener, token_file)
        for url in (f"http://127.0.0.1:{port}", f"http://localhost:{port}", None):
            found = find_service(url)
            assert found is not None
            assert found.url == f"http://127.0.0.1:{port}"
        assert find_service(f"http://192.0.2.1:{port}") is None
        announcement.withdraw()


def test_of_several_services_one_has_to_be_named(token_file: Path) -> None:
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:
        kept = [announce(one, token_file), announce(other, token_file)]
        assert find_service(None) is None
        assert find_service(f"http://127.0.0.1:{one.getsockname()[1]}") is not None
        for announcement in kept:
            announcement.withdraw()


def test_a_record_is_not_trusted_where_others_could_have_written_it(
    token_file: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen("127.0.0.1", 0) as listener:
        announcement = announce(listener, token_file)
        (record,) = state.iterdir()
        assert find_service(None) is not None
        for path in (record, state):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | stat.S_IWOTH)
            assert find_service(None) is None
            path.chmod(mode)
        # Homes are shared between machines, on each of which 127.0.0.1 is another.
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "another")
            assert find_service(None) is None
        assert find_service(None) is not None
        announcement.withdraw()


SERVE = """
import sys, time
from pathlib import Path
from dkgp.service.announcements import announce
from dkgp.service.serve import listen
listener = listen("127.0.0.1", int(sys.argv[1]))
announcement = announce(listener, Path(sys.argv[2]))
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_the_token_does_not_go_to_who_listens_where_a_service_was_killed(token_file: Path, state: Path) -> None:
    """Its record stays behind; another user takes the port, and waits for commands."""
    process = subprocess.Popen([sys.executable, "-c", SERVE, "0", str(token_file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    found = find_service(None)
    assert found is not None
    assert found.url == f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert len(list(state.iterdir())) == 1
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", port)) as squatter:
        squatter.settimeout(0.2)
        assert find_service(f"http://127.0.0.1:{port}") is None
        # A command that was following the service when it died does not tell the squatter either.
        from dkgp.errors import ServiceError
        from dkgp.service.client import ServiceClient

        client = ServiceClient(found.url, token=found.token(), retry_seconds=0.0, is_there=found.is_there)
        with client, pytest.raises(ServiceError, match="the service has ended"):
            client.service()
        with pytest.raises(TimeoutError):
            heard.append(squatter.accept()[0].recv(4096))
    assert heard == []


# ------------------------------------------------------------------------------------------------------ the commands


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_no_way_in(url: str, token_file: Path) -> None:
    """For another user of this machine, with all that uid 65534 can read."""
    script = f"""
import urllib.error, urllib.request
try:
    print(open({str(token_file)!r}).read())
except OSError as error:
    print(type(error).__name__)
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open({url!r} + "/v1/jobs").status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
    answer = subprocess.run(
        ["/usr/bin/env", "python3", "-c", script], user=65534, group=65534, capture_output=True, text=True, cwd="/",
        timeout=60,
    )  # fmt: skip
    assert answer.stdout.split() == ["PermissionError", "401"], answer.stderr


def test_serve_then_submit_by_the_same_user_just_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any port, by hand or by default; for another user there is no way in, and no token on the way."""
    monkeypatch.chdir(tmp_path)
    with service_here(ServiceSettings("queue", port=0)) as url:
        token = (tmp_path / "queue" / "token").read_text().strip()
        assert stat.S_IMODE((tmp_path / "queue" / "token").stat().st_mode) == 0o600
        ways: list[tuple[str, ...]] = [(), ("--service", url), ("--service", url.replace("127.0.0.1", "localhost"))]
        for number, options in enumerate(ways):
            result = command("submit", *options, "tune", "no.zarr", "--out", f"hyper-{number}.json")
            assert result.exit_code == 0, result.stderr
            assert result.stdout.strip()
        assert command("jobs").exit_code == 0
        # Somebody else's commands, and whoever does not show the token.
        with monkeypatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path / "of-another-user"))
            refused = command("submit", "--service", url, "tune", "no.zarr", "--out", "hyper.json")
            assert refused.exit_code == 2
            assert "--token-file" in refused.stderr
            assert command("jobs", "--service", url, "--token-file", tmp_path / "queue" / "token").exit_code == 0
        # An address that is not the service's gets no token, although it is of this machine.
        with knocks() as inner:
            tried = command("jobs", "--service", f"http://127.0.0.1:{inner.port}", "--retry", 0)
            assert tried.exit_code != 0
        if os.geteuid() == 0:  # only root can be somebody else
            assert_no_way_in(url, tmp_path / "queue" / "token")
    # The next start finds the same token.
    assert private_token(tmp_path / "queue") == token


def test_no_token_has_to_be_said(tmp_path: Path, state: Path) -> None:
    settings = ServiceSettings(str(tmp_path / "queue"), port=0, no_token=True, roots=(str(tmp_path),))
    with service_here(settings) as url:
        assert not (tmp_path / "queue" / "token").exists()
        assert not state.exists()
        assert command("jobs", "--service", url).exit_code == 0


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
