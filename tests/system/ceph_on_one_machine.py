"""A Ceph object store on one machine: monitor, memory store and S3 gateway, from a distribution's packages.

    with ceph_store(folder) as ceph:
        use_s3(monkeypatch, ceph.server)
        ...
        ceph.requests()

Nothing of the machine's own Ceph, if it has one, is read or written; the daemons end when the block does.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.s3 import S3Server
from tests.system.slurm_on_one_machine import daemon

__all__ = ["CephStore", "ceph_store", "missing"]

PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
UP_SECONDS = 120.0
# What the gateway may take to write a request that was answered into its log.
LOG_SECONDS = 10.0
_REQUEST = re.compile(r'beast: 0x\w+: \S+ - (\S+) \[[^]]*\] "(\w+) (\S+) HTTP/1.1" (\d+)')


def missing() -> str | None:
    """Return the reason why there can be no store here, or None."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"needs Ceph (Debian: radosgw ceph-mon ceph-osd, no services of theirs); missing: {', '.join(absent)}"
    return None


@dataclass(frozen=True)
class CephStore:
    """A running store with an empty bucket; `folder` has configuration, state and the daemons' logs."""

    folder: Path
    server: S3Server

    def requests(self) -> list[tuple[str, str, int]]:
        """Return method, path and status of each request so far, as the gateway's log has them."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        marker, log = f"/{uuid.uuid4().hex}", self.folder / "client.admin.log"
        with contextlib.suppress(OSError):
            opener.open(f"{self.server.endpoint}{marker}", timeout=60).close()
        until = time.monotonic() + LOG_SECONDS
        while marker not in (text := log.read_text(errors="replace")):
            assert time.monotonic() < until, "the gateway's log has no line of the last request"
            time.sleep(0.05)
        before = text[: text.index(marker)]
        return [
            (method, path, int(status)) for who, method, path, status in _REQUEST.findall(before) if who != "anonymous"
        ]


def _configuration(folder: Path, monitor: int) -> str:
    return f"""
[global]
fsid = {uuid.uuid4()}
mon host = v2:127.0.0.1:{monitor}
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {folder}/keyring
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
pid file = {folder}/run/$name.pid
log file = {folder}/$name.log
mon data = {folder}/monitor
mon data avail warn = 1
mon data avail crit = 1
mon allow pool size one = true
mon max pg per osd = 1000
osd data = {folder}/memory
osd objectstore = memstore
memstore device bytes = 536870912
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
rgw data = {folder}
debug rgw = 1
log max recent = 0
"""


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(endpoint: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(endpoint, timeout=10).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def ceph_store(folder: Path) -> Iterator[CephStore]:
    """Start a store in a folder, and stop it at the end."""
    folder = folder.resolve()
    for name in ("monitor", "memory", "run"):
        (folder / name).mkdir(parents=True)
    monitor, gateway = _free_port(), _free_port()
    configuration, keyring = folder / "ceph.conf", folder / "keyring"
    configuration.write_text(_configuration(folder, monitor))
    identity = re.search("fsid = (.*)", configuration.read_text())
    assert identity is not None

    def run(program: str, *arguments: object) -> None:
        command = [program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=UP_SECONDS, check=False, cwd=folder)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}"

    everything = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
    run("ceph-authtool", "-C", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
    for name in ("client.admin", "osd.0"):
        run("ceph-authtool", keyring, "--gen-key", "-n", name, *everything)
    addresses = ("--addv", "a", f"[v2:127.0.0.1:{monitor}]")
    run("monmaptool", "--create", *addresses, "--fsid", identity[1], folder / "monmap")
    with_configuration, device = ("-c", configuration), str(uuid.uuid4())
    run("ceph-mon", "--mkfs", "-i", "a", "--monmap", folder / "monmap", "--keyring", keyring, *with_configuration)
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon(folder, "monitor-output", "ceph-mon", "-i", "a", "-f", *with_configuration))
        run("ceph", *with_configuration, "osd", "new", device)
        run("ceph-osd", "-i", 0, "--mkfs", "--osd-uuid", device, *with_configuration)
        stack.enter_context(daemon(folder, "memory-output", "ceph-osd", "-i", 0, "-f", *with_configuration))
        server = S3Server(f"http://127.0.0.1:{gateway}")
        # The gateway makes its pools, which takes seconds.
        frontends = f"--rgw-frontends=beast endpoint=127.0.0.1:{gateway}"
        stack.enter_context(
            daemon(folder, "gateway-output", "radosgw", "-f", "-n", "client.admin", frontends, *with_configuration)
        )
        keys = (f"--access-key={server.settings['AWS_ACCESS_KEY_ID']}", "--secret-key=test-secret")
        run("radosgw-admin", *with_configuration, "user", "create", "--uid=test", "--display-name=test", *keys)
        until = time.monotonic() + UP_SECONDS
        while not _answers(server.endpoint):
            assert time.monotonic() < until, f"the gateway at {server.endpoint} does not answer"
            time.sleep(0.2)
        yield CephStore(folder, server)
