from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.request import (
    MAX_COMPLETIONS,
    MAX_MESSAGES,
    MAX_ROLE_CHARACTERS,
    MAX_STOP_STRING_CHARACTERS,
    MAX_STOP_STRINGS,
    ResolvedRequest,
)
from orchestrator.tokenizer import PromptTokenizer
from specdec.errors import InvalidArgumentError, OutOfRangeError
from specdec.sampling.params import MAX_LISTED_TOKEN_IDS, MAX_LOGIT_BIAS_ENTRIES, SamplingParams
from specdec.v1 import generation_pb2, sampling_pb2
from tests.orchestrator.resolving import (
    BLOCK,
    CONTEXT,
    COUPLED,
    FILES,
    MARKER,
    MAX_NUM_DRAFT_TOKENS,
    REJECTION,
    TOKENIZER,
    chat,
    ids,
    model_info,
    resolve,
    sampling,
    text,
)
from tests.tiny_models import BOS_TOKEN, BOS_TOKEN_ID, EOS_TOKEN_ID, TINY_VOCAB_SIZE


def test_every_default_is_resolved() -> None:
    """B20: what is not set is not zero."""
    resolved = resolve(text(), max_new_tokens=11)
    assert resolved.sampling == SamplingParams(seed=resolved.sampling.seed, stop_token_ids=(EOS_TOKEN_ID, 7))
    assert resolved.sampling.temperature == 1.0
    assert resolved == ResolvedRequest(
        prompt_ids=TOKENIZER.encode_text("hi"),
        sampling=resolved.sampling,
        max_new_tokens=11,
        num_draft_tokens=None,
        acceptance_rule=COUPLED,
        stop_strings=(),
        num_completions=1,
    )
    # A service takes it: every field is there.
    assert SamplingParams.from_proto(resolved.sampling.to_proto()) == resolved.sampling


def test_what_is_set_is_kept() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "typical_p": 0.5,
        "repetition_penalty": 1.5,
        "frequency_penalty": -1.0,
        "presence_penalty": 2.0,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 4,
        "seed": 2**64 - 1,
        "ignore_eos": False,
        "num_logprobs": 0,
    }
    lists: dict[str, Any] = {"allowed_token_ids": (5, 6), "banned_token_ids": (6,)}
    request = text(
        sampling=sampling_pb2.SamplingParams(logit_bias={5: -1.0}, **given, **lists),
        max_new_tokens=3,
        stop_strings=["a", "ab"],
        num_draft_tokens=0,
        acceptance_rule=REJECTION,
        num_completions=MAX_COMPLETIONS,
    )
    resolved = resolve(request)
    assert resolved.sampling == SamplingParams(logit_bias={5: -1.0}, stop_token_ids=(EOS_TOKEN_ID, 7), **given, **lists)
    assert resolved.max_new_tokens == 3
    assert resolved.stop_strings == ("a", "ab")
    assert resolved.num_draft_tokens == 0
    assert resolved.acceptance_rule == REJECTION
    assert resolved.num_completions == MAX_COMPLETIONS
    assert resolve(text(num_draft_tokens=MAX_NUM_DRAFT_TOKENS)).num_draft_tokens == MAX_NUM_DRAFT_TOKENS


def test_zeros_that_mean_something() -> None:
    assert resolve(sampling(temperature=0.0)).sampling.is_greedy
    assert resolve(sampling(top_k=0)).sampling.top_k == 0
    assert resolve(sampling(seed=0)).sampling.seed == 0
    assert resolve(sampling(num_logprobs=0)).sampling.num_logprobs == 0
    assert resolve(text()).sampling.num_logprobs is None


