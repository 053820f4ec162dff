from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from specdec.serving.token_file import parse_token_file
from specdec.serving.token_limits import Limits, Rate
from tests.specdec.cli.conftest import Cli


async def test_it_prints_a_token_and_its_line(cli: Cli) -> None:
    limits = ["--requests", "10/s", "--concurrent", "4", "--tokens", "100000/m"]
    ended = await cli.run("token", "new", "--name", "alice", *limits)
    assert ended.status == 0
    token, line = ended.out.splitlines()
    assert token not in ended.err
    (entry,) = parse_token_file(line, Path("tokens"))
    assert entry.name == "alice"
    assert entry.digest == hashlib.sha256(token.encode()).digest()
    assert entry.limits == Limits(Rate(10, "s"), 4, Rate(100000, "m"))


async def test_two_tokens_differ_and_need_no_limits(cli: Cli) -> None:
    first, second = [(await cli.run("token", "new", "--name", "alice")).out.splitlines() for _ in range(2)]
    assert first != second
    assert len(first[1].split()) == 2


@pytest.mark.parametrize("arguments", [("--name", "a b"), ("--name", "a", "--requests", "many"), ()])
async def test_malformed_options_are_bad_usage(cli: Cli, arguments: tuple[str, ...]) -> None:
    ended = await cli.run("token", "new", *arguments)
    assert (ended.status, ended.out) == (2, "")
