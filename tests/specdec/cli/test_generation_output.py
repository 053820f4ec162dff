import io
import json

import pytest

from specdec.cli.generation_output import JsonOutput, TextOutput
from specdec.v1 import generation_pb2
from tests.specdec.fake_generation import FULL_TEXT, responses


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_on_a_terminal_each_token_has_the_colour_of_where_it_came_from() -> None:
    stream = Terminal()
    output = TextOutput(stream, rounds=True, logprobs=False)
    for response in responses():
        output.add(response)
    assert (
        stream.getvalue()
        == "Hel"
        + "\x1b[32mlo\x1b[0m"
        + "\x1b[32m w\x1b[0m"
        + "\x1b[34mor\x1b[0m"
        + "\x1b[33mld\x1b[0m"
        + "\x1b[34m!\x1b[0m"
    )
    output.close()
    assert "accepted draft tokens" in stream.getvalue()


def test_text_is_never_folded_nor_read_as_markup() -> None:
    stream = Terminal()
    output = TextOutput(stream, rounds=True, logprobs=False)
    text = "[red]long[/red] :smile: " + "word " * 40
    output.add(generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text=text)))
    assert stream.getvalue() == text


def test_without_the_wish_for_rounds_there_are_no_colours() -> None:
    stream = Terminal()
    output = TextOutput(stream, rounds=False, logprobs=False)
    for response in responses():
        output.add(response)
    output.close()
    assert stream.getvalue() == FULL_TEXT + "\n"


def test_a_text_that_ends_its_line_gets_no_other_end() -> None:
    stream = io.StringIO()
    output = TextOutput(stream, rounds=False, logprobs=False)
    output.add(generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text="done\n")))
    output.add(generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text="")))
    output.close()
    assert stream.getvalue() == "done\n"


def test_nothing_is_printed_for_nothing() -> None:
    stream = io.StringIO()
    TextOutput(stream, rounds=True, logprobs=True).close()
    assert stream.getvalue() == ""


def test_json_is_written_at_the_end_only_and_not_after_a_failure() -> None:
    stream = io.StringIO()
    output = JsonOutput(stream)
    for response in responses():
        output.add(response)
    output.abort()
    assert stream.getvalue() == ""
    output.close()
    assert json.loads(stream.getvalue())["text"] == FULL_TEXT
    assert stream.getvalue().count("\n") == 1
