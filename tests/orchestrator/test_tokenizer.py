from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.models import Model
from transformers import PreTrainedTokenizerFast

from orchestrator.detokenizer import IncrementalDetokenizer
from orchestrator.tokenizer import PromptTokenizer
from specdec.errors import InvalidArgumentError
from specdec.tokenizer_files import TokenizerFiles
from tests.orchestrator import small_tokenizers
from tests.orchestrator.small_tokenizers import BYTE_FALLBACK, byte_level, llama_like
from tests.tiny_models import BOS_TOKEN, BOS_TOKEN_ID, CHAT_TEMPLATE, EOS_TOKEN, EOS_TOKEN_ID, tiny_tokenizer_files

LLAMA_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"
LLAMA_SPECIAL_TOKENS = {"bos_token": small_tokenizers.BOS_TOKEN, "eos_token": small_tokenizers.EOS_TOKEN}
MESSAGES = [
    {"role": "user", "content": f"a b {EOS_TOKEN} </s> <s>"},
    {"role": "assistant", "content": f" {BOS_TOKEN}🔥"},
    {"role": "user", "content": ""},
]


def files_of(tokenizer: Tokenizer, chat_template: str, special_tokens: dict[str, str]) -> TokenizerFiles:
    return TokenizerFiles(tokenizer.to_str().encode(), chat_template, special_tokens)


FILES = {
    "byte_level": tiny_tokenizer_files(),
    "llama_like": files_of(llama_like(), LLAMA_TEMPLATE, LLAMA_SPECIAL_TOKENS),
}


def theirs(files: TokenizerFiles) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=files.tokenizer(), **files.special_tokens
    )
    tokenizer.chat_template = files.chat_template
    return tokenizer


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a b",
        "  é日한🔥\n",
        f"a{EOS_TOKEN}b",
        f"{BOS_TOKEN} x",
        "<s></s> a<s>",
        "<|eos",
        "\x00\ufffd",
        "x" * 5000,
    ],
)
def test_same_ids_as_transformers_special_tokens_in_the_text_included(kind: str, text: str) -> None:
    assert PromptTokenizer(FILES[kind]).encode_text(text) == theirs(FILES[kind])(text).input_ids


@pytest.mark.parametrize("kind", FILES)
def test_same_ids_of_a_conversation_as_transformers(kind: str) -> None:
    for num_messages in (1, 2, 3):
        messages = MESSAGES[:num_messages]
        expected = theirs(FILES[kind]).apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert PromptTokenizer(FILES[kind]).encode_chat(messages) == expected


def test_special_tokens_in_a_text_are_special() -> None:
    """As in transformers: who may send a prompt may write its turns."""
    tokenizer = PromptTokenizer(FILES["byte_level"])
    letter = tokenizer.encode_text("a")
    assert tokenizer.encode_text(f"a{EOS_TOKEN}{BOS_TOKEN}a") == [*letter, EOS_TOKEN_ID, BOS_TOKEN_ID, *letter]
    assert EOS_TOKEN_ID in tokenizer.encode_chat([{"role": "user", "content": EOS_TOKEN}])


def test_exactly_one_token_at_the_start() -> None:
    """B17: the tokenizer adds it to a text; the template writes it for a conversation."""
    tokenizer = PromptTokenizer(FILES["llama_like"])
    start = tokenizer.backend.token_to_id(small_tokenizers.BOS_TOKEN)
    for ids in (tokenizer.encode_text("a b"), tokenizer.encode_chat([{"role": "user", "content": "a b"}])):
        assert ids[0] == start
        assert ids.count(start) == 1
    # A template that leaves it out is the model's choice.
    without = replace(FILES["llama_like"], chat_template=CHAT_TEMPLATE)
    assert start not in PromptTokenizer(without).encode_chat([{"role": "user", "content": "a b"}])


def test_truncation_and_padding_of_the_file_are_off() -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = PromptTokenizer(files_of(backend, CHAT_TEMPLATE, {}))
    assert tokenizer.encode_text("qxzvw") == byte_level().encode("qxzvw").ids
    assert len(tokenizer.encode_text("qxzvw")) == 5
    assert len(tokenizer.encode_chat([{"role": "user", "content": "x" * 100}])) > 100
    assert tokenizer.encode_text("q") == byte_level().encode("q").ids


def test_without_a_template_conversations_are_refused_and_texts_are_not() -> None:
    tokenizer = PromptTokenizer(replace(FILES["byte_level"], chat_template=""))
    assert tokenizer.encode_text("a")
    with pytest.raises(InvalidArgumentError, match="no chat template"):
        tokenizer.encode_chat(MESSAGES)


@pytest.mark.parametrize(
    "model", [models.WordLevel({"a": 0}), models.Unigram([("a", 0.0)]), models.WordPiece({"a": 0})]
)
def test_text_that_the_tokenizer_has_no_token_for_is_refused_without_quoting_it(model: Model) -> None:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PromptTokenizer(files_of(backend, CHAT_TEMPLATE, {}))
    assert tokenizer.encode_text("a a") == [0, 0]
    with pytest.raises(InvalidArgumentError, match="no token for some characters of the prompt") as refused:
        tokenizer.encode_text("a xyzzy")
    assert "xyzzy" not in str(refused.value)
    with pytest.raises(InvalidArgumentError, match="no token for some characters of the prompt"):
        tokenizer.encode_chat([{"role": "a", "content": "xyzzy"}])


LOSSLESS = {kind.__name__: PromptTokenizer(files_of(kind(), "", {})) for kind in (byte_level, *BYTE_FALLBACK)}


@pytest.mark.parametrize("kind", LOSSLESS)
@settings(max_examples=50)
@example(text="▁▁▁▁")
@given(text=st.text() | st.text(alphabet="ab ▁🔥é\n"))
def test_no_token_stands_for_more_bytes_than_the_longest(kind: str, text: str) -> None:
    tokenizer = LOSSLESS[kind]
    assert len(text.encode()) <= len(tokenizer.encode_text(text)) * tokenizer.max_token_bytes


@pytest.mark.timeout(60)
def test_one_tokenizer_for_many_threads() -> None:
    """B19."""
    tokenizer = PromptTokenizer(FILES["llama_like"])
    texts = [f"a{' b' * length}🔥" for length in range(50)]
    ids = [tokenizer.encode_text(text) for text in texts]
    conversations = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]

    def work(number: int) -> None:
        for index in range(number, len(texts)):
            assert tokenizer.encode_text(texts[index]) == ids[index]
            assert tokenizer.encode_chat([{"role": "user", "content": texts[index]}]) == conversations[index]
            detokenizer = IncrementalDetokenizer(tokenizer.backend, ids[index][:1])
            shown = [detokenizer.push(token_id) for token_id in ids[index][1:]]
            assert "".join(shown) == texts[index]

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number % 8) for number in range(24)]:
            done.result()
