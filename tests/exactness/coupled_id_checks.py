"""Checks of the coupled rule over gRPC: each token, and each accepted draft token, is the one computed by hand."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from draft_service.drafters.drafter import Drafter
from specdec.sampling.noise import Stream, gumbel_reference, noise_key
from specdec.sampling.params import SamplingParams
from tests.exactness.expected_law import next_token_law
from tests.exactness.round_driver import MAX_NUM_DRAFT_TOKENS, Text, driving
from tests.exactness.service_checks import (
    COUPLED,
    DRAFT,
    FILTERS,
    LISTS,
    PENALTIES,
    PLAIN,
    PROMPT,
    TARGET,
    TYPICAL,
    UNSURE_DRAFTER,
    causal_drafter,
    ngram_drafter,
)
from tests.exactness.table_model import Table, loaded_table

_NUM_TOKENS = 12
_NUM_SEEDS = 4
_GREEDY = SamplingParams(temperature=0.0, frequency_penalty=1.0)
_RULES = (
    PLAIN,
    FILTERS,
    TYPICAL,
    PENALTIES,
    # Long outputs repeat themselves before long where few tokens are allowed.
    replace(LISTS, no_repeat_ngram_size=0),
    SamplingParams(no_repeat_ngram_size=5),
    _GREEDY,
)


def chosen_by_hand(table: Table, history: Sequence[int], prompt_length: int, params: SamplingParams) -> int:
    """The token with the highest log-probability plus noise of (seed, absolute position, token)."""
    law = next_token_law(table, history, prompt_length, params)
    key = noise_key(params.seed, len(history), Stream.TARGET)
    scores = {token: math.log(chance) + gumbel_reference(key, token) for token, chance in enumerate(law) if chance}
    return max(scores, key=lambda token: scores[token])


def plain_by_hand(params: SamplingParams, num_tokens: int) -> list[int]:
    """Prompt and plain decoding behind it."""
    history = list(PROMPT)
    while len(history) < len(PROMPT) + num_tokens:
        history.append(chosen_by_hand(TARGET, history, len(PROMPT), params))
    return history


def random_tree(committed: Sequence[int]) -> tuple[list[int], list[int]]:
    """A full window of random tokens, siblings distinct, in random shape; a function of the committed tokens."""
    source = random.Random(str(committed))
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < MAX_NUM_DRAFT_TOKENS:
        parent = source.randrange(-1, len(tokens))
        token = source.randrange(len(TARGET))
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return tokens, parents


def check_coupled_ids() -> None:
    """Whatever drafts, K and batch mates are, and with random trees, ids are those of plain decoding by hand."""
    for make_drafter in (causal_drafter(DRAFT), UNSURE_DRAFTER, ngram_drafter):
        texts = []
        for params in _seeded(_RULES):
            texts += [Text(list(PROMPT), len(PROMPT), params, num_draft_tokens) for num_draft_tokens in (0, 1, 2, 5)]
            texts.append(Text(list(PROMPT), len(PROMPT), params, 0, draft_tree=random_tree))
        asyncio.run(_generate(texts, make_drafter))
        for text in texts:
            expected = plain_by_hand(text.params, len(text.output))
            kind = "a tree" if text.draft_tree else f"K = {text.num_draft_tokens}"
            assert text.token_ids == expected, f"{kind}, {text.params}: {text.token_ids} instead of {expected}"


def check_coupled_acceptance() -> None:
    """As many draft tokens are accepted as by hand: wrong caches of the drafter change no token; this shows them."""
    texts = [Text(list(PROMPT), len(PROMPT), params, 3) for params in _seeded((PLAIN, PENALTIES))]
    asyncio.run(_generate(texts, causal_drafter(DRAFT)))
    for text in texts:
        num_accepted = 0
        history = text.token_ids[: len(PROMPT) + 1]
        while len(history) < len(text.token_ids):
            drafted = list(history)
            for _ in range(text.num_draft_tokens):
                drafted.append(chosen_by_hand(DRAFT, drafted, len(PROMPT), text.params))
            agreed = 0
            while agreed < text.num_draft_tokens and drafted[len(history)] == _target_token(history, text.params):
                history.append(drafted[len(history)])
                agreed += 1
            history.append(_target_token(history, text.params))
            num_accepted += agreed
        assert text.num_accepted == num_accepted, f"{text.num_accepted} instead of {num_accepted} tokens accepted"


def _target_token(history: Sequence[int], params: SamplingParams) -> int:
    return chosen_by_hand(TARGET, history, len(PROMPT), params)


def _seeded(rules: Sequence[SamplingParams]) -> list[SamplingParams]:
    return [replace(params, seed=seed) for seed in range(_NUM_SEEDS) for params in rules]


async def _generate(texts: Sequence[Text], make_drafter: Callable[[], Drafter]) -> None:
    async with driving(loaded_table(TARGET), make_drafter, COUPLED) as driver:
        await driver.generate(texts, _NUM_TOKENS)
