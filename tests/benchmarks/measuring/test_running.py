"""How a benchmark's command ends."""

from __future__ import annotations

import grpc
import pytest
import typer

from benchmarks.measuring.running import run_or_exit
from specdec.cli.service_group import ServiceFailedError


class OwnError(Exception):
    """Of one benchmark."""


async def ending(failure: Exception | None) -> int:
    if failure is not None:
        raise failure
    return 7


def test_what_the_work_gives_is_given() -> None:
    assert run_or_exit("load", ending(None)) == 7


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ServiceFailedError("the target ended"), "benchmarks.load: the target ended"),
        (OSError("no such file"), "benchmarks.load: no such file"),
        (OwnError("too short"), "benchmarks.load: too short"),
        (
            grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="nobody is there"
            ),
            "benchmarks.load: UNAVAILABLE: nobody is there",
        ),
    ],
)
def test_what_may_go_wrong_is_one_message(failure: Exception, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        run_or_exit("load", ending(failure), OwnError)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == message + "\n"


def test_a_bug_stays_one() -> None:
    with pytest.raises(OwnError):
        run_or_exit("load", ending(OwnError("not expected here")))
