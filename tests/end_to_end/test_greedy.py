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
    """What transformers generates for each prompt, one at a time, the end token included."""
    directory = provide_model(DEFAULT_MODEL, log_report)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    answers = []
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        input_ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.inference_mode():
            output = model.generate(
                input_ids, attention_mask=torch.ones_like(input_ids), max_new_tokens=NUM_TOKENS, do_sample=False
            )
        answers.append(output[0, input_ids.shape[1] :].tolist())
    return answers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain(deployment: Deployment) -> list[list[int]]:
    """What the services generate with K = 0."""
    requests = [chat_request(prompt, max_new_tokens=NUM_TOKENS, num_draft_tokens=0) for prompt in PROMPTS]
    return [result.token_ids for result in await generate_all(deployment.ngram, requests)]


async def test_plain_decoding_equals_transformers(reference: list[list[int]], plain: list[list[int]]) -> None:
    assert plain == reference


@pytest.mark.parametrize(
    ("drafter", "num_draft_tokens"),
    [
        *[(drafter, num_draft_tokens) for drafter in ("ngram", "same") for num_draft_tokens in (1, 4, 8)],
        ("suffix", 4),
        ("combined", 4),
        # As many as pay, and as trees.
        ("combined", None),
    ],
)
async def test_speculation_equals_transformers(
    deployment: Deployment, reference: list[list[int]], drafter: str, num_draft_tokens: int | None
) -> None:
    requests = [
        chat_request(prompt, max_new_tokens=NUM_TOKENS, num_draft_tokens=num_draft_tokens) for prompt in PROMPTS
    ]
    results = await generate_all(getattr(deployment, drafter), requests)
    assert [result.token_ids for result in results] == reference
    assert sum(result.finished.stats.num_accepted_tokens for result in results if result.finished) > 0


async def test_draft_equal_to_target_is_always_accepted(deployment: Deployment) -> None:
    for temperature in (0.0, 0.8):
        requests = [chat_request(prompt, num_draft_tokens=4, temperature=temperature) for prompt in PROMPTS[:4]]
        for result in await generate_all(deployment.same, requests):
            assert result.finished is not None
            assert result.finished.stats.num_draft_tokens > 0
            assert result.finished.stats.acceptance_rate == 1.0


async def test_drafter_that_is_never_right_changes_nothing(deployment: Deployment, plain: list[list[int]]) -> None:
    requests = [chat_request(prompt, max_new_tokens=NUM_TOKENS, num_draft_tokens=4) for prompt in PROMPTS]
    results = await generate_all(deployment.wrong, requests)
    assert [result.token_ids for result in results] == plain
    drafted = sum(result.finished.stats.num_draft_tokens for result in results if result.finished)
    accepted = sum(result.finished.stats.num_accepted_tokens for result in results if result.finished)
    assert drafted > 1000
    assert accepted < 0.01 * drafted
    for result in results:
        # Every round commits at least the target's own token.
        assert len(result.rounds) <= len(result.token_ids)
