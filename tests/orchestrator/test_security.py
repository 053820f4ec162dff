from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

import orchestrator.service as service_module
from orchestrator.security import draft_security, front_security, target_security
from orchestrator.service import GenerationService
from orchestrator.settings import OrchestratorSettings
from specdec.client import GenerationResult
from specdec.endpoints import retry_seconds_of
from specdec.serving.channel import open_channel, server_options
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.host import ServiceHost
from specdec.serving.refusals import RefusalInterceptor
from specdec.serving.security_error import SecurityError
from specdec.serving.service_security import service_security
from specdec.serving.token_file import entry_for
from specdec.serving.token_limits import Limits, Rate
from specdec.v1 import generation_pb2_grpc, target_pb2_grpc
from target_service.settings import TargetSettings
from tests.certificate_authority import CertificateAuthority
from tests.orchestrator.fakes import FakeTarget
from tests.orchestrator.running import request
from tests.orchestrator.serving import until
from tests.specdec.serving.secured import until_true

pytestmark = pytest.mark.timeout(60)

SECRET = "the-secret-of-this-test-0123456789"  # noqa: S105
TOKEN = "the-token-of-this-test-9876543210"  # noqa: S105


@dataclass
class Files:
    """Certificates, a shared secret and a token file."""

    authority: CertificateAuthority
    secret: Path
    tokens: Path

    def of(self, name: str, alternative_names: tuple[str, ...] = ("127.0.0.1",)) -> dict[str, Path | None]:
        """Settings with a certificate of this name."""
        files = self.authority.issue(name, alternative_names)
        return {"tls_cert": files.chain, "tls_key": files.key, "tls_ca": files.authorities}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(CertificateAuthority(tmp_path / "authority"), tmp_path / "secret", tmp_path / "tokens")
    made.secret.write_text(SECRET)
    made.tokens.write_text(entry_for(TOKEN, "alice", Limits()).line())
    return made


@contextlib.asynccontextmanager
async def secured_target(fake: FakeTarget | None = None, /, **settings: Any) -> AsyncIterator[str]:
    """A fake target behind the certificates and the gate that these settings of a target make; gives its address."""
    security = service_security(TargetSettings.model_validate(settings))
    server = grpc.aio.server(interceptors=[RefusalInterceptor(), *security.gates], options=server_options(1 << 20))
    target_pb2_grpc.add_TargetServiceServicer_to_server(fake or FakeTarget(), server)
    credentials = security.credentials
    port = (
        server.add_insecure_port("127.0.0.1:0")
        if credentials is None
        else server.add_secure_port("127.0.0.1:0", credentials)
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def orchestrating(target: str, **settings: Any) -> AsyncIterator[tuple[GenerationService, ServiceHost]]:
    """An orchestrator with both of its sides as the settings say."""
    made = OrchestratorSettings.model_validate({"target": target, "draft": "", **settings})
    service = GenerationService(made)
    host = ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=1, security=front_security(made))
    async with host:
        yield service, host


async def ask(address: str, security: ChannelSecurity | None, max_new_tokens: int = 8) -> GenerationResult:
    """The whole stream of a request."""
    result = GenerationResult()
    async with open_channel(address, max_message_bytes=1 << 20, security=security) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        async for response in stub.Generate(request(max_new_tokens=max_new_tokens), timeout=10):
            result.add(response)
    return result


async def is_known(address: str, security: ChannelSecurity) -> bool:
    """Whether a token is good."""
    try:
        await ask(address, security, 1)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise
        return False
    return True


