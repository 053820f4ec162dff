"""B66: sizes are checked before any work is done for them, and no text that fits is refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from orchestrator.request import ALWAYS_TOKENIZED_BYTES
from orchestrator.tokenizer import PromptTokenizer
from specdec.errors import InvalidArgumentError, OutOfRangeError, Refusal
from specdec.tokenizer_files import TokenizerFiles
from specdec.v1 import generation_pb2
from tests.orchestrator.resolving import CONTEXT, FILES, MARKER, TOKENIZER, chat, ids, model_info, resolve, text
from tests.orchestrator.small_tokenizers import UNKNOWN_TOKEN
from tests.tiny_models import BOS_TOKEN


class UntouchedTokenizer(PromptTokenizer):
    """For requests that must be refused before anything is tokenized."""

    def encode_text(self, text: str) -> list[int]:
        raise AssertionError("a text was tokenized")

    def encode_chat(self, messages: object) -> list[int]:
        raise AssertionError("a conversation was tokenized")


def huge() -> str:
    return MARKER + "x" * (HUGE_LENGTH - len(MARKER))


HUGE_LENGTH = 100 << 20


@pytest.mark.parametrize(
    ("request_of", "refusal", "sentence"),
    [
        pytest.param(
            lambda: text(huge()), OutOfRangeError, f"{HUGE_LENGTH} bytes; .* context of {CONTEXT} tokens", id="text"
        ),
        pytest.param(
            lambda: chat(("user", huge())), OutOfRangeError, f"the prompt has {HUGE_LENGTH} bytes; ", id="message"
        ),
        pytest.param(
            lambda: chat(*[("user", "x" * 100)] * 4000), OutOfRangeError, "the prompt has 400000 bytes; ", id="messages"
        ),
        pytest.param(
            lambda: text("🔥" * ALWAYS_TOKENIZED_BYTES),
            OutOfRangeError,
            f"{4 * ALWAYS_TOKENIZED_BYTES} bytes; ",
            id="bytes and not characters",
        ),
        pytest.param(
            lambda: chat((huge(), "")), InvalidArgumentError, f"a role has {HUGE_LENGTH} characters", id="role"
        ),
        pytest.param(
            lambda: text("x", stop_strings=[huge()]),
            InvalidArgumentError,
            f"an entry of {HUGE_LENGTH} characters",
            id="stop string",
        ),
        pytest.param(
            lambda: text("x", stop_strings=[MARKER] * 10**5),
            InvalidArgumentError,
            "stop_strings has 100000 entries",
            id="stop strings",
        ),
        pytest.param(lambda: ids(*[5] * 10**6), OutOfRangeError, f"the prompt has {10**6} tokens; ", id="token ids"),
        pytest.param(
            lambda: text("x" * 10**5, max_new_tokens=0), InvalidArgumentError, "max_new_tokens", id="other fields first"
        ),
    ],
)
def test_oversized_work_is_refused_before_it_is_done(
    request_of: Callable[[], generation_pb2.GenerateRequest], refusal: type[Refusal], sentence: str
) -> None:
    request, tokenizer = request_of(), UntouchedTokenizer(FILES)
    start = time.thread_time()
    with pytest.raises(refusal, match=sentence) as refused:
        resolve(request, tokenizer=tokenizer)
    assert time.thread_time() - start < 1.0
    assert MARKER not in str(refused.value)
    assert len(str(refused.value)) < 200


def forgetful(tokenizer: Tokenizer) -> PromptTokenizer:
    return PromptTokenizer(TokenizerFiles(tokenizer.to_str().encode(), "", {}))


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab={UNKNOWN_TOKEN: 0, "a": 1, "b": 2}, unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def normalizing_tokenizer(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "각": 2, " ": 3}, merges=[]))
    tokenizer.normalizer = normalizer
    return tokenizer


def stripping_tokenizer() -> Tokenizer:
    tokenizer = normalizing_tokenizer(normalizers.NFC())
    tokenizer.add_special_tokens([AddedToken("<m>", lstrip=True, special=True)])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "content", "num_tokens"),
    [
        # Longer than the context times the longest token, and yet they fit.
        pytest.param(word_tokenizer(), "a" + " " * 5000 + "b", 2, id="spaces between words"),
        pytest.param(word_tokenizer(), "z" * 5000, 1, id="one unknown word"),
        pytest.param(normalizing_tokenizer(normalizers.NFKC()), "𝐚" * 31, 31, id="NFKC"),
        pytest.param(normalizing_tokenizer(normalizers.NFC()), "\u1100\u1161\u11a8" * 31, 31, id="NFC"),
        pytest.param(normalizing_tokenizer(normalizers.StripAccents()), "a" + "\u0301" * 5000, 1, id="accents"),
        pytest.param(normalizing_tokenizer(normalizers.Strip()), "a" + " " * 5000, 1, id="spaces around"),
        pytest.param(normalizing_tokenizer(normalizers.NFC()), "a" + "z" * 5000, 1, id="what has no token"),
        pytest.param(stripping_tokenizer(), "a" + " " * 5000 + "<m>", 2, id="spaces before an added token"),
    ],
)
def test_a_text_that_the_tokenizer_shortens_is_not_refused(tokenizer: Tokenizer, content: str, num_tokens: int) -> None:
    prompt_tokenizer = forgetful(tokenizer)
    if len(content) > 1000:
        assert len(content.encode()) > CONTEXT * prompt_tokenizer.max_token_bytes
    resolved = resolve(text(content), model_info(stop_token_ids=[0]), prompt_tokenizer)
    assert len(resolved.prompt_ids) == num_tokens


def test_the_bound_in_bytes_grows_with_the_context() -> None:
    num_tokens = ALWAYS_TOKENIZED_BYTES // TOKENIZER.max_token_bytes + 1000
    info = model_info(max_context_length=num_tokens)
    limit = num_tokens * TOKENIZER.max_token_bytes
    with pytest.raises(OutOfRangeError, match=f"the prompt has {limit + 1} bytes; .* at most {limit} are taken"):
        resolve(text("x" * (limit + 1)), info, UntouchedTokenizer(FILES))
    with pytest.raises(AssertionError, match="a text was tokenized"):
        resolve(text("x" * limit), info, UntouchedTokenizer(FILES))
    # A text of nothing but the longest tokens, as many as fit.
    assert len(resolve(text(BOS_TOKEN * (num_tokens - 1)), info).prompt_ids) == num_tokens - 1
