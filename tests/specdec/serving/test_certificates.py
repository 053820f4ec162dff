from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from specdec.serving.certificates import CertificateFiles
from specdec.serving.security_error import SecurityError
from tests.certificate_authority import CertificateAuthority


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


def refusal(*paths: Path | None) -> str:
    with pytest.raises(SecurityError) as refused:
        CertificateFiles(*paths).read()
    message = str(refused.value)
    assert "BEGIN" not in message
    return message


def test_files_that_fit_are_read(authority: CertificateAuthority) -> None:
    files = authority.issue("server")
    assert files.chain is not None
    assert files.key is not None
    content = files.read()
    assert (content.chain, content.key) == (files.chain.read_bytes(), files.key.read_bytes())
    assert content.authorities == authority.path.read_bytes()
    assert "PRIVATE" not in repr(content)
    assert CertificateFiles().read() == CertificateFiles().content()


def test_half_a_pair_is_refused(authority: CertificateAuthority) -> None:
    files = authority.issue("server")
    assert "a TLS certificate without its key" in refusal(files.chain)
    assert "a TLS key without its certificate" in refusal(None, files.key)


def test_what_does_not_fit_is_named_by_its_files(authority: CertificateAuthority, tmp_path: Path) -> None:
    files, other = authority.issue("server"), authority.issue("other")
    assert "other.key is not the one of the certificate in" in refusal(files.chain, other.key)
    assert "key holds no certificate in PEM form, or" in refusal(files.key, files.key)
    assert "no private key" in refusal(files.chain, files.chain)
    assert "nothing cannot be read: no such file" in refusal(files.chain, tmp_path / "nothing")
    assert "nothing cannot be read: no such file" in refusal(None, None, tmp_path / "nothing")
    assert "server.key holds no certificates" in refusal(None, None, files.key)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for name in ("empty", "binary"):
        assert "holds no certificates" in refusal(None, None, tmp_path / name)
        assert "no private key" in refusal(files.chain, tmp_path / name)


def test_an_encrypted_key_is_refused_without_asking_for_a_passphrase(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    assert "encrypted.key is encrypted; give one without a passphrase" in refusal(
        authority.issue("server").chain, encrypted
    )


def test_files_that_change_while_they_are_read_are_not_used(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.issue("server")
    checked = "specdec.serving.certificates._check_authorities"
    monkeypatch.setattr(checked, lambda path, content: authority.issue("newer", file_name="server"))
    assert "changed while it was read" in refusal(files.chain, files.key, files.authorities)