async def test_certificates_a_secret_and_a_token_let_text_through(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    target_settings = {**files.of("target"), "allowed_peers": "orchestrator.example"}
    front = {**files.of("orchestrator", ("127.0.0.1", "orchestrator.example")), "token_file": files.tokens}
    async with (
        secured_target(**target_settings, shared_secret_file=files.secret) as target,
        orchestrating(target, **front, shared_secret_file=files.secret) as (service, host),
    ):
        await until(lambda: service.targets.is_available)
        trusting = target_security(OrchestratorSettings(tls_ca=files.authority.path))
        assert trusting is not None
        client = ChannelSecurity(files=trusting.files, secret=lambda: TOKEN)
        assert len((await ask(host.address, client)).token_ids) == 8
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(host.address, trusting)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("lacking", ["secret", "certificate", "name", "authority"])
async def test_a_target_takes_no_orchestrator_that_lacks_something(
    files: Files, tmp_path: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    other_secret = tmp_path / "other-secret"
    other_secret.write_text("another-secret-of-this-test-98765")
    own: dict[str, Any] = {**files.of("orchestrator", ("orchestrator.example",)), "shared_secret_file": files.secret}
    if lacking == "secret":
        own["shared_secret_file"] = other_secret
    elif lacking == "certificate":
        own["tls_cert"] = own["tls_key"] = None
    elif lacking == "name":
        own.update(files.of("orchestrator", ("draft.example",)))
    else:
        stranger = CertificateAuthority(tmp_path / "strange").issue("orchestrator")
        own.update(tls_cert=stranger.chain, tls_key=stranger.key)
    settings = {**files.of("target"), "allowed_peers": "orchestrator.example", "shared_secret_file": files.secret}
    async with secured_target(**settings) as target, orchestrating(target, **own) as (service, host):
        # What clients hear of it says no more than that.
        await until(lambda: "not connected yet" not in service.targets.problem and bool(service.targets.links))
        assert not service.targets.is_available
        assert not host.health.is_serving
        problem = service.targets.problem
    expected = {"secret": "UNAUTHENTICATED", "name": "PERMISSION_DENIED"}.get(lacking, "UNAVAILABLE")
    assert problem.startswith(expected)
    assert not any(secret in problem + caplog.text for secret in (SECRET, other_secret.read_text()))


async def test_a_link_that_was_refused_comes_up_with_the_right_secret(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_secret = tmp_path / "own-secret"
    own_secret.write_text("another-secret-of-this-test-98765")
    async with (
        secured_target(shared_secret_file=files.secret) as target,
        orchestrating(target, shared_secret_file=own_secret) as (service, _),
    ):
        await until(lambda: service.targets.problem.startswith("UNAUTHENTICATED"))
        own_secret.write_bytes(b"")
        await until(lambda: "cannot be used, see its log" in service.targets.problem)
        # Clients hear of the problem, but not of the file.
        assert "own-secret must hold secrets" in caplog.text
        own_secret.write_bytes(files.secret.read_bytes())
        await until(lambda: service.targets.is_available)


async def test_prompt_and_generated_tokens_count_against_the_limit(files: Files) -> None:
    # A request of 3 and 8 tokens may take 11.
    files.tokens.write_bytes(entry_for(TOKEN, "alice", Limits(tokens=Rate(30, "m"))).line().encode())
    client = ChannelSecurity(secret=lambda: TOKEN)
    async with secured_target() as target, orchestrating(target, token_file=files.tokens) as (service, host):
        await until(lambda: service.targets.is_available)
        for _ in range(2):
            assert len((await ask(host.address, client)).token_ids) == 8
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(host.address, client)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        retry_seconds = retry_seconds_of(refused.value)
        assert retry_seconds is not None
        assert 0 < retry_seconds < 7
        # 8 are left, and a prompt of 3 with 5 new ones takes that.
        assert len((await ask(host.address, client, 5)).token_ids) == 5


async def test_a_client_that_stops_reading_loses_its_request_behind_the_gate_too(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_STALLED_READER_SECONDS", 0.5)
    fake = FakeTarget(max_context_length=100_000)

    def verbose(_: Any, event: Any) -> list[Any]:
        verdict = event.opened.first if event.HasField("opened") else event.verdict
        verdict.logprobs.add(top_token_ids=range(5000))
        return [event]

    fake.change = verbose
    files.tokens.write_bytes(entry_for(TOKEN, "alice", Limits(concurrent=1)).line().encode())
    client = ChannelSecurity(secret=lambda: TOKEN)
    async with (
        secured_target(fake) as target,
        orchestrating(target, token_file=files.tokens) as (service, host),
        open_channel(host.address, max_message_bytes=1 << 20, security=client) as channel,
    ):
        await until(lambda: service.targets.is_available)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(request(max_new_tokens=50_000, num_draft_tokens=0))
        await until(lambda: bool(fake.sequences))
        await until(lambda: not fake.sequences, 15)
        with pytest.raises(grpc.aio.AioRpcError, match="nothing was read"):
            async for _ in call:
                pass
        fake.change = FakeTarget().change
        assert len((await ask(host.address, client)).token_ids) == 8


async def test_a_changed_token_file_holds_without_a_restart(files: Files) -> None:
    async with secured_target() as target, orchestrating(target, token_file=files.tokens) as (service, host):
        await until(lambda: service.targets.is_available)
        new = ChannelSecurity(secret=lambda: "a-new-token-of-this-test-0123456789")
        files.tokens.write_bytes(entry_for("a-new-token-of-this-test-0123456789", "bob", Limits()).line().encode())
        await until_true(lambda: is_known(host.address, new))
        assert not await is_known(host.address, ChannelSecurity(secret=lambda: TOKEN))


def test_links_are_plaintext_unless_something_is_said(files: Files) -> None:
    assert target_security(OrchestratorSettings()) is None
    assert draft_security(OrchestratorSettings()) is None
    links = target_security(OrchestratorSettings(shared_secret_file=files.secret))
    assert links is not None
    assert links.files is None


@pytest.mark.parametrize(
    ("target", "given", "expected"),
    [
        ("dns:///targets.example:50052", "", "targets.example"),
        ("dns:///targets.example:50052, dns:///targets.example:50053", "", "targets.example"),
        ("dns:///targets.example:50052,dns:///others.example:50052", "", ""),
        ("dns:///targets.example:50052,10.0.0.1:50052", "", ""),
        ("10.0.0.1:50052", "", ""),
        ("dns:///targets.example:50052", "target.internal", "target.internal"),
    ],
)
def test_replicas_that_are_found_by_name_must_have_it(files: Files, target: str, given: str, expected: str) -> None:
    settings = OrchestratorSettings(target=target, target_tls_name=given, draft="", tls_ca=files.authority.path)
    security = target_security(settings)
    assert security is not None
    assert security.server_name == expected


def test_a_secret_does_not_go_to_other_machines_in_plaintext(files: Files) -> None:
    settings = {"target": "127.0.0.1:1,dns:///targets.example:50052", "draft": "", "shared_secret_file": files.secret}
    with pytest.raises(SecurityError, match=r"not sent to dns:///targets\.example:50052 without TLS"):
        front_security(OrchestratorSettings.model_validate(settings))
    front_security(OrchestratorSettings.model_validate({**settings, "insecure_secret": True}))
    front_security(OrchestratorSettings.model_validate({**settings, "tls_ca": files.authority.path}))


def test_files_of_the_links_are_checked_at_the_start(files: Files, tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="nothing cannot be read"):
        front_security(OrchestratorSettings(tls_ca=tmp_path / "nothing"))
    with pytest.raises(SecurityError, match="nothing cannot be read"):
        front_security(OrchestratorSettings(token_file=tmp_path / "nothing"))
    with pytest.raises(SecurityError, match="holds no certificates"):
        front_security(OrchestratorSettings(tls_ca=files.secret))


async def test_a_token_sends_requests_of_its_tenant_only(files: Files) -> None:
    files.tokens.write_bytes(entry_for(TOKEN, "alice", Limits(), "acme").line().encode())
    client = ChannelSecurity(secret=lambda: TOKEN)
    async with (
        secured_target() as target,
        orchestrating(target, token_file=files.tokens) as (service, host),
        open_channel(host.address, max_message_bytes=1 << 20, security=client) as channel,
    ):
        await until(lambda: service.targets.is_available)
        assert len((await ask(host.address, client)).token_ids) == 8
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Generate(request(tenant="somebody"), timeout=10):
                pass
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_plaintext_to_other_machines_is_warned_of(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = OrchestratorSettings(target="127.0.0.1:1,targets.example:50052", draft="127.0.0.1:2")
    front_security(elsewhere)
    (line,) = [record.message for record in caplog.records]
    assert line == "what goes to targets.example:50052 is not encrypted, prompts included; set --tls-ca"
    caplog.clear()
    front_security(elsewhere.model_copy(update={"tls_ca": files.authority.path}))
    front_security(OrchestratorSettings())
    assert not caplog.records
