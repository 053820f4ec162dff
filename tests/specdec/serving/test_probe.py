"""The health check of the images."""

from __future__ import annotations

import asyncio

import pytest

from specdec.serving.health import Health
from specdec.serving.health_port import HealthPort
from specdec.serving.probe import is_alive, main, probe_address


@pytest.mark.parametrize(
    ("name", "environment", "address"),
    [
        ("draft", {}, "127.0.0.1:50051"),
        ("target", {"SPECDEC_TARGET_HOST": "0.0.0.0", "SPECDEC_TARGET_PORT": "7000"}, "127.0.0.1:7000"),  # noqa: S104
        ("target", {"SPECDEC_DRAFT_PORT": "7000"}, "127.0.0.1:50052"),
        ("orchestrator", {"SPECDEC_ORCHESTRATOR_HOST": "::"}, "[::1]:50050"),
        ("orchestrator", {"SPECDEC_ORCHESTRATOR_HOST": "10.0.0.7"}, "10.0.0.7:50050"),
        ("draft", {"SPECDEC_DRAFT_HEALTH_PORT": "7001", "SPECDEC_DRAFT_TLS_CERT": "draft.pem"}, "127.0.0.1:7001"),
    ],
)
def test_it_asks_where_the_service_answers(name: str, environment: dict[str, str], address: str) -> None:
    assert probe_address(name, environment) == address


def test_with_tls_it_needs_a_port_for_health(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draft"], {"SPECDEC_DRAFT_TLS_CERT": "draft.pem"}) == 1
    assert "SPECDEC_DRAFT_HEALTH_PORT" in capsys.readouterr().err


async def test_it_says_whether_the_service_is_alive(capsys: pytest.CaptureFixture[str]) -> None:
    health = Health([])
    port = HealthPort(health)
    await port.listen("127.0.0.1", 0)
    environment = {"SPECDEC_TARGET_PORT": str(port.port)}
    # Not ready and alive: a model that loads is no reason for a restart.
    assert await asyncio.to_thread(main, ["target"], environment) == 0
    health.fail()
    assert await asyncio.to_thread(main, ["target"], environment) == 1
    await port.close()
    assert not await asyncio.to_thread(is_alive, f"127.0.0.1:{port.port}")
    assert "does not say that it is alive" in capsys.readouterr().err
