"""TLS of the service: its own certificate and another's, who trusts it, and plain HTTP that has to be asked for."""

from __future__ import annotations

import contextlib
import ssl
import stat
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dkgp.errors import InputError, UsageError
from dkgp.service import certificate as module
from dkgp.service.certificate import checked_certificate, own_certificate
from dkgp.service.settings import ServiceSettings
from tests.cli.invoke import run_json
from tests.service.process import service_process
from tests.service.stage import BEARER


def test_its_own_is_made_once_and_is_private(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path, "127.0.0.1")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    made = certificate.read_bytes()
    assert own_certificate(tmp_path, "127.0.0.1")[0].read_bytes() == made
    # For another name, or after one that is damaged, or about to end, another one.
    assert own_certificate(tmp_path, "gp.example")[0].read_bytes() != made
    key.write_bytes(b"damaged")
    assert checked_certificate(*own_certificate(tmp_path, "gp.example"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["certificate-key.pem", "certificate.pem"]


def test_one_that_ends_soon_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALID_DAYS", module.RENEWED_DAYS)
    made = own_certificate(tmp_path, "localhost")[0].read_bytes()
    assert own_certificate(tmp_path, "localhost")[0].read_bytes() != made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Have both sides of a connection speak TLS; the client's error where it trusts not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "gp.example"])
def test_whoever_has_a_copy_trusts_it(tmp_path: Path, name: str, strict: bool) -> None:
    certificate, key = own_certificate(tmp_path, "gp.example")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(certificate))
    server.load_cert_chain(certificate, key)
    if strict:
        # As Python 3.13 has it by default.
        client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server, client, "other.example")


def test_its_key_signs_no_other_name(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path, "127.0.0.1")
    authority = x509.load_pem_x509_certificate(certificate.read_bytes())
    stolen = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(stolen, ec.EllipticCurvePrivateKey)
    other = ec.generate_private_key(ec.SECP256R1())
    forged = (
        x509.CertificateBuilder(authority.subject, x509.Name([]), other.public_key(), x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("bank.example")]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(stolen, hashes.SHA256())
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    content = forged.public_bytes(serialization.Encoding.PEM) + certificate.read_bytes()
    (tmp_path / "forged.pem").write_bytes(content + other.private_bytes(serialization.Encoding.PEM, *plain))
    for partial in (0, ssl.VERIFY_X509_PARTIAL_CHAIN):
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(certificate))
        server.load_cert_chain(tmp_path / "forged.pem")
        client.verify_flags |= partial
        with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
            handshake(server, client, "bank.example")


def test_an_authority_that_an_earlier_version_made_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        constraints = x509.BasicConstraints
        patch.setattr(x509, "BasicConstraints", lambda ca, path_length: constraints(True, 0))
        earlier = own_certificate(tmp_path, "localhost")[0].read_bytes()
    certificate, _ = own_certificate(tmp_path, "localhost")
    assert certificate.read_bytes() != earlier
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n"])
def test_what_is_no_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.pem").write_bytes(content)
    with pytest.raises(InputError, match=r"certificate cannot be used .*c\.pem"):
        checked_certificate(tmp_path / "c.pem", None)
    with pytest.raises(InputError, match=r"certificate cannot be used .*missing\.pem"):
        checked_certificate(tmp_path / "missing.pem", None)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    certificate, _ = own_certificate(tmp_path / "one", "localhost")
    _, key = own_certificate(tmp_path / "two", "localhost")
    with pytest.raises(InputError, match="belonging to the"):
        checked_certificate(certificate, key)


def test_plain_http_beyond_this_machine_has_to_be_asked_for(tmp_path: Path) -> None:
    token, folder = "a-token-for-these-tests-alone", str(tmp_path)
    with pytest.raises(UsageError, match="--https .*--plain-http"):
        ServiceSettings(folder, host="0.0.0.0", token=token)
    for tls in ({"https": True}, {"https_cert": "c.pem"}, {"plain_http": True}):
        assert ServiceSettings(folder, host="0.0.0.0", token=token, **tls).speaks_tls == ("plain_http" not in tls)
    assert not ServiceSettings(folder, token=token).speaks_tls
    with pytest.raises(UsageError, match="leave one of them out"):
        ServiceSettings(folder, token=token, https=True, plain_http=True)
    with pytest.raises(UsageError, match="got --https and --https-cert"):
        ServiceSettings(folder, token=token, https=True, https_cert="c.pem")
    with pytest.raises(UsageError, match="without --https-cert"):
        ServiceSettings(folder, token=token, https_key="k.pem")


@pytest.mark.long
def test_a_service_with_tls_is_trusted_by_its_users_commands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with service_process(tmp_path / "queue", tmp_path, "--https", token=None) as service:
        assert service.url.startswith("https://127.0.0.1:")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            service.client.get("/healthz")
        context = ssl.create_default_context(cafile=str(tmp_path / "queue" / "certificate.pem"))
        with httpx.Client(base_url=service.url, verify=context, trust_env=False) as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            assert client.get("/v1/jobs", headers=BEARER).status_code == 401
        with pytest.raises(httpx.HTTPError):
            httpx.get(service.url.replace("https", "http") + "/healthz", trust_env=False)
        for options in ((), ("--service", service.url)):
            assert "jobs" in run_json("jobs", *options)
        code, _, err = service.stop()
    assert code == 0
    assert "SSL_CERT_FILE=" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_service_with_tls_starts_again_with_the_certificate_that_it_has_made(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir(0o700)
    made = own_certificate(tmp_path / "queue", "127.0.0.1")[0].read_bytes()
    with service_process(tmp_path / "queue", tmp_path, "--https") as service:
        assert service.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / "queue" / "certificate.pem"))
        assert httpx.get(f"{service.url}/healthz", verify=context, trust_env=False).status_code == 200
        assert service.stop()[0] == 0
    assert (tmp_path / "queue" / "certificate.pem").read_bytes() == made
