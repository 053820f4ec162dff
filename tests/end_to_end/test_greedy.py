"""Temperature 0 in float32: the services write what transformers' own `generate` writes, token for token."""

from __future__ import annotations

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec.models.progress import log_report
from specdec.models.source import provide_model
from specdec.settings import DEFAULT_MODEL
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request, generate_all

NUM_TOKENS = 64


@pytest.fixture(scope="module")
def reference() -> list[list[int]]:
    """What transformers generates for each prompt, the end token included; for all at once, which takes less time."""
    directory = provide_model(DEFAULT_MODEL, log_report)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
        for prompt in PROMPTS
    ]
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    with torch.inference_mode():
        outputs = model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False)
    answers = outputs[:, inputs["input_ids"].shape[1] :].tolist()
    end = model.generation_config.eos_token_id
    # What ended before others is filled up behind its end.
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in answers]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain(deployment: Deployment) -> list[list[int]]:
    """What the services generate with K = 0."""
    requests = [chat_request(prompt, max_new_tokens=NUM_TOKENS, num_draft_tokens=0) for prompt in PROMPTS]
    return [result.token_ids for result in await generate_all(deployment.ngram, requests)]


async def test_plain_decoding_equals_transformers(reference: list[list[int]], plain: list[list[int]]) -> None:
    assert plain == reference


@pytest.mark.parametrize(
    ("drafter", "numbers"),
    [
        ("ngram", (1, 4, 8)),
        ("same", (1, 4, 8)),
        ("suffix", (4,)),
        # None: as many as pay, and as trees.
        ("combined", (4, None)),
    ],
)
async def test_speculation_equals_transformers(
    deployment: Deployment, reference: list[list[int]], drafter: str, numbers: tuple[int | None, ...]
) -> None:
    """Requests of different K run together."""
    turns = [numbers[index % len(numbers)] for index in range(len(PROMPTS))]
    requests = [
        chat_request(prompt, max_new_tokens=NUM_TOKENS, num_draft_tokens=turn)
        for prompt, turn in zip(PROMPTS, turns, strict=True)
    ]
    results = await generate_all(getattr(deployment, drafter), requests)
    assert [result.token_ids for result in results] == reference
    for number in numbers:
        finished = [result.finished for result, turn in zip(results, turns, strict=True) if turn == number]
        assert sum(each.stats.num_accepted_tokens for each in finished if each) > 0, f"K = {number}"


async def test_draft_equal_to_target_is_always_accepted(deployment: Deployment) -> None:
    requests = [
        chat_request(prompt, num_draft_tokens=4, temperature=temperature)
        for temperature in (0.0, 0.8)
        for prompt in PROMPTS[:4]
    ]
    for result in await generate_all(deployment.same, requests):
        assert result.finished is not None
        assert result.finished.stats.num_draft_tokens > 0
        assert result.finished.stats.acceptance_rate == 1.0


async def test_drafter_that_is_never_right_changes_nothing(deployment: Deployment, plain: list[list[int]]) -> None:
    requests = [chat_request(prompt, max_new_tokens=NUM_TOKENS, num_draft_tokens=4) for prompt in PROMPTS[:10]]
    results = await generate_all(deployment.wrong, requests)
    assert [result.token_ids for result in results] == plain[:10]
    drafted = sum(result.finished.stats.num_draft_tokens for result in results if result.finished)
    accepted = sum(result.finished.stats.num_accepted_tokens for result in results if result.finished)
    assert drafted > 1000
    assert accepted < 0.01 * drafted
    for result in results:
        # Every round commits at least the target's own token.
        assert len(result.rounds) <= len(result.token_ids)
