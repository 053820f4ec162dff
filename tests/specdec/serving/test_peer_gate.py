from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.reloaded import Reloadable
from specdec.serving.security_error import SecurityError
from specdec.serving.server_security import ServerSecurity
from specdec.serving.service_security import service_security
from target_service.settings import TargetSettings
from tests.certificate_authority import CertificateAuthority
from tests.specdec.serving.secured import OTHER_SECRET, SECRET, attempt, is_healthy, refusal, secured

pytestmark = pytest.mark.timeout(60)

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


def security_with(**settings: object) -> ServerSecurity:
    return service_security(TargetSettings.model_validate(settings))


def replace(path: Path, text: str, reloadable: Reloadable) -> None:
    path.write_text(text)
    reloadable.refresh()


def knowing(secret: str) -> ChannelSecurity:
    return ChannelSecurity(secret=lambda: secret)


async def test_only_who_knows_the_secret_is_served_but_health_is_for_all(secret_file: Path) -> None:
    async with secured(security_with(shared_secret_file=secret_file, reflection=True)) as host:
        assert await attempt(host.address, knowing(SECRET)) is None
        assert await is_healthy(host.address)
        assert await refusal(host.address) is UNAUTHENTICATED
        assert await refusal(host.address, knowing(OTHER_SECRET)) is UNAUTHENTICATED


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", f"Bearer {SECRET[:-1]}")],
        [("authorization", f"Bearer {SECRET}x")],
        [("authorization", f"Bearer  {SECRET}")],
        [("authorization", f"Basic {SECRET}")],
        [("authorization", SECRET)],
        [("authorization", "")],
        [("authorization", f"Bearer {SECRET}"), ("authorization", f"Bearer {SECRET}")],
        [("authorization-bin", f"Bearer {SECRET}".encode())],
        [("x-authorization", f"Bearer {SECRET}")],
    ],
)
async def test_what_is_nearly_the_secret_is_refused_alike(
    secret_file: Path, metadata: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(security_with(shared_secret_file=secret_file)) as host:
        missing = await attempt(host.address)
        wrong = await attempt(host.address, metadata=tuple(metadata))
    assert missing is not None
    assert wrong is not None
    assert (wrong.code(), wrong.details()) == (UNAUTHENTICATED, missing.details())
    assert SECRET[:-1] not in caplog.text


async def test_a_method_that_there_is_not_is_no_way_to_ask_without_a_secret(secret_file: Path) -> None:
    async with (
        secured(security_with(shared_secret_file=secret_file)) as host,
        grpc.aio.insecure_channel(host.address) as channel,
    ):
        for method in ("/specdec.v1.GenerationService/Nothing", "/grpc.health.v1.Health/List", "/x", "/"):
            call: Any = channel.unary_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"", timeout=5)
            assert refused.value.code() is UNAUTHENTICATED


async def test_a_secret_is_replaced_without_a_call_refused(secret_file: Path) -> None:
    security = security_with(shared_secret_file=secret_file)
    (secrets,) = security.secrets
    async with secured(security) as host:
        replace(secret_file, f"{OTHER_SECRET}\n{SECRET}\n", secrets)
        assert await attempt(host.address, knowing(SECRET)) is None
        assert await attempt(host.address, knowing(OTHER_SECRET)) is None
        replace(secret_file, f"{OTHER_SECRET}\n", secrets)
        assert await refusal(host.address, knowing(SECRET)) is UNAUTHENTICATED
        assert await attempt(host.address, knowing(OTHER_SECRET)) is None


async def test_secret_and_certificate_are_both_needed_if_both_are_asked_for(secret_file: Path, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    files = authority.issue("target")
    security = security_with(
        shared_secret_file=secret_file,
        tls_cert=files.chain,
        tls_key=files.key,
        tls_ca=files.authorities,
        allowed_peers=" orchestrator.example , other.example",
    )
    good = authority.issue("orchestrator", ("orchestrator.example",))
    async with secured(security) as host:
        assert await attempt(host.address, ChannelSecurity(files=good, secret=lambda: SECRET)) is None
        assert await refusal(host.address, ChannelSecurity(files=good)) is UNAUTHENTICATED
        draft = ChannelSecurity(files=authority.issue("draft", ("draft.example",)), secret=lambda: SECRET)
        assert await refusal(host.address, draft) is grpc.StatusCode.PERMISSION_DENIED
        assert await is_healthy(host.address, draft)


def test_a_secret_that_cannot_be_used_is_named_by_its_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for content in ("", "short", "with spaces in between it", "ünsendable-" + SECRET, f"{SECRET}\nshort"):
        path.write_text(content)
        with pytest.raises(SecurityError, match="must hold secrets of at least 16") as refused:
            security_with(shared_secret_file=path)
        assert not content or content not in str(refused.value)
    path.unlink()
    with pytest.raises(SecurityError, match="secret cannot be read: no such file"):
        security_with(shared_secret_file=path)
