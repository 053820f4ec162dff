"""Rounds of speculative decoding, replayed on texts of the target: exactly those that the services would have.

By the coupled rule the text follows from the target and the seed alone. So it is enough to know, at each of its
positions, whether the draft would have chosen the same token there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from draft_service.state_guess import state_guess
from draft_service.training.unrolled import ATTENTION_NAME as UNROLLED
from draft_service.training.unrolled import unrolled_logits
from specdec.models.loading import LoadedModel
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

    def replay(self, matches: Sequence[Sequence[bool]]) -> None:
        """Add the rounds of one text. Its first token comes with the prefill, without a draft.

        Args:
            matches: of each of its tokens, whether the draft would have chosen it there as the first token of a window,
                as the second, and so on; the last of them stands for all that follow.
        """
        self.accepted_at = self.accepted_at or [0] * self.num_draft_tokens
        start = 1
        while start < len(matches):
            steps = matches[start : start + self.num_draft_tokens]
            window = [step[min(place, len(step) - 1)] for place, step in enumerate(steps)]
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


@dataclass
class Answer:
    """What a target wrote to a prompt."""

    token_ids: list[int] = field(default_factory=list)
    """Without the prompt."""
    features: list[torch.Tensor] = field(default_factory=list)  # each (rows, states, hidden_size)
    """Of the prompt's and the answer's tokens, in parts; of none if the draft reads none."""


def write_answers(
    target: ModelRunner,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    max_new_tokens: int,
    max_length: int,
    device: torch.device,
    num_sequences: int,
    feature_states: tuple[int, ...] = (),
) -> list[Answer]:
    """What the target answers to each prompt by the coupled rule.

    Args:
        target: runs the target.
        prompts: each of at least one token.
        params: the rules; an answer ends with the first of its stop tokens.
        max_new_tokens: longest answer.
        max_length: longest text, prompt included.
        device: of the target.
        num_sequences: answers written at the same time.
        feature_states: hidden states to keep, watched by the runner.
    """
    answers = [Answer() for _ in prompts]
    waiting = list(reversed(range(len(prompts))))
    running: dict[int, SequenceCache] = {}
    while waiting or running:
        while waiting and len(running) < num_sequences:
            running[waiting.pop()] = SequenceCache()
        texts = {place: [*prompts[place], *answers[place].token_ids] for place in running}
        batch = []
        for place, cache in running.items():
            pending = texts[place][cache.length :]
            num_features = len(pending) if feature_states else 0
            batch.append(Work(cache, pending, 1, num_features=num_features, feature_states=feature_states))
        for place, work, rows in zip(list(running), batch, target.forward(batch), strict=True):
            chooser = TokenChooser(params, len(prompts[place]), device)
            token = chooser.choose(rows[0], texts[place])
            answers[place].token_ids.append(token)
            if work.features is not None:
                answers[place].features.append(work.features)
            length = len(answers[place].token_ids)
            if token in params.stop_token_ids or length >= max_new_tokens or len(texts[place]) + 1 >= max_length:
                del running[place]
    return answers


def draft_matches(
    draft: LoadedModel, prompt: Sequence[int], answer: Answer, params: SamplingParams, num_steps: int
) -> list[list[bool]]:
    """Of each token of an answer, whether the draft chooses it there, as the first token of a window, the second, ...

    Args:
        draft: with logits over the target's vocabulary.
        prompt: what is answered.
        answer: with features, if the draft reads them.
        params: the rules.
        num_steps: how far to look ahead; a draft that reads tokens alone guesses the same in every step.
    """
    text = [*prompt, *answer.token_ids]
    chooser = TokenChooser(params, len(prompt), draft.model.device)
    matches: list[list[bool]] = [[] for _ in answer.token_ids]
    for logits in _answer_logits(draft, text, len(answer.token_ids), answer.features, num_steps):
        for place, (row, token) in enumerate(zip(logits, answer.token_ids, strict=True)):
            matches[place].append(chooser.choose(row, text[: len(prompt) + place]) == token)
    return matches


@torch.inference_mode()
def _answer_logits(
    draft: LoadedModel, text: Sequence[int], length: int, features: Sequence[torch.Tensor], num_steps: int
) -> Iterator[torch.Tensor]:
    """Logits at the last `length` tokens of a text, of each step of drafting; (length, vocab_size)."""
    guess = state_guess(draft.model)
    if guess is None:
        runner = ModelRunner(draft.model, draft.info.vocab_size)
        yield runner.forward([Work(SequenceCache(), text[:-1], num_logits=length)])[0]
        return
    backend = draft.model.config._attn_implementation
    draft.model.set_attn_implementation(UNROLLED)
    try:
        token_ids = torch.tensor([text[:-1]], device=draft.model.device)
        rows = torch.arange(len(text) - 1 - length, len(text) - 1, device=draft.model.device)
        known = torch.cat(list(features))[None].to(draft.model.device, draft.model.dtype)
        for logits in unrolled_logits(draft.model, guess, token_ids, known, rows, num_steps):
            yield logits.float()
    finally:
        draft.model.set_attn_implementation(backend)
