from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.detokenizer import IncrementalDetokenizer
from orchestrator.output import Finish, OutputAssembler, OutputPiece
from specdec.v1 import generation_pb2, sampling_pb2
from tests.orchestrator.small_tokenizers import byte_level, llama_like
from tests.tiny_models import EOS_TOKEN_ID

STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH
TOKENIZER = byte_level()
PROMPT = TOKENIZER.encode("User: hi\n").ids


def ids_of(text: str) -> list[int]:
    """One id for each byte; no merges."""
    return [token_id for character in text for token_id in TOKENIZER.encode(character).ids]


def assembler(
    stop_strings: Sequence[str] = (), max_new_tokens: int = 1000, stop_token_ids: Sequence[int] = (EOS_TOKEN_ID,)
) -> OutputAssembler:
    return OutputAssembler(IncrementalDetokenizer(TOKENIZER, PROMPT), stop_strings, stop_token_ids, max_new_tokens)


def logprobs_of(token_ids: Sequence[int]) -> list[sampling_pb2.TokenLogprobs]:
    return [sampling_pb2.TokenLogprobs(token_id=token_id, logprob=-1.0) for token_id in token_ids]


class Output(NamedTuple):
    """All pieces laid end to end."""

    text: str
    token_ids: list[int]
    finish: Finish | None


def whole(output: OutputAssembler, rounds: Sequence[Sequence[int]]) -> Output:
    """Runs the rounds up to the end of the output."""
    pieces: list[OutputPiece] = []
    for token_ids in rounds:
        piece = output.add(token_ids, logprobs_of(token_ids))
        assert [each.token_id for each in piece.logprobs] == piece.token_ids
        assert len(piece.text_lengths) == len(piece.token_ids)
        assert sum(piece.text_lengths) == len(piece.text)
        pieces.append(piece)
        if piece.finish is not None:
            break
    ids = [token_id for piece in pieces for token_id in piece.token_ids]
    assert output.num_tokens == len(ids)
    return Output("".join(piece.text for piece in pieces), ids, pieces[-1].finish if pieces else None)


def expected(token_ids: Sequence[int], stop_strings: Sequence[str], max_new_tokens: int) -> Output:
    """One token and one character at a time; for tokens of whole characters."""
    text = ""
    for num_tokens, token_id in enumerate(token_ids, start=1):
        ids = list(token_ids[:num_tokens])
        if token_id == EOS_TOKEN_ID:
            return Output(text, ids, Finish(STOP, stop_token_id=EOS_TOKEN_ID))
        for character in TOKENIZER.decode([token_id]):
            text += character
            complete = sorted((stop for stop in stop_strings if text.endswith(stop)), key=len)
            if complete:
                return Output(text.removesuffix(complete[-1]), ids, Finish(STOP, stop_string=complete[-1]))
        if num_tokens == max_new_tokens:
            return Output(text, ids, Finish(LENGTH))
    return Output(text, list(token_ids), None)


def cut(token_ids: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    """The ids in rounds that end after these many of them."""
    ends = [*sorted({cut for cut in cuts if 0 < cut < len(token_ids)}), len(token_ids)]
    return [list(token_ids[first:last]) for first, last in itertools.pairwise([0, *ends]) if last > first]


AB = [*ids_of("ab"), *(TOKENIZER.encode(text).ids[0] for text in (" a", "aa", "ab")), EOS_TOKEN_ID]


@settings(max_examples=300)
@given(
    token_ids=st.lists(st.sampled_from(AB), max_size=12),
    stop_strings=st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3),
    max_new_tokens=st.integers(1, 14),
    cuts=st.lists(st.integers(1, 11), max_size=6),
)
def test_the_earliest_end_wins_however_the_tokens_come(
    token_ids: list[int], stop_strings: list[str], max_new_tokens: int, cuts: list[int]
) -> None:
    output = assembler(stop_strings, max_new_tokens)
    actual, wanted = whole(output, cut(token_ids, cuts)), expected(token_ids, stop_strings, max_new_tokens)
    assert actual[1:] == wanted[1:]
    if wanted.finish is None:
        # What may be the beginning of a stop string is held.
        assert wanted.text.startswith(actual.text)
        assert len(wanted.text) - len(actual.text) < max(map(len, stop_strings), default=1)
    else:
        assert actual.text == wanted.text


@settings(max_examples=200)
@given(
    token_ids=st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1) | st.sampled_from(ids_of("🔥é")), max_size=16),
    stop_strings=st.lists(st.text(alphabet="a🔥é\ufffd", min_size=1, max_size=2), max_size=2),
    max_new_tokens=st.integers(1, 18),
    cuts=st.lists(st.integers(1, 15), max_size=6),
)
def test_rounds_do_not_matter_for_any_tokens(
    token_ids: list[int], stop_strings: list[str], max_new_tokens: int, cuts: list[int]
) -> None:
    one_by_one = whole(assembler(stop_strings, max_new_tokens), [[token_id] for token_id in token_ids])
    assert whole(assembler(stop_strings, max_new_tokens), cut(token_ids, cuts)) == one_by_one
    if one_by_one.finish is not None and not one_by_one.finish.stop_string:
        # Nothing is lost at the end: the text is one decode of the ids, but for those that stop.
        ids = [token_id for token_id in one_by_one.token_ids if token_id != EOS_TOKEN_ID]
        assert one_by_one.text == TOKENIZER.decode([*PROMPT, *ids]).removeprefix("User: hi\n")


def test_a_stop_token_before_the_limit() -> None:
    """B08."""
    x, y, a, b, c = ids_of("xyabc")
    output = assembler(max_new_tokens=5)
    output.add([x, y])
    piece = output.add([a, EOS_TOKEN_ID, b, c, c], logprobs_of([a, EOS_TOKEN_ID, b, c, c]))
    assert (piece.text, piece.token_ids) == ("a", [a, EOS_TOKEN_ID])
    assert piece.finish == Finish(STOP, stop_token_id=EOS_TOKEN_ID)
    assert output.num_tokens == 4


