"""A cluster over ssh, in full: dask's own class against an ssh server of this test, with and without certificates."""

from __future__ import annotations

import asyncio
import base64
import re
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.errors import ClusterError
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
