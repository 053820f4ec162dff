"""Three processes with certificates, a shared secret and a token between them and to the client."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from specdec.cli.service_group import ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient
from specdec.serving.certificates import CertificateFiles
from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.token_file import entry_for
from specdec.serving.token_limits import Limits
from specdec.v1 import target_pb2, target_pb2_grpc
from tests.certificate_authority import CertificateAuthority
from tests.end_to_end.draft_models import save_wrong_draft
from tests.end_to_end.requests import chat_request

SECRET = "the-secret-of-this-test-0123456789"  # noqa: S105
TOKEN = "the-token-of-this-test-9876543210"  # noqa: S105


async def called(address: str, security: ChannelSecurity | None) -> grpc.StatusCode:
    """How a target answers somebody who calls it directly."""
    async with open_channel(address, max_message_bytes=1 << 24, security=security) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        try:
            await stub.GetModelInfo(target_pb2.TargetServiceGetModelInfoRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_text_comes_through_and_nobody_else_gets_in(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    secret_file, token_file = tmp_path / "secret", tmp_path / "tokens"
    secret_file.write_bytes(SECRET.encode())
    token_file.write_bytes(entry_for(TOKEN, "alice", Limits()).line().encode())
    environment = {
        f"SPECDEC_{name}_{variable}": str(path)
        for name in ("TARGET", "DRAFT", "ORCHESTRATOR")
        for variable, path in (("TLS_CA", authority.path), ("SHARED_SECRET_FILE", secret_file))
    }
    for name in ("target", "draft"):
        files = authority.issue(name)
        environment[f"SPECDEC_{name.upper()}_TLS_CERT"] = str(files.chain)
        environment[f"SPECDEC_{name.upper()}_TLS_KEY"] = str(files.key)
        environment[f"SPECDEC_{name.upper()}_ALLOWED_PEERS"] = "orchestrator.example"
    own = authority.issue("orchestrator", ("127.0.0.1", "orchestrator.example"))
    services = ThreeServices(
        model=str(save_wrong_draft(tmp_path / "model")),
        drafter="ngram",
        num_threads=1,
        drain_seconds=2,
        tls_cert=own.chain,
        tls_key=own.key,
        token_file=token_file,
        target_arguments=("--linear-kernel=default",),
        environment=environment,
    )
    lines: list[str] = []
    specs = services.specs()
    async with ServiceGroup(specs, on_line=lambda name, line: lines.append(line), drain_seconds=2) as group:
        trusting = ChannelSecurity(files=CertificateFiles(authorities=authority.path))
        holder = ChannelSecurity(files=trusting.files, secret=lambda: TOKEN)
        request = chat_request("Say something that nobody has said.", max_new_tokens=8)
        async with GenerationClient(group.address, timeout_seconds=60, security=holder) as client:
            assert len((await client.collect(request)).token_ids) == 8
        async with GenerationClient(group.address, timeout_seconds=60, security=trusting) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.collect(request)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

        target = specs[0].address
        draft = ChannelSecurity(files=authority.issue("draft"), secret=lambda: SECRET)
        assert await called(target, ChannelSecurity(files=own, secret=lambda: SECRET)) is grpc.StatusCode.OK
        assert await called(target, ChannelSecurity(files=own, secret=lambda: TOKEN)) is grpc.StatusCode.UNAUTHENTICATED
        assert await called(target, draft) is grpc.StatusCode.PERMISSION_DENIED
        assert await called(target, trusting) is grpc.StatusCode.UNAVAILABLE
        assert await called(target, None) is grpc.StatusCode.UNAVAILABLE
    told = "\n".join(lines)
    assert not any(said in told for said in (SECRET, TOKEN, "PRIVATE KEY", "Say something"))
    assert "refused for want of a good identity" in told
