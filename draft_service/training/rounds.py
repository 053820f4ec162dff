"""Rounds of speculative decoding, replayed on texts of the target: exactly those that the services would have.

By the coupled rule the text follows from the target and the seed alone. So it is enough to know, at each of its
positions, whether the draft would have chosen the same token there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams


@dataclass
class RoundCounts:
    """What many rounds with K draft tokens came to."""

    num_draft_tokens: int
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Of each place in the window: rounds whose draft token there was accepted."""

    def replay(self, matches: Sequence[bool]) -> None:
        """Add the rounds of one text.

        Args:
            matches: of each of its tokens, whether the draft would have chosen it there.
        """
        self.accepted_at = self.accepted_at or [0] * self.num_draft_tokens
        start = 0
        while start < len(matches):
            window = matches[start : start + self.num_draft_tokens]
            accepted = next((place for place, match in enumerate(window) if not match), len(window))
            self.rounds += 1
            self.drafted += len(window)
            self.accepted += accepted
            for place in range(accepted):
                self.accepted_at[place] += 1
            start += accepted + 1

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds: the recovered or bonus token counts."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    def summary(self) -> dict[str, object]:
        """For a report."""
        rounds = max(self.rounds, 1)
        return {
            "num_draft_tokens": self.num_draft_tokens,
            "rounds": self.rounds,
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "acceptance_rate": round(self.accepted / max(self.drafted, 1), 4),
            "accepted_at_position": [round(count / rounds, 4) for count in self.accepted_at],
        }


def write_answers(
    target: ModelRunner,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    max_new_tokens: int,
    max_length: int,
    device: torch.device,
    num_sequences: int,
) -> list[list[int]]:
    """What the target answers to each prompt by the coupled rule; token ids without the prompt.

    Args:
        target: runs the target.
        prompts: each of at least one token.
        params: the rules; an answer ends with the first of its stop tokens.
        max_new_tokens: longest answer.
        max_length: longest text, prompt included.
        device: of the target.
        num_sequences: answers written at the same time.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    waiting = list(reversed(range(len(prompts))))
    running: dict[int, SequenceCache] = {}
    while waiting or running:
        while waiting and len(running) < num_sequences:
            running[waiting.pop()] = SequenceCache()
        texts = {place: [*prompts[place], *answers[place]] for place in running}
        logits = target.forward([Work(cache, texts[place][cache.length :], 1) for place, cache in running.items()])
        for place, rows in zip(list(running), logits, strict=True):
            chooser = TokenChooser(params, len(prompts[place]), device)
            token = chooser.choose(rows[0], texts[place])
            answers[place].append(token)
            length = len(answers[place])
            if token in params.stop_token_ids or length >= max_new_tokens or len(texts[place]) + 1 >= max_length:
                del running[place]
    return answers


def draft_matches(
    draft: ModelRunner, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, device: torch.device
) -> list[bool]:
    """Of each token of an answer, whether the draft chooses it there."""
    text = [*prompt, *answer]
    logits = draft.forward([Work(SequenceCache(), text[:-1], num_logits=len(answer))])[0]
    chooser = TokenChooser(params, len(prompt), device)
    return [
        chooser.choose(row, text[: len(prompt) + place]) == token
        for place, (row, token) in enumerate(zip(logits, answer, strict=True))
    ]
