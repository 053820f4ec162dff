"""Certificates for tests, made on the spot."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from specdec.serving.certificates import CertificateFiles

LOCAL = ("localhost", "127.0.0.1")
_DAY = datetime.timedelta(days=1)


class CertificateAuthority:
    """Signs certificates and writes them into a directory.

    Args:
        directory: where; `NAME.pem` and `NAME.key`, and `ca.pem` of the authority itself.
        name: of the authority.
    """

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.path = directory / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.path.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(
        self, name: str, alternative_names: Sequence[str] = LOCAL, *, is_expired: bool = False, file_name: str = ""
    ) -> CertificateFiles:
        """Make a key and a certificate for it.

        Args:
            name: common name.
            alternative_names: host names, addresses, and URIs.
            is_expired: it was good until yesterday.
            file_name: of the files, if not `name`; they are overwritten.

        Returns:
            the files, with this authority as the one of the other end.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key.public_key(), is_expired=is_expired)
        if alternative_names:
            names = [_general_name(alternative) for alternative in alternative_names]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        files = CertificateFiles(
            self.directory / f"{file_name or name}.pem", self.directory / f"{file_name or name}.key", self.path
        )
        assert files.chain is not None
        assert files.key is not None
        files.chain.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def common_name(certificate: bytes) -> str:
    """Of a certificate in DER form."""
    (attribute,) = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, is_expired: bool = False
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * _DAY)
        .not_valid_after(now - _DAY if is_expired else now + _DAY)
    )


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
