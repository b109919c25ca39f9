"""A cluster over ssh, in full: dask's own class against an ssh server of this test, with and without certificates."""

from __future__ import annotations

import asyncio
import base64
import inspect
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.starters.security import security_from
from dkgp.cluster.starters.ssh import ssh_arguments
from dkgp.errors import ClusterError, UsageError
from tests.cluster.helpers import Certificates, Listener

asyncssh = pytest.importorskip("asyncssh", reason="needs the package asyncssh (the extra `ssh`)")

PASSWORD = "hunter2"


class Login(asyncssh.SSHServer):  # type: ignore[misc]
    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == PASSWORD


running: set[Any] = set()
commands: list[str] = []


async def run_command(process: Any) -> None:
    running.add(asyncio.current_task())
    child = await asyncio.create_subprocess_shell(
        process.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    commands.append(process.command)
    try:
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        await asyncio.wait(
            [asyncio.ensure_future(child.wait()), asyncio.ensure_future(process.channel.wait_closed())],
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()
    process.exit(child.returncode)


@pytest.fixture
def ssh_port() -> Iterator[int]:
    """A server on this machine, in a thread of its own, that lets in whoever knows the password."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve() -> Any:
        key = asyncssh.generate_private_key("ssh-ed25519")
        return await asyncssh.create_server(
            Login, "127.0.0.1", 0, server_host_keys=[key], process_factory=run_command, encoding=None
        )

    server = asyncio.run_coroutine_threadsafe(serve(), loop).result(30)
    yield server.sockets[0].getsockname()[1]

    async def stop() -> None:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*running, return_exceptions=True)
        running.clear()

    asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def options(port: int, password: str = PASSWORD, **more: Any) -> ClusterOptions:
    connect = {"port": port, "username": "gp", "password": password, "known_hosts": None}
    settings = {"hosts": "127.0.0.1,127.0.0.1,127.0.0.1", "connect_options": connect}
    return ClusterOptions(kind="ssh", settings=settings, threads_per_worker=1, **more)


def doubled(group: list[int]) -> list[int]:
    return [2 * item for item in group]


@pytest.mark.slow
def test_workers_on_hosts(ssh_port: int, certificates: Certificates, tmp_path: Path) -> None:
    commands.clear()
    for given, protocol in (({"plain_text": True}, "tcp://"), (certificates.options(), "tls://")):
        listener = Listener()
        with open_executor(options(ssh_port, workers=2, **given), 1, listener) as executor:  # type: ignore[arg-type]
            client = executor._client  # type: ignore[attr-defined]
            assert client.scheduler.address.startswith(protocol)
            assert all(address.startswith(protocol) for address in client.nthreads())
            assert executor.parallelism == 2
            assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]


@pytest.mark.slow
def test_certificates_of_the_run_reach_the_hosts_and_no_command_line(ssh_port: int, tmp_path: Path) -> None:
    commands.clear()
    with open_executor(options(ssh_port), 1) as executor:
        client = executor._client  # type: ignore[attr-defined]
        assert client.scheduler.address.startswith("tls://")
        assert all(address.startswith("tls://") for address in client.nthreads())
        assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]
        (made,) = {command.split("cat > ")[1] for command in commands if "cat > " in command}
        assert stat.S_IMODE(Path(made).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(made).parent.stat().st_mode) == 0o700
        secret = "".join(line for line in client.security.tls_worker_key.splitlines() if "-----" not in line)
    assert not Path(made).parent.exists()
    # Dask hands its configuration over in base64.
    words = [word for command in commands for word in re.split(r"[\s\"'=]+", command)]
    texts = [base64.urlsafe_b64decode(word + "===").decode("utf-8", "ignore") for word in words if len(word) > 100]
    assert any(made in text for text in texts)
    assert not any(secret[:40] in text for text in (*texts, *commands))
    assert all(" -P -m distributed" in command for command in commands if " -m distributed" in command)


def test_a_wrong_password_is_a_cluster_error_that_does_not_show_it(ssh_port: int) -> None:
    with pytest.raises(ClusterError, match="ssh cluster could not be started: .*Permission denied") as caught:
        open_executor(options(ssh_port, password="swordfish"), 1).__enter__()
    assert "swordfish" not in str(caught.value)


# What is handed to dask's SSHCluster, and what is refused before any host is asked.


GIB = 2**30
SIZES: dict[str, Any] = {"workers": 3, "threads_per_worker": 4, "worker_memory_bytes": 8 * GIB}


def ssh(**options: Any) -> dict[str, Any]:
    from distributed import SSHCluster

    found = ssh_arguments(ClusterOptions(kind="ssh", **options), None)
    inspect.signature(SSHCluster).bind(**found)
    return found


def test_a_cluster_over_ssh() -> None:
    found = ssh(
        settings={"hosts": "head, node1,node2", "connect_options": {"username": "gp"}}, **{**SIZES, "workers": 4}
    )
    assert found["hosts"] == ["head", "node1", "node2"]
    sizes = {"nthreads": 4, "memory_limit": 8 * GIB, "n_workers": 2}
    assert found["worker_options"] == {
        **sizes,
        "dashboard_address": "127.0.0.1:0",
        "preload": ["dkgp.operators.preload"],
    }
    assert found["connect_options"] == {"username": "gp"}


def test_workers_over_ssh_import_nothing_from_the_folder_they_start_in() -> None:
    assert ssh(settings={"hosts": ["a", "b"]})["remote_python"] == f"{sys.executable} -P"
    assert ssh(settings={"hosts": ["a", "b"], "remote_python": "python3.12"})["remote_python"] == "python3.12 -P"
    listed = {"hosts": ["a", "b"], "remote_python": ["python3.11", "python3.12"]}
    assert ssh(settings=listed)["remote_python"] == ["python3.11 -P", "python3.12 -P"]


def test_certificates_over_ssh(certificates: Certificates) -> None:
    options = ClusterOptions(kind="ssh", settings={"hosts": ["a", "b"]}, **certificates.options())
    found = ssh_arguments(options, security_from(options))
    assert found["worker_options"]["protocol"] == found["scheduler_options"]["protocol"] == "tls://"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs hosts"),
        ({"settings": {"hosts": "one"}}, "got ['one']"),
        ({"settings": {"hosts": ["a", "b", "c"]}, "workers": 3}, "3 workers cannot be shared out evenly over 2 hosts"),
        ({"settings": {"hosts": ["a", "b", "c"]}, "workers": 1}, "1 workers cannot be shared out"),
        ({"settings": {"hosts": ["a", "b"], "worker_options": {"nthreads": 2}}, "threads_per_worker": 1}, "'nthreads'"),
        ({"settings": {"hosts": ["a", "b"], "nthreads": 2}}, "has no setting 'nthreads'"),
        ({"settings": {"hots": ["a", "b"]}}, "did you mean hosts?"),
    ],
)
def test_settings_of_ssh_that_cannot_be_used(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ssh(**options)
    assert words in str(caught.value)


def test_hosts_that_cannot_be_reached_are_a_cluster_error_without_secrets() -> None:
    settings = {"hosts": ["127.0.0.1"] * 2, "connect_options": {"port": 1, "password": "hunter2", "known_hosts": None}}
    options = ClusterOptions(kind="ssh", settings=settings)
    with pytest.raises(ClusterError, match="the ssh cluster could not be started") as caught, open_executor(options, 1):
        pass
    assert "hunter2" not in str(caught.value)
