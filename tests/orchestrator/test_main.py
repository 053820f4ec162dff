from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.certificate_authority import CertificateAuthority
from tests.specdec.serving.toy_process import toy_process

pytestmark = pytest.mark.timeout(60)


async def test_what_strangers_send_to_a_tls_port_puts_no_lines_of_another_form_into_the_log(tmp_path: Path) -> None:
    files = CertificateAuthority(tmp_path).issue("orchestrator")
    flags = [f"--tls-cert={files.chain}", f"--tls-key={files.key}", "--port=0", "--draft=", "--log-format=json"]
    async with toy_process(*flags, module="orchestrator") as orchestrator:
        host, _, port = (await orchestrator.address()).rpartition(":")
        for content in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(content)
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        orchestrator.signal(signal.SIGTERM)
        assert await orchestrator.status() == 0
    assert all(json.loads(line)["service"] == "orchestrator" for line in orchestrator.lines)


@pytest.mark.parametrize(
    ("flags", "status", "complaint"),
    [
        (["--tls-cert=some.pem"], 2, "--tls-cert and --tls-key go together"),
        (["--tls-cert=some.pem", "--tls-key=some.key"], 1, "some.pem cannot be read: no such file"),
        (["--token-file=nothing"], 1, "nothing cannot be read: no such file"),
        (["--host=0.0.0.0"], 1, "others can reach 0.0.0.0 and there is no encryption and no authentication"),
    ],
)
async def test_what_cannot_be_had_safely_is_one_sentence_and_no_start(
    flags: list[str], status: int, complaint: str
) -> None:
    async with toy_process(*flags, "--port=0", module="orchestrator") as orchestrator:
        assert await orchestrator.status() == status
    (line,) = orchestrator.lines
    assert complaint in line