def test_a_seed_is_drawn_when_there_is_none() -> None:
    seeds = {resolve(text()).sampling.seed for _ in range(50)}
    assert len(seeds) == 50
    assert max(seeds) > 2**60
    assert {resolve(sampling(seed=5)).sampling.seed for _ in range(5)} == {5}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (EOS_TOKEN_ID, 7)),
        ({"stop_token_ids": [9, 7, 9]}, (EOS_TOKEN_ID, 7, 9)),
        ({"ignore_eos": True}, ()),
        ({"ignore_eos": True, "stop_token_ids": [9, 7]}, (7, 9)),
        ({"ignore_eos": False, "stop_token_ids": [9]}, (EOS_TOKEN_ID, 7, 9)),
    ],
)
def test_the_set_of_stop_tokens(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    """B11: the model's own and the client's; only the model's own are ignored on demand."""
    assert resolve(sampling(**fields)).sampling.stop_token_ids == expected


def test_kinds_of_input() -> None:
    assert resolve(ids(5, 6, 5)).prompt_ids == [5, 6, 5]
    asked = chat(("system", "s"), ("user", ""))
    assert resolve(asked).prompt_ids == TOKENIZER.backend.encode("system: s\nuser: \nassistant:").ids


def test_token_ids_are_used_as_they_are() -> None:
    # Nothing is put before them, nor taken from the end.
    assert resolve(ids(BOS_TOKEN_ID, EOS_TOKEN_ID)).prompt_ids == [BOS_TOKEN_ID, EOS_TOKEN_ID]


@pytest.mark.parametrize("kind", ["text", "token_ids"])
@pytest.mark.parametrize("num_tokens", [1, CONTEXT - 2, CONTEXT - 1, CONTEXT, CONTEXT + 1, 1000])
def test_the_context_holds_the_prompt_and_one_more(kind: str, num_tokens: int) -> None:
    request = text(BOS_TOKEN * num_tokens) if kind == "text" else ids(*[5] * num_tokens)
    if num_tokens >= CONTEXT:
        with pytest.raises(OutOfRangeError, match=rf"the prompt has {num_tokens} tokens; .* context of {CONTEXT}\b"):
            resolve(request)
        return
    resolved = resolve(request, max_new_tokens=1000)
    assert len(resolved.prompt_ids) == num_tokens
    assert resolved.max_new_tokens == CONTEXT - num_tokens
    assert resolved.max_length == CONTEXT


def test_a_conversation_that_is_too_long() -> None:
    with pytest.raises(OutOfRangeError, match=r"the prompt has \d+ tokens; .* context of 32\b"):
        resolve(chat(("user", "xq" * 40)))


def test_the_limit_is_clipped_to_the_context() -> None:
    for asked, expected in ((1, 1), (28, 28), (29, 29), (30, 29), (2**32 - 1, 29)):
        request = ids(5, 5, 5)
        request.max_new_tokens = asked
        resolved = resolve(request)
        assert resolved.max_new_tokens == expected
        assert resolved.max_length == 3 + expected


REFUSALS: dict[str, tuple[generation_pb2.GenerateRequest, str]] = {
    "no input": (generation_pb2.GenerateRequest(), "no input; set chat, text or token_ids"),
    "no ids": (ids(), "token_ids is empty; a prompt needs at least one token"),
    "no text": (text(""), "text is empty; a prompt needs at least one token"),
    "an id past the vocabulary": (ids(5, TINY_VOCAB_SIZE), f"token_ids .* vocabulary of {TINY_VOCAB_SIZE}"),
    "the largest id": (ids(2**32 - 1), f"token_ids .* vocabulary of {TINY_VOCAB_SIZE}"),
    "no messages": (chat(), f"chat.messages has 0 entries; it must have 1 to {MAX_MESSAGES}"),
    "many messages": (
        chat(*[("user", "")] * (MAX_MESSAGES + 1)),
        f"chat.messages has {MAX_MESSAGES + 1} entries; it must have 1 to {MAX_MESSAGES}",
    ),
    "no role": (chat(("", "x")), f"a role has 0 characters; 1 to {MAX_ROLE_CHARACTERS}"),
    "a long role": (chat(("user", "x"), ("r" * 65, "x")), f"a role has 65 characters; 1 to {MAX_ROLE_CHARACTERS}"),
    "no new tokens": (text(max_new_tokens=0), "max_new_tokens is 0; it must be at least 1"),
    "many draft tokens": (text(num_draft_tokens=9), "num_draft_tokens is 9; this server takes 0 to 8"),
    "no completions": (text(num_completions=0), "num_completions is 0; it must be 1 to 16"),
    "many completions": (text(num_completions=17), "num_completions is 17; it must be 1 to 16"),
    "an empty stop string": (text(stop_strings=["a", ""]), "stop_strings has an entry of 0 characters; .* 1 to 256"),
    "a long stop string": (text(stop_strings=["a" * 257]), "stop_strings has an entry of 257 characters; .* 1 to 256"),
    "many stop strings": (text(stop_strings=["a"] * 17), f"stop_strings has 17 entries; at most {MAX_STOP_STRINGS}"),
    "a rule that the target lacks": (
        text(acceptance_rule=BLOCK),
        "acceptance_rule is ACCEPTANCE_RULE_BLOCK; .* ACCEPTANCE_RULE_COUPLED, ACCEPTANCE_RULE_REJECTION",
    ),
    "a rule that nobody knows": (text(acceptance_rule=99), "acceptance_rule is 99; .* ACCEPTANCE_RULE_COUPLED"),
    "temperature": (sampling(temperature=-0.1), r"temperature is -0\.1; it must be 0, or between"),
    "temperature that is no number": (sampling(temperature=float("nan")), "temperature is nan; it must be"),
    "top_p 0": (sampling(top_p=0.0), "top_p is 0; it must be above 0 and at most 1"),
    "top_k": (sampling(top_k=2**31), "top_k is .*; it must be between 0 and"),
    "min_p": (sampling(min_p=1.5), r"min_p is 1\.5; it must be between 0 and 1"),
    "typical_p": (sampling(typical_p=0.0), "typical_p is 0; it must be above 0 and at most 1"),
    "repetition_penalty": (sampling(repetition_penalty=0.0), "repetition_penalty is 0; it must be between"),
    "frequency_penalty": (sampling(frequency_penalty=2.5), r"frequency_penalty is 2\.5; it must be between -2 and 2"),
    "presence_penalty": (sampling(presence_penalty=-3.0), "presence_penalty is -3; it must be between -2 and 2"),
    "no_repeat_ngram_size": (sampling(no_repeat_ngram_size=1025), "no_repeat_ngram_size is 1025; .* 0 and 1024"),
    "num_logprobs": (sampling(num_logprobs=21), "num_logprobs is 21; it must be between 0 and 20"),
    "many biases": (
        sampling(logit_bias=dict.fromkeys(range(200_000), 0.0)),
        f"logit_bias has 200000 entries; at most {MAX_LOGIT_BIAS_ENTRIES}",
    ),
    "a bias": (sampling(logit_bias={5: 101.0}), "logit_bias is 101; it must be between -100 and 100"),
    "a biased id": (sampling(logit_bias={TINY_VOCAB_SIZE: 0.0}), "logit_bias names a token id outside .* 320"),
    "many stop tokens": (sampling(stop_token_ids=[5] * 1025), "stop_token_ids has 1025 entries; at most 1024"),
    "a stop token": (sampling(stop_token_ids=[320]), "stop_token_ids names a token id outside the vocabulary of 320"),
    "an allowed id": (sampling(allowed_token_ids=[320]), "allowed_token_ids names a token id outside .* 320"),
    "a banned id": (sampling(banned_token_ids=[320]), "banned_token_ids names a token id outside .* 320"),
    "many allowed ids": (sampling(allowed_token_ids=[5] * 1025), "allowed_token_ids has 1025 entries; at most 1024"),
    "nothing is left": (sampling(allowed_token_ids=[5], banned_token_ids=[5]), "allowed_token_ids leaves no token"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_field_and_the_bound(name: str) -> None:
    request, sentence = REFUSALS[name]
    with pytest.raises(InvalidArgumentError, match=sentence):
        resolve(request)


def test_the_largest_values_are_taken() -> None:
    assert resolve(text(stop_strings=["a" * MAX_STOP_STRING_CHARACTERS] * MAX_STOP_STRINGS)).stop_strings
    assert resolve(text(stop_strings=["🔥" * MAX_STOP_STRING_CHARACTERS])).stop_strings
    assert resolve(chat(("r" * MAX_ROLE_CHARACTERS, "")), model_info(max_context_length=1000)).prompt_ids
    many = chat(*[("u", "")] * MAX_MESSAGES)
    assert resolve(many, model_info(max_context_length=10**6)).prompt_ids
    listed = list(range(10, 10 + MAX_LISTED_TOKEN_IDS))
    large = model_info(vocab_size=10_000)
    asked = sampling(stop_token_ids=listed, ignore_eos=True)
    assert resolve(asked, large).sampling.stop_token_ids == tuple(listed)


def test_more_stop_tokens_than_the_services_take_once_the_models_own_are_added() -> None:
    asked = sampling(stop_token_ids=range(10, 10 + MAX_LISTED_TOKEN_IDS))
    with pytest.raises(InvalidArgumentError, match="stop_token_ids and the model's own stop tokens are 1026 together"):
        resolve(asked, model_info(vocab_size=10_000))


def test_a_target_without_the_default_rule() -> None:
    info = model_info(acceptance_rules=[REJECTION, 77])
    with pytest.raises(
        InvalidArgumentError, match=r"acceptance_rule is ACCEPTANCE_RULE_COUPLED; .* ACCEPTANCE_RULE_REJECTION, 77"
    ):
        resolve(text(), info)
    assert resolve(text(acceptance_rule=REJECTION), info).acceptance_rule == REJECTION


def test_without_a_chat_template_a_conversation_is_refused() -> None:
    tokenizer = PromptTokenizer(replace(FILES, chat_template=""))
    with pytest.raises(InvalidArgumentError, match="no chat template; send text or token ids instead"):
        resolve(chat(("user", "x")), tokenizer=tokenizer)
    assert resolve(text("x"), tokenizer=tokenizer).prompt_ids


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('No role ' + messages[0].role + ' for ' + messages[0].content) }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content | list | sum }}",
    ],
)
def test_a_templates_refusal_is_an_invalid_argument(template: str) -> None:
    tokenizer = PromptTokenizer(replace(FILES, chat_template=template))
    with pytest.raises(InvalidArgumentError, match="check their roles") as refused:
        resolve(chat(("user", MARKER)), tokenizer=tokenizer)
    assert MARKER not in str(refused.value)


def test_a_template_that_renders_nothing() -> None:
    tokenizer = PromptTokenizer(replace(FILES, chat_template="{# nothing #}"))
    with pytest.raises(InvalidArgumentError, match="chat is empty; a prompt needs at least one token"):
        resolve(chat(("user", "x")), tokenizer=tokenizer)


@pytest.mark.parametrize("name", [name for name, (request, _) in REFUSALS.items() if request.text])
def test_no_refusal_repeats_the_prompt(name: str) -> None:
    request = generation_pb2.GenerateRequest()
    request.CopyFrom(REFUSALS[name][0])
    request.text = MARKER
    with pytest.raises(InvalidArgumentError) as refused:
        resolve(request)
    assert MARKER not in str(refused.value)
