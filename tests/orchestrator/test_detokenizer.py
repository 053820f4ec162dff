from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from tokenizers import Tokenizer

from orchestrator.detokenizer import IncrementalDetokenizer
from tests.orchestrator import small_tokenizers
from tests.orchestrator.small_tokenizers import BYTE_FALLBACK, SPECIAL_TOKENS, byte_level, gemma_like, llama_like

BROKEN = "\ufffd"
BYTE_TOKEN = re.compile("<0x..>")
KINDS = {kind.__name__: kind() for kind in (byte_level, *BYTE_FALLBACK, small_tokenizers.word_pieces)}
TEXT = "🔥é日한 a b"
BYTE_SYMBOLS = small_tokenizers.byte_symbols()

all_kinds = pytest.mark.parametrize("kind", KINDS)
all_byte_fallbacks = pytest.mark.parametrize("kind", [kind.__name__ for kind in BYTE_FALLBACK])


def deltas(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    """One for each id, and what is flushed."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    ids = [tokenizer.token_to_id(token) for token in tokens]
    return [token_id for token_id in ids if token_id is not None]


def byte_ids(tokenizer: Tokenizer, content: bytes) -> list[int]:
    """One token for each byte."""
    return [ids_of(tokenizer, f"<0x{byte:02X}>", BYTE_SYMBOLS[byte])[0] for byte in content]


def fallback_runs(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[bytes | str]:
    """The ids as runs of bytes and words; special tokens do not end a run."""
    run = b""
    for token in map(tokenizer.id_to_token, ids):
        if token is None or token in SPECIAL_TOKENS:
            continue
        if BYTE_TOKEN.fullmatch(token):
            run += bytes.fromhex(token[3:5])
            continue
        yield from (run, token.replace("▁", " "))
        run = b""
    yield run


def oracle(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """One decode of all ids, less the text of the prompt; a character that only the output completes is not in it."""
    text, prompt_text = tokenizer.decode([*prompt, *ids]), tokenizer.decode(prompt)
    # Of a prompt that ends within a character this is the text before it: cut off as text, or by tokens.
    shorter = (prompt_text[:-1], *(tokenizer.decode(prompt[:-num_cut]) for num_cut in (1, 2, 3)))
    return next(text[len(each) :] for each in (prompt_text, *shorter) if text.startswith(each))


def any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, more often than not those of real text."""
    text = st.text(alphabet=TEXT, min_size=1, max_size=3)
    encoded = text.map(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    single = st.integers(0, tokenizer.get_vocab_size() - 1).map(lambda token_id: [token_id])
    return st.lists(encoded | single).map(lambda pieces: list(itertools.chain.from_iterable(pieces)))


def whole_characters(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, but that runs of byte tokens are UTF-8."""
    characters = [byte_ids(tokenizer, character.encode()) for character in TEXT]
    others = [[token_id] for token, token_id in tokenizer.get_vocab().items() if not BYTE_TOKEN.fullmatch(token)]
    pieces = st.lists(st.sampled_from(characters) | st.sampled_from(others))
    return pieces.map(lambda pieces: list(itertools.chain.from_iterable(pieces)))


@pytest.mark.parametrize("kind", ["byte_level", "word_pieces"])
@settings(max_examples=200)
@given(data=st.data())
def test_any_ids_give_one_decode_less_the_prompt(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    prompt, ids = data.draw(any_ids(tokenizer), "prompt"), data.draw(any_ids(tokenizer), "ids")
    assert "".join(deltas(tokenizer, prompt, ids)) == oracle(tokenizer, prompt, ids)


@all_byte_fallbacks
@settings(max_examples=100)
@given(data=st.data())
def test_any_characters_give_one_decode_less_the_prompt(kind: str, data: st.DataObject) -> None:
    """Wherever the prompt ends, be it within a character."""
    tokenizer = KINDS[kind]
    ids = data.draw(whole_characters(tokenizer), "ids")
    cut = data.draw(st.integers(0, len(ids)), "cut")
    assert "".join(deltas(tokenizer, ids[:cut], ids[cut:])) == oracle(tokenizer, ids[:cut], ids[cut:])


some_bytes = st.lists(
    st.sampled_from([*TEXT.encode(), 0xFF, 0xE0, 0xED, 0xF0, 0xF4, 0xC0, 0x80, 0xBF]) | st.integers(0, 255), max_size=24
).map(lambda content: byte_ids(KINDS["byte_level"], bytes(content)))


@settings(max_examples=300)
@given(prompt=some_bytes, ids=some_bytes)
@example(prompt=byte_ids(KINDS["byte_level"], b"\xf0\x9f"), ids=byte_ids(KINDS["byte_level"], b"\x94a"))
@example(prompt=byte_ids(KINDS["byte_level"], b"a\xef\xbf\xbd"), ids=byte_ids(KINDS["byte_level"], b"\xef\xbf\xbd"))
def test_any_bytes_give_one_decode_less_the_prompt(prompt: list[int], ids: list[int]) -> None:
    tokenizer = KINDS["byte_level"]
    assert "".join(deltas(tokenizer, prompt, ids)) == oracle(tokenizer, prompt, ids)


@all_byte_fallbacks
@settings(max_examples=100)
@given(data=st.data())
def test_bytes_that_are_no_characters_cost_no_others(kind: str, data: st.DataObject) -> None:
    """The library breaks a whole run of byte tokens for one that is wrong; what was shown of it before stays."""
    tokenizer = KINDS[kind]
    prompt = tokenizer.encode("ab", add_special_tokens=False).ids
    ids = data.draw(any_ids(tokenizer), "ids")
    shown = "".join(deltas(tokenizer, prompt, ids)).replace(BROKEN, "")
    at_least = oracle(tokenizer, prompt, ids).replace(BROKEN, "")
    at_most = "".join(
        run if isinstance(run, str) else run.decode(errors="replace") for run in fallback_runs(tokenizer, ids)
    )
    assert is_subsequence(at_least, shown)
    assert is_subsequence(shown, at_most.replace(BROKEN, ""))


def is_subsequence(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(character in rest for character in part)


@all_kinds
def test_every_cut_of_a_text_gives_the_same(kind: str) -> None:
    tokenizer = KINDS[kind]
    text = "hello worlds. a" if kind == "word_pieces" else "a 🔥🔥é日한  b"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for cut in range(len(ids) + 1):
        assert "".join(deltas(tokenizer, ids[:cut], ids[cut:])) == oracle(tokenizer, ids[:cut], ids[cut:])
    assert "".join(deltas(tokenizer, [], ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "gemma_like", "metaspace"])
def test_a_character_is_shown_once_it_is_complete(kind: str) -> None:
    tokenizer = KINDS[kind]
    prompt = tokenizer.encode("a", add_special_tokens=False).ids
    ids = byte_ids(tokenizer, "🔥é日🔥".encode())
    assert deltas(tokenizer, prompt, ids) == ["", "", "", "🔥", "", "é", "", "", "日", "", "", "", "🔥", ""]


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "gemma_like", "metaspace"])
def test_a_character_that_the_prompt_begins_belongs_to_the_output(kind: str) -> None:
    tokenizer = KINDS[kind]
    fire, before = byte_ids(tokenizer, "🔥".encode()), tokenizer.encode("a b", add_special_tokens=False).ids
    for cut in (1, 2, 3):
        assert "".join(deltas(tokenizer, [*before, *fire[:cut]], [*fire[cut:], *before])).lstrip().startswith("🔥")
        assert "".join(deltas(tokenizer, fire[:cut], fire[cut:])) == "🔥"
        # And if nothing completes it, it is the prompt's: nothing of the prompt is repeated.
        assert deltas(tokenizer, [*before, *fire[:cut]], []) == [""]


@pytest.mark.parametrize("between", ["", "a"])
def test_tokens_that_end_one_character_and_begin_another(between: str) -> None:
    fire, day = "🔥".encode(), "日".encode()
    parts = ("é".encode() + fire[:2], fire[2:] + between.encode() + day[:1], day[1:])
    tokens = ["".join(BYTE_SYMBOLS[byte] for byte in part) for part in parts]
    tokenizer = byte_level()
    tokenizer.add_tokens(tokens)
    ids = ids_of(tokenizer, *tokens)
    assert deltas(tokenizer, [5], ids) == ["é", f"🔥{between}", "日", ""]
    assert deltas(tokenizer, [5, ids[0]], ids[1:]) == [f"🔥{between}", "日", ""]
    assert deltas(tokenizer, [5, *ids[:2]], ids[2:]) == ["日", ""]


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "gemma_like", "metaspace"])
def test_what_was_never_completed_is_flushed(kind: str) -> None:
    tokenizer = KINDS[kind]
    prompt = tokenizer.encode("a", add_special_tokens=False).ids
    shown = deltas(tokenizer, prompt, byte_ids(tokenizer, "é🔥".encode()[:4]))
    assert shown[:-1] == ["", "é", "", ""]
    assert shown[-1].strip(BROKEN) == ""
    assert shown[-1]


def test_leading_spaces_are_neither_lost_nor_invented() -> None:
    """B15."""
    for tokenizer in (llama_like(), gemma_like()):
        ids = ids_of(tokenizer, "▁a", "▁b", "▁▁", "▁", "ab", "▁▁▁▁", "▁한")
        bos, word = ids_of(tokenizer, "<s>", "a")
        assert deltas(tokenizer, [bos, word], ids) == [" a", " b", "  ", " ", "ab", "    ", " 한", ""]
        # However many special tokens the prompt ends with, there is text before them.
        assert deltas(tokenizer, [word, *[bos] * 100], ids)[0] == " a"
    assert deltas(llama_like(), [0], ids_of(llama_like(), "▁a")) == ["a", ""]
    assert deltas(gemma_like(), [0], ids_of(gemma_like(), "▁a")) == [" a", ""]


@all_kinds
def test_special_tokens_have_no_text_and_break_no_character(kind: str) -> None:
    tokenizer = KINDS[kind]
    if kind == "word_pieces":
        assert deltas(tokenizer, [7], [0, 7, 1, 7]) == ["", " a", "", " a", ""]
        return
    prompt, fire = tokenizer.encode("a", add_special_tokens=False).ids, byte_ids(tokenizer, "🔥".encode())
    assert deltas(tokenizer, prompt, [0, *fire[:2], 1, 1, *fire[2:], 0]) == ["", "", "", "", "", "", "🔥", "", ""]
    # Added tokens that are not special do have text.
    if kind == "byte_level":
        assert "".join(deltas(tokenizer, prompt, ids_of(tokenizer, "<tool>", "한", BROKEN))) == f"<tool>한{BROKEN}"


def test_ids_without_a_token_have_no_text() -> None:
    assert deltas(KINDS["byte_level"], [5], [10**6, 5])[0] == ""


@pytest.mark.parametrize("kind", ["llama_like", "gemma_like", "metaspace"])
@pytest.mark.parametrize("num_characters", [10, 200, 1000])
def test_a_long_prompt_of_byte_tokens_is_not_cut_within_a_character(kind: str, num_characters: int) -> None:
    tokenizer = KINDS[kind]
    ids = byte_ids(tokenizer, "日".encode() * num_characters)
    for cut in (0, 1, 2):
        rest = [*ids[len(ids) - cut :], *byte_ids(tokenizer, "本".encode())]
        assert "".join(deltas(tokenizer, ids[: len(ids) - cut], rest)) == "日" * (cut > 0) + "本"


class CountingTokenizer:
    """Counts the ids that it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode: Callable[..., str] = tokenizer.decode
        self.num_decoded = 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(ids)
        return self._decode(ids, skip_special_tokens=skip_special_tokens)


@all_kinds
@pytest.mark.parametrize("repeated", ["special", "broken", "space", "byte"])
def test_a_token_costs_the_same_however_long_the_text_is(kind: str, repeated: str) -> None:
    tokenizer = KINDS[kind]
    if repeated == "special":
        token_id = 0
    elif repeated == "space" or kind == "word_pieces":
        token_id = ids_of(tokenizer, "▁", "Ġ", ",")[0]
    else:
        token_id = byte_ids(tokenizer, b"\xff" if repeated == "broken" else b"A")[0]
    counting = CountingTokenizer(tokenizer)
    detokenizer = IncrementalDetokenizer(cast(Tokenizer, counting), [token_id] * 5000)
    assert counting.num_decoded < 20_000, "a prompt costs no more than its end"
    counting.num_decoded = 0
    for _ in range(1000):
        detokenizer.push(token_id)
    assert counting.num_decoded < 50 * 1000
