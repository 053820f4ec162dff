"""Rounds of speculative decoding, replayed on texts of the target: exactly those that the services would have.

By the coupled rule the text follows from the target and the seed alone. So it is enough to know, at each of its
positions, whether the draft would have chosen the same token there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draft_service.feature_runner import FeatureRunner, FeatureWork
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
    accepted_at: list[int] = field(init=False)
    """Of each place in the window: rounds whose draft token there was accepted."""

    def __post_init__(self) -> None:
        self.accepted_at = [0] * self.num_draft_tokens

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count one more round."""
        self.rounds += 1
        self.drafted += num_drafted
        self.accepted += num_accepted
        for place in range(num_accepted):
            self.accepted_at[place] += 1

    def merge(self, other: RoundCounts) -> None:
        """Count the rounds of others with the same K too."""
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.accepted_at = [sum(pair) for pair in zip(self.accepted_at, other.accepted_at, strict=True)]

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


def replay_rounds(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Answer],
    params: SamplingParams,
    num_draft_tokens: int,
    device: torch.device,
) -> RoundCounts:
    """The rounds that the services would have to write some answers, all of them at the same time.

    The first token of an answer comes with the prefill, without a draft.

    Args:
        runner: runs the draft.
        prompts: what is answered.
        answers: with features, if the draft reads them.
        params: the rules.
        num_draft_tokens: K.
        device: of the draft.
    """
    counts = RoundCounts(num_draft_tokens)
    running = [
        _Replay(
            [*prompt, *answer.token_ids], len(prompt) + 1, answer.features, TokenChooser(params, len(prompt), device)
        )
        for prompt, answer in zip(prompts, answers, strict=True)
        if len(answer.token_ids) > 1
    ]
    while running:
        while drafting := [replay for replay in running if replay.num_wanted(num_draft_tokens)]:
            batch = [replay.work(reads_features=isinstance(runner, FeatureRunner)) for replay in drafting]
            for replay, work, rows in zip(drafting, batch, runner.forward(batch), strict=True):
                replay.take(rows[0], work)
        for replay in running:
            counts.add(len(replay.drafted), replay.finish_round())
        running = [replay for replay in running if replay.length < len(replay.text)]
    return counts


@dataclass(eq=False)
class _Replay:
    """A text, of which some tokens are committed."""

    text: list[int]
    length: int
    """Committed tokens."""
    features: Sequence[torch.Tensor]
    chooser: TokenChooser
    drafted: list[int] = field(default_factory=list)
    _cache: SequenceCache = field(default_factory=SequenceCache)
    _last_state: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # Of every token but the last.
        self._states = torch.cat(list(self.features))[:, -1] if self.features else torch.empty(0)

    def num_wanted(self, num_draft_tokens: int) -> int:
        """How many tokens are still to be drafted in this round."""
        return min(num_draft_tokens, len(self.text) - self.length) - len(self.drafted)

    def work(self, *, reads_features: bool) -> Work:
        """The next forward pass of the draft."""
        first = self._cache.length
        pending = [*self.text[: self.length], *self.drafted][first:]
        if not reads_features:
            return Work(self._cache, pending, 1)
        work = FeatureWork(self._cache, pending, 1)
        # The target has not run the last committed token yet.
        num_known = max(0, self.length - 1 - first)
        work.is_known = torch.arange(len(pending)) < num_known
        work.states = torch.zeros((len(pending), self._states.shape[1]))
        work.states[:num_known] = self._states[first : first + num_known]
        before = self._last_state if first >= self.length else self._states[first - 1] if first else None
        if before is not None:
            work.before[0] = before
        return work

    def take(self, logits: torch.Tensor, work: Work) -> None:
        """Draft one more token."""
        self.drafted.append(self.chooser.choose(logits, [*self.text[: self.length], *self.drafted]))
        if isinstance(work, FeatureWork) and work.read is not None:
            self._last_state = work.read[-1]

    def finish_round(self) -> int:
        """Commit what the target would; returns how many draft tokens are right."""
        right = zip(self.drafted, self.text[self.length :], strict=False)
        accepted = next((place for place, (token, truth) in enumerate(right) if token != truth), len(self.drafted))
        # What was made of guesses is run again, of states.
        self._cache.truncate(min(self._cache.length, self.length - 1))
        self.length += accepted + 1
        self.drafted = []
        return accepted
