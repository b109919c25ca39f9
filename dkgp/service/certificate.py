"""TLS of the service: a certificate that is named, or one that it makes and keeps in its own folder."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dkgp.data.remote.storage import TEMPORARY_PREFIX, translate_write_errors
from dkgp.errors import InputError

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

CERTIFICATE_NAME, KEY_NAME = "certificate.pem", "certificate-key.pem"
# The longest time that browsers accept; a certificate is renewed this many days before its end.
VALID_DAYS, RENEWED_DAYS = 397, 30
_KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def own_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """Return certificate and key in the service's folder, made where there are none for this host, or they end soon.

    Others trust it by a copy of the file. It names this machine, `localhost` and `host`, and vouches for itself alone:
    it is no authority, so that its key signs no certificate of another name.
    """
    certificate, key = folder / CERTIFICATE_NAME, folder / KEY_NAME
    names = _names(host)
    if not _holds(certificate, key, names):
        with translate_write_errors(certificate):
            _make(certificate, key, names)
    return certificate, key


def checked_certificate(certificate: Path, key: Path | None) -> tuple[Path, Path | None]:
    """Return a certificate and its key if these PEM files can be used; `InputError` if not."""
    try:
        if b"ENCRYPTED" in (key or certificate).read_bytes():
            raise OSError("the key is encrypted")  # OpenSSL would ask for its password on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # ssl's errors are of this class too
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise InputError(
            f"the service's certificate cannot be used ({reason}): certificate '{certificate}', key "
            f"'{key or 'in the same file'}'. Expected PEM files, the key without a password and belonging to the "
            "certificate"
        ) from None
    return certificate, key


def _names(host: str) -> list[str]:
    """Names and addresses by which the service is reached."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn(), host.strip("[]")]
    return sorted({name for name in names if name and name not in ("0.0.0.0", "::")})


def _holds(certificate: Path, key: Path, names: list[str]) -> bool:
    """True if the certificate exists, is valid for all names, and does not expire soon."""
    from cryptography import x509

    try:
        checked_certificate(certificate, key)
        made = x509.load_pem_x509_certificate(certificate.read_bytes())
        alternatives = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            # An earlier version made authorities.
            return False
    except (InputError, OSError, ValueError, x509.ExtensionNotFound):
        return False
    known = {*alternatives.get_values_for_type(x509.DNSName)}
    known |= {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    ends = made.not_valid_after_utc - datetime.timedelta(days=RENEWED_DAYS)
    return set(names) <= known and datetime.datetime.now(datetime.UTC) < ends


def _make(certificate: Path, key: Path, names: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dkgp serve")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(private.public_key())
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    made = (
        x509.CertificateBuilder(subject, subject, private.public_key(), x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**dict.fromkeys(_KEY_USAGES, False), "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(private, hashes.SHA256())
    )
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for path, content in (
        (key, private.private_bytes(*forms)),
        (certificate, made.public_bytes(serialization.Encoding.PEM)),
    ):
        # Readable by its owner alone from the first moment, and never half written.
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)


def _general_name(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
