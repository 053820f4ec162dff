from __future__ import annotations

from typing import Any, cast

import pytest

from specdec.serving.refused_callers import RefusedCallers


class Caller:
    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"


def test_the_first_is_told_and_the_rest_by_the_minute(caplog: pytest.LogCaptureFixture) -> None:
    seconds = [100.0]
    refused = RefusedCallers(lambda: seconds[0])
    context = cast("Any", Caller())
    for _ in range(5):
        refused.note(context)
    seconds[0] += 61
    for _ in range(3):
        refused.note(context)
    rest = "refused for want of a good identity; the last came from ipv4:192.0.2.1:1"
    assert [record.message for record in caplog.records] == [f"a call was {rest}", f"5 calls were {rest}"]
