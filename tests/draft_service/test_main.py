from __future__ import annotations

import pytest

from tests.specdec.serving.toy_process import toy_process

pytestmark = pytest.mark.timeout(60)


async def test_the_process_keeps_to_what_is_said_about_callers() -> None:
    async with toy_process("--shared-secret-file=nothing", "--port=0", module="draft_service") as process:
        assert await process.status() == 1
    (line,) = process.lines
    assert "cannot start: nothing cannot be read: no such file" in line
