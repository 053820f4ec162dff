"""What the clients ask for: sampled text of all kinds, from one seed."""

from __future__ import annotations

import random

from specdec.v1 import generation_pb2, sampling_pb2

_WORDS = ("river", "stone", "한국어", "counts", "🔥🔥", "the", "when", "naïve", "of", "twelve", "and", "ever")
_BYTES = list(range(28, 258))
"""Of the tiny tokenizer: bytes that are no letters, so that characters come in parts."""


def make_requests(
    number: int, seed: int, max_new_tokens: int, *, is_tiny: bool
) -> list[generation_pb2.GenerateRequest]:
    """Requests at temperature 0.8 by the coupled rule, each with a seed.

    Some have penalties, least new tokens, stop strings, log-probabilities or two completions, or leave K to the server.

    Args:
        number: how many.
        seed: the same one gives the same requests.
        max_new_tokens: of the longest.
        is_tiny: whether the model is the tiny one, whose tokens are known.
    """
    rng = random.Random(seed)
    requests = []
    for index in range(number):
        sampling = sampling_pb2.SamplingParams(temperature=0.8, seed=rng.getrandbits(64))
        request = generation_pb2.GenerateRequest(
            text=" ".join(rng.choices(_WORDS, k=rng.randint(2, 12))),
            sampling=sampling,
            max_new_tokens=rng.randint(max_new_tokens // 2, max_new_tokens),
        )
        if index % 5:
            request.num_draft_tokens = rng.randint(2, 6)
        if index % 4 == 1:
            request.sampling.frequency_penalty = 0.4
            request.sampling.repetition_penalty = 1.1
        if index % 4 == 2:
            request.sampling.min_new_tokens = 20
            request.stop_strings.extend(["zq", "e 한", "\n\n"])
        if index % 10 == 3:
            request.num_completions = 2
        if index % 10 == 4 and is_tiny:
            request.sampling.allowed_token_ids.extend(_BYTES)
        if index % 10 == 7:
            request.sampling.num_logprobs = 1
        requests.append(request)
    return requests
