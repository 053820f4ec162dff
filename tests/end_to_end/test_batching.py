"""Many clients at once: each gets what it would get alone, and the target serves them together."""

from __future__ import annotations

from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request, generate_all


async def test_sixteen_requests_equal_each_alone_and_share_forwards(deployment: Deployment) -> None:
    requests = [
        chat_request(
            prompt,
            max_new_tokens=8 + index,
            num_draft_tokens=(0, 2, 4)[index % 3],
            temperature=(0.0, 0.8)[index % 2],
            seed=index,
        )
        for index, prompt in enumerate(PROMPTS[:16])
    ]
    together = await generate_all(deployment.ngram, requests)
    for request, result in zip(requests, together, strict=True):
        alone = (await generate_all(deployment.ngram, [request]))[0]
        assert alone.token_ids == result.token_ids
        assert alone.text == result.text

    rounds = [report for result in together for report in result.rounds]
    # A pass that serves n sequences is counted by each of them as 1/n.
    num_forwards = sum(1 / report.verify.batch_sequences for report in rounds)
    assert num_forwards < len(rounds) / 2
