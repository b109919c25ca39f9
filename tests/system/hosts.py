"""Hosts made of network namespaces, each with its own address on one bridge, and certificates for them.

    with network("scheduler", "worker-1", "worker-2") as hosts:
        hosts["worker-1"].start("dask", "worker", ...)
        hosts["worker-1"].unplug()

The bridge is a namespace of its own, so that nothing shows in the machine's network; whatever an earlier, crashed run
left is removed first.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Certificates", "Host", "certificates", "missing", "network"]

PREFIX = "dkgptest"
STOP_SECONDS = 15.0


def missing() -> str | None:
    """Return the reason why hosts cannot be started here, or None."""
    if shutil.which("ip") is None:
        return "needs the command `ip` (Debian: iproute2)"
    if os.geteuid() != 0:
        return "needs root: `ip netns add` makes the hosts"
    name = f"{PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"needs network namespaces; `ip netns add` says: {made.stderr.strip()}"
    try:
        linked = subprocess.run(
            ["ip", "-n", name, "link", "add", "probe", "type", "bridge"], capture_output=True, text=True
        )
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return None if linked.returncode == 0 else f"needs bridges; `ip link add` says: {linked.stderr.strip()}"


@dataclass
class Host:
    """A host: a namespace with one network card.

    Attributes
    ----------
    name, namespace, address
        What it is called here, by the kernel, and on the network.
    folder
        Where its processes' output goes.
    environment
        Of all its processes.
    """

    name: str
    namespace: str
    address: str
    folder: Path
    environment: Mapping[str, str]
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, *command: object) -> list[str]:
        """The command as it is run on the host."""
        return ["ip", "netns", "exec", self.namespace, *map(str, command)]

    def start(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        """Start a process that ends with the network; its output goes to NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command(*command),
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running.append(process)
        return process

    def run(self, *command: object, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end."""
        return subprocess.run(
            self.command(*command), env=dict(self.environment), capture_output=True, text=True, timeout=timeout
        )

    def log(self, name: str) -> str:
        """Return the output of a process."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def unplug(self) -> None:
        """Take the network card down: packets are lost, and nobody is told."""
        _ip("-n", self.namespace, "link", "set", "eth0", "down")

    def stop(self) -> None:
        """End every process."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ip(*arguments: str) -> None:
    answer = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert answer.returncode == 0, f"ip {' '.join(arguments)}: {answer.stderr}"


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]


def _remove(namespace: str) -> None:
    """End what runs in a namespace, and remove it; its cards and cables go with it."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _remove_leftovers() -> None:
    for namespace in _namespaces():
        owner = int(namespace.split("-")[1])
        if owner == os.getpid() or not Path(f"/proc/{owner}").exists():
            _remove(namespace)


@contextlib.contextmanager
def network(
    *names: str, folder: Path, environment: Mapping[str, str], subnet: str = "10.213.7"
) -> Iterator[dict[str, Host]]:
    """Make hosts that reach each other and nothing else.

    Parameters
    ----------
    names : str
        Of the hosts; the first has the address SUBNET.1.
    folder : Path
        For the output of their processes.
    environment : mapping
        Of their processes.
    subnet : str
        The first three numbers of the addresses.
    """
    _remove_leftovers()
    prefix = f"{PREFIX}-{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = {
        name: Host(name, f"{prefix}-{name}", f"{subnet}.{number}", folder, environment)
        for number, name in enumerate(names, start=1)
    }
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts.values(), start=1):
            port = f"port{number}"
            _ip("netns", "add", host.namespace)
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            # dask finds out its own address by where the way to the world begins.
            _ip("-n", host.namespace, "route", "add", "default", "dev", "eth0")
        yield hosts
    finally:
        for host in hosts.values():
            host.stop()
        for namespace in (*(host.namespace for host in hosts.values()), switch):
            _remove(namespace)


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority, and a certificate and key that it has signed."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def dask(self) -> tuple[str, ...]:
        """As options of `dask scheduler` and `dask worker`."""
        pairs = ("--tls-ca-file", self.authority), ("--tls-cert", self.certificate), ("--tls-key", self.key)
        return tuple(str(part) for pair in pairs for part in pair)

    @property
    def dkgp(self) -> tuple[str, ...]:
        """As options of dkgp."""
        pairs = ("--tls-ca", self.authority), ("--tls-cert", self.certificate), ("--tls-key", self.key)
        return tuple(str(part) for pair in pairs for part in pair)


def certificates(folder: Path, addresses: list[str]) -> Certificates:
    """Make an authority and a certificate for hosts of these addresses."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def builder(subject: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("dkgp test authority"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
        )

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = (
        builder("dkgp test authority", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)) for address in addresses])
    certificate = (
        builder("dkgp test host", key.public_key())
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificates(folder / "authority.pem", folder / "certificate.pem", folder / "key.pem")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made