def test_the_limit_before_a_stop_token() -> None:
    x, y, a, b, c = ids_of("xyabc")
    output = assembler(max_new_tokens=5)
    output.add([x, y])
    piece = output.add([a, b, c, EOS_TOKEN_ID])
    assert (piece.text, piece.token_ids, piece.finish) == ("abc", [a, b, c], Finish(LENGTH))
    assert output.num_tokens == 5


def test_a_token_that_stops_at_the_limit_stops() -> None:
    a, b = ids_of("ab")
    assert assembler(max_new_tokens=2).add([a, EOS_TOKEN_ID]).finish == Finish(STOP, stop_token_id=EOS_TOKEN_ID)
    assert assembler(["b"], max_new_tokens=2).add([a, b]).finish == Finish(STOP, stop_string="b")


def test_ids_and_logprobs_are_cut_with_the_text() -> None:
    """B09: the stop string is complete on the second of four tokens."""
    ids = ids_of("abcd")
    piece = assembler(["ab"]).add(ids, logprobs_of(ids))
    assert (piece.text, piece.token_ids, piece.finish) == ("", ids[:2], Finish(STOP, stop_string="ab"))
    assert piece.logprobs == logprobs_of(ids[:2])


def test_each_token_is_credited_with_the_text_that_it_makes_certain() -> None:
    ids = ids_of("aé\nUs!\nx")
    piece = assembler(["\nUser:", "x"]).add(ids)
    # The second byte completes "é"; "!" rules out a stop string; "x" is one, and releases the line break before it.
    assert (piece.text, piece.text_lengths) == ("aé\nUs!\n", [1, 0, 1, 0, 0, 0, 4, 0, 1])


def test_without_logprobs_there_are_none() -> None:
    assert assembler().add(ids_of("ab")).logprobs == []


def test_a_token_that_goes_on_after_the_stop_string() -> None:
    token_id = TOKENIZER.encode(" a").ids[0]
    piece = assembler([" "]).add([token_id, token_id])
    assert (piece.text, piece.token_ids, piece.finish) == ("", [token_id], Finish(STOP, stop_string=" "))


@pytest.mark.parametrize(("ending", "stop_token_id"), [([EOS_TOKEN_ID], EOS_TOKEN_ID), ([], None)])
def test_held_text_is_released_at_the_end(ending: list[int], stop_token_id: int | None) -> None:
    """B16: the output ends within what might have been a stop string."""
    ids = [*ids_of("Hi\nUs"), *ending]
    output = assembler(["\nUser:"], max_new_tokens=len(ids))
    pieces = [output.add([token_id]) for token_id in ids]
    assert [piece.text for piece in pieces[:4]] == ["H", "i", "", ""]
    assert "".join(piece.text for piece in pieces) == "Hi\nUs"
    assert pieces[-1].finish == Finish(STOP if ending else LENGTH, stop_token_id=stop_token_id)


@pytest.mark.parametrize(("ending", "finish"), [([EOS_TOKEN_ID], Finish(STOP, stop_token_id=1)), ([], Finish(LENGTH))])
def test_an_incomplete_character_is_released_at_the_end(ending: list[int], finish: Finish) -> None:
    ids = [*ids_of("a🔥")[:-1], *ending]
    output = whole(assembler(max_new_tokens=len(ids)), cut(ids, [2]))
    assert output == Output("a\ufffd", ids, finish)


def test_an_incomplete_character_may_complete_a_stop_string_at_the_end() -> None:
    ids = [*ids_of("a🔥")[:-1], EOS_TOKEN_ID]
    assert whole(assembler(["a\ufffd"]), [ids]) == Output("", ids, Finish(STOP, stop_string="a\ufffd"))


def test_a_client_may_stop_at_any_token() -> None:
    a, b, c = ids_of("abc")
    piece = assembler(stop_token_ids=[EOS_TOKEN_ID, b]).add([a, b, c])
    assert (piece.text, piece.token_ids, piece.finish) == ("a", [a, b], Finish(STOP, stop_token_id=b))
    # With none, a special token is one like others, without text.
    piece = assembler(stop_token_ids=[]).add([a, EOS_TOKEN_ID, c])
    assert (piece.text, piece.token_ids, piece.finish) == ("ac", [a, EOS_TOKEN_ID, c], None)


def test_stop_strings_are_not_looked_for_in_the_prompt() -> None:
    output = assembler(["\nx", "hi"])
    assert output.add(ids_of("xh")).finish is None
    assert output.add(ids_of("i")).finish == Finish(STOP, stop_string="hi")


def test_the_last_piece_may_have_no_text() -> None:
    piece = assembler().add([EOS_TOKEN_ID])
    assert (piece.text, piece.token_ids, piece.finish) == ("", [EOS_TOKEN_ID], Finish(STOP, stop_token_id=EOS_TOKEN_ID))


def test_a_stop_string_of_characters_in_byte_tokens() -> None:
    tokenizer = llama_like()
    ids = tokenizer.encode("a🔥b🔥🔥b", add_special_tokens=False).ids
    for size in range(1, len(ids)):
        output = OutputAssembler(IncrementalDetokenizer(tokenizer, ids[:1]), ["🔥🔥"], [], 1000)
        rest = ids[1:]
        pieces = [output.add(rest[first : first + size]) for first in range(0, len(rest) - 1, size)]
        assert "".join(piece.text for piece in pieces) == "🔥b"
        assert [piece.finish for piece in pieces][-1] == Finish(STOP, stop_string="🔥🔥")
