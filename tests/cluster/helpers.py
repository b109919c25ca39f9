"""Helpers for tests of clusters: certificates, other versions of the software, a listener to messages."""

from __future__ import annotations

import datetime
import ipaddress
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

StartProcess = Callable[..., "subprocess.Popen[str]"]


@dataclass
class Listener:
    """Keeps what it is told."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@dataclass(frozen=True)
class Certificates:
    """An authority, a certificate that it signed, and that one's key."""

    ca: str
    cert: str
    key: str

    def options(self) -> dict[str, str]:
        return {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}

    def arguments(self) -> tuple[str, ...]:
        return ("--tls-ca-file", self.ca, "--tls-cert", self.cert, "--tls-key", self.key)


def make_certificates(folder: Path) -> Certificates:
    """Make an authority of its own and one certificate for 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])

    def builder(name: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dask")]), key.public_key())
        .add_extension(alternative, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = {
        "ca.pem": authority.public_bytes(serialization.Encoding.PEM),
        "cert.pem": certificate.public_bytes(serialization.Encoding.PEM),
        "key.pem": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return Certificates(*(str(folder / name) for name in made))


def other_dkgp(folder: Path, version: str) -> dict[str, str]:
    """The environment of a process that has another version of dkgp."""
    metadata = folder / f"dkgp-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: dkgp\nVersion: {version}\n")
    (folder / "sitecustomize.py").write_text(f"import dkgp\n\ndkgp.__version__ = {version!r}\n")
    return {"PYTHONPATH": str(folder)}


NO_DKGP = """
import importlib.metadata
import sys


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dkgp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hide())
found = importlib.metadata.version


def version(name):
    if name == "dkgp":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)


importlib.metadata.version = version
"""


def no_dkgp(folder: Path) -> dict[str, str]:
    """The environment of a process that has no dkgp."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(NO_DKGP)
    return {"PYTHONPATH": str(folder)}


def start_scheduler(start_process: StartProcess, folder: Path, *arguments: str) -> str:
    """Start `dask scheduler`; return its address once it answers for it."""
    path = folder / "scheduler.json"
    local = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", path)
    process = start_process("dask", "scheduler", *local, *arguments)
    until = time.monotonic() + 240.0
    while True:
        assert process.poll() is None
        assert time.monotonic() < until, "the scheduler wrote no file"
        if path.exists() and path.read_text().rstrip().endswith("}"):
            return str(json.loads(path.read_text())["address"])
        time.sleep(0.05)
