from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer

from specdec.cli.server_access import server_security
from specdec.serving.certificates import CertificateFiles
from specdec.serving.refusals import RefusalInterceptor
from specdec.serving.server_certificates import load_certificates, server_credentials
from specdec.serving.token_file import entry_for
from specdec.serving.token_gate import TokenGate
from specdec.serving.token_limits import Limits
from specdec.v1 import generation_pb2_grpc
from tests.certificate_authority import CertificateAuthority
from tests.specdec.cli.conftest import Cli
from tests.specdec.fake_generation import FULL_TEXT, FakeGeneration

TOKEN = "the-token-of-this-test-9876543210"  # noqa: S105


class NoMeter:
    """Counts nothing."""

    expected_tokens = used_tokens = 0

    def notice(self, response: object) -> None:
        pass

    def abandon(self) -> None:
        pass


@contextlib.asynccontextmanager
async def server(files: CertificateFiles | None) -> AsyncIterator[str]:
    """A generation service that wants the token, and a certificate if `files` have authorities; gives its address."""
    gate = TokenGate(lambda: [entry_for(TOKEN, "alice", Limits())], lambda request: NoMeter())
    running = grpc.aio.server(interceptors=[RefusalInterceptor(), gate])
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(FakeGeneration(), running)
    if files is None:
        port = running.add_insecure_port("127.0.0.1:0")
    else:
        port = running.add_secure_port("127.0.0.1:0", server_credentials(load_certificates(files)))
    await running.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await running.stop(None)


async def test_a_token_comes_from_a_variable_a_file_or_the_command_line(cli: Cli, tmp_path: Path) -> None:
    async with server(None) as address:
        asking = ("generate", "hello", "--server", address)
        refused = await cli.run(*asking)
        assert (refused.status, refused.out) == (1, "")
        assert "UNAUTHENTICATED" in refused.err
        file = tmp_path / "token"
        file.write_bytes(f"{TOKEN}\n".encode())
        assert (await cli.run(*asking, "--token-from", str(file))).out == FULL_TEXT + "\n"
        assert (await cli.run(*asking, "--token", TOKEN)).out == FULL_TEXT + "\n"
        cli.environment["SPECDEC_TOKEN"] = TOKEN
        assert (await cli.run(*asking)).out == FULL_TEXT + "\n"


async def test_a_token_goes_to_another_machine_over_tls_only(cli: Cli) -> None:
    cli.environment["SPECDEC_TOKEN"] = TOKEN
    for command in (("generate", "hello", "--server", "192.0.2.1:1"), ("plan", "--from-server", "192.0.2.1:1")):
        ended = await cli.run(*command)
        assert (ended.status, ended.out) == (1, "")
        assert "not sent to 192.0.2.1:1 without TLS" in ended.err
        assert TOKEN not in ended.err


async def test_certificates_let_a_client_in(cli: Cli, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    client = authority.issue("client")
    cli.environment["SPECDEC_TOKEN"] = TOKEN
    async with server(authority.issue("server")) as address:
        asking = ("generate", "hello", "--server", address)
        trusting = ("--tls-ca", str(authority.path))
        own = ("--tls-cert", str(client.chain), "--tls-key", str(client.key))
        assert (await cli.run(*asking, *trusting, *own)).out == FULL_TEXT + "\n"
        # Without a certificate; and with public authorities, which do not know this one.
        for flags in (trusting, ("--tls", *own)):
            ended = await cli.run(*asking, *flags)
            assert ended.status == 1
            assert "UNAVAILABLE" in ended.err
            assert TOKEN not in ended.err


async def test_a_plan_shows_the_token_too(cli: Cli) -> None:
    cli.environment["SPECDEC_TOKEN"] = TOKEN
    async with server(None) as address:
        ended = await cli.run("plan", "--from-server", address, "--draft-ms", "5", "--verify-ms", "20", "--json")
        # What the fake answers makes no plan, or one; in any case it let the generations in.
        assert "UNAUTHENTICATED" not in ended.err
        cli.environment.pop("SPECDEC_TOKEN")
        assert "UNAUTHENTICATED" in (await cli.run("plan", "--from-server", address)).err


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tls": True, "tls_cert": Path("a")}, "go together"),
        ({"tls_key": Path("a")}, "go together"),
        ({"tls_cert": Path("a"), "tls_key": Path("b")}, "shown over TLS"),
    ],
)
def test_half_a_configuration_is_bad_usage(given: dict[str, Any], complaint: str) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "token", "token_from"))
    with pytest.raises(typer.BadParameter, match=complaint):
        server_security(**{**nothing, "tls": False, "insecure_token": False, **given})


def test_without_options_there_is_no_security() -> None:
    assert (
        server_security(
            tls=False, tls_ca=None, tls_cert=None, tls_key=None, token="", token_from=None, insecure_token=True
        )
        is None
    )
