from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import grpc
import pytest

from specdec.serving.certificates import CertificateFiles
from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.peer_gate import PeerGate
from specdec.serving.security_error import SecurityError
from specdec.serving.server_certificates import load_certificates
from specdec.serving.server_security import ServerSecurity
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.certificate_authority import CertificateAuthority, common_name
from tests.orchestrator.serving import until
from tests.specdec.serving.secured import attempt, is_healthy, refusal, secured
from tests.specdec.serving.toy_process import rest_of
from tests.specdec.serving.toy_service import MAX_MESSAGE_BYTES, ToyService

pytestmark = pytest.mark.timeout(60)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "good")


@pytest.fixture
def stranger(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "strange", "stranger")


def only_trusting(files: CertificateFiles) -> ChannelSecurity:
    """A client that checks the server and has no certificate."""
    return ChannelSecurity(files=CertificateFiles(authorities=files.authorities))


def tls(files: CertificateFiles, *, mutual: bool = False, peers: tuple[str, ...] = ()) -> ServerSecurity:
    files = CertificateFiles(files.chain, files.key, files.authorities if mutual else None)
    return ServerSecurity(certificates=load_certificates(files), gates=[PeerGate(None, peers)] if peers else [])


async def shown_by(port: int) -> str:
    """Common name in the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return common_name(certificate)


async def test_tls_lets_in_who_knows_the_authority(authority: CertificateAuthority) -> None:
    async with secured(tls(authority.issue("server"))) as host:
        client = only_trusting(authority.issue("client"))
        assert await attempt(host.address, client) is None
        assert await is_healthy(host.address, client)


async def test_a_server_is_refused_by_its_certificate(
    authority: CertificateAuthority, stranger: CertificateAuthority
) -> None:
    client = only_trusting(authority.issue("client"))
    for files in (
        stranger.issue("server"),
        authority.issue("expired", is_expired=True),
        authority.issue("elsewhere", ("elsewhere.example",)),
    ):
        async with secured(tls(files)) as host:
            assert await refusal(host.address, client) is UNAVAILABLE


async def test_another_name_may_be_expected_of_a_server(authority: CertificateAuthority) -> None:
    files = authority.issue("server", ("targets.example",))
    async with secured(tls(files)) as host:
        expecting = ChannelSecurity(files=CertificateFiles(authorities=authority.path), server_name="targets.example")
        assert await attempt(host.address, expecting) is None


async def test_plaintext_to_a_tls_port_and_tls_to_a_plaintext_port_are_refused(
    authority: CertificateAuthority,
) -> None:
    async with secured(tls(authority.issue("server"))) as host:
        assert await refusal(host.address) is UNAVAILABLE
    async with secured(ServerSecurity()) as host:
        assert await refusal(host.address, only_trusting(authority.issue("client"))) is UNAVAILABLE


async def test_a_client_is_refused_by_its_certificate_or_for_want_of_one(
    authority: CertificateAuthority, stranger: CertificateAuthority
) -> None:
    async with secured(tls(authority.issue("server"), mutual=True)) as host:
        good = authority.issue("client")
        assert await attempt(host.address, ChannelSecurity(files=good)) is None
        assert await refusal(host.address, only_trusting(good)) is UNAVAILABLE
        for files in (stranger.issue("client"), authority.issue("expired", is_expired=True)):
            security = ChannelSecurity(files=CertificateFiles(files.chain, files.key, authority.path))
            assert await refusal(host.address, security) is UNAVAILABLE


async def test_only_certificates_with_an_allowed_name_are_served(authority: CertificateAuthority) -> None:
    allowed = ("orchestrator.example", "spiffe://cluster/orchestrator", "plain-name")
    async with secured(tls(authority.issue("server"), mutual=True, peers=allowed)) as host:
        for index, names in enumerate((("orchestrator.example",), ("spiffe://cluster/orchestrator",), ())):
            files = authority.issue("plain-name", names, file_name=f"good-{index}")
            assert await attempt(host.address, ChannelSecurity(files=files)) is None
        # A common name counts only where there is no other name.
        for index, names in enumerate((("draft.example",), ("127.0.0.1", "xorchestrator.example"))):
            other = ChannelSecurity(files=authority.issue("plain-name", names, file_name=f"other-{index}"))
            assert await refusal(host.address, other) is grpc.StatusCode.PERMISSION_DENIED
            assert await is_healthy(host.address, other)


async def test_health_has_a_plaintext_port_of_its_own_that_serves_nothing_else(authority: CertificateAuthority) -> None:
    security = ServerSecurity(
        certificates=load_certificates(authority.issue("server")), health_port=0, has_reflection=True
    )
    async with secured(security) as host:
        assert host.health_address != host.address
        assert await is_healthy(host.health_address)
        assert await refusal(host.health_address) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_new_certificate_is_shown_to_new_connections_and_streams_survive(
    authority: CertificateAuthority,
) -> None:
    files = authority.issue("first", file_name="server")
    security = tls(files, mutual=True)
    client = ChannelSecurity(files=authority.issue("client"))
    async with (
        secured(security, ToyService(pause_seconds=0.02)) as host,
        open_channel(host.address, max_message_bytes=MAX_MESSAGE_BYTES, security=client) as channel,
    ):
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        stream = stub.Generate(generation_pb2.GenerateRequest(max_new_tokens=150))
        await stream.read()
        assert await shown_by(host.port) == "first"
        authority.issue("second", file_name="server")
        assert security.certificates is not None
        certificates, before = security.certificates, security.certificates.value
        await until(lambda: certificates.value is not before)
        assert await shown_by(host.port) == "second"
        assert await attempt(host.address, client) is None
        texts = await rest_of(stream)
        assert len(texts) >= 149
        assert await stream.code() is grpc.StatusCode.OK


async def test_clients_of_another_authority_are_served_once_it_is_in_the_file(
    authority: CertificateAuthority, stranger: CertificateAuthority
) -> None:
    security = tls(authority.issue("server"), mutual=True)
    files = stranger.issue("client")
    client = ChannelSecurity(files=CertificateFiles(files.chain, files.key, stranger.path.with_name("both.pem")))
    stranger.path.with_name("both.pem").write_bytes(authority.path.read_bytes())
    async with secured(security) as host:
        assert await refusal(host.address, client) is UNAVAILABLE
        authority.path.write_bytes(authority.path.read_bytes() + stranger.path.read_bytes())
        assert security.certificates is not None
        security.certificates.refresh()
        assert await attempt(host.address, client) is None


async def test_a_broken_new_certificate_leaves_the_old_one(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = authority.issue("server")
    security = tls(files)
    assert security.certificates is not None
    assert files.key is not None
    async with secured(security) as host:
        good_key = files.key.read_bytes()
        files.key.write_bytes((authority.issue("other").key or Path()).read_bytes())
        for _ in range(4):
            security.certificates.refresh()
        assert await shown_by(host.port) == "server"
        assert await attempt(host.address, only_trusting(files)) is None
        (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert "stays as it was" in line
        assert "server.key is not the one of the certificate" in line
        files.key.write_bytes(good_key)
        authority.issue("newer", file_name="server")
        security.certificates.refresh()
        assert await shown_by(host.port) == "newer"
    assert "PRIVATE" not in caplog.text


async def test_a_channel_opened_anew_reads_the_files_anew(
    authority: CertificateAuthority, stranger: CertificateAuthority
) -> None:
    async with secured(tls(authority.issue("server"), mutual=True)) as host:
        files = authority.issue("client")
        assert files.chain is not None
        assert files.key is not None
        client = ChannelSecurity(files=files)
        kept = files.chain.read_bytes(), files.key.read_bytes()
        bad = stranger.issue("client")
        files.chain.write_bytes((bad.chain or Path()).read_bytes())
        files.key.write_bytes((bad.key or Path()).read_bytes())
        assert await refusal(host.address, client) is UNAVAILABLE
        files.chain.write_bytes(kept[0])
        files.key.write_bytes(kept[1])
        assert await attempt(host.address, client) is None
        files.key.unlink()
        with pytest.raises(SecurityError, match=r"client\.key cannot be read"):
            await attempt(host.address, client)


async def test_a_connection_that_says_nothing_is_closed(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.serving.channel.HANDSHAKE_TIMEOUT_SECONDS", 0.3)
    async with secured(tls(authority.issue("server"))) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
