"""The target as author: it invents what users ask, answers it, and leaves its law of every token that it wrote."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.training.conversation import Conversation
from draft_service.training.samples import NUM_TOP, Sample
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.noise import Stream, noise_key

TEMPERATURE = 0.9
_MAX_TURN_TOKENS = 96
_MAX_BATCH_ROWS = 2048
_GREEDY_EVERY = 3


@dataclass(slots=True, eq=False)
class _Text:
    """A text in the making."""

    index: int
    seed: int
    token_ids: list[int]
    answer_start: int | None
    """None while the user's turn is being written."""
    max_length: int
    cache: SequenceCache = field(default_factory=SequenceCache)
    law_positions: list[int] = field(default_factory=list)
    top_ids: list[torch.Tensor] = field(default_factory=list)  # each (top,)
    top_logprobs: list[torch.Tensor] = field(default_factory=list)  # each (top,)

    @property
    def temperature(self) -> float:
        """Of every third answer 0: what is decoded greedily reads differently, and drafts must know it too."""
        is_greedy = self.answer_start is not None and self.index % _GREEDY_EVERY == _GREEDY_EVERY - 1
        return 0.0 if is_greedy else TEMPERATURE

    def finish(self) -> Sample:
        return Sample(
            index=self.index,
            answer_start=self.answer_start or 0,
            token_ids=torch.tensor(self.token_ids, dtype=torch.int32),
            law_positions=torch.tensor(self.law_positions, dtype=torch.int32),
            top_ids=torch.stack(self.top_ids),
            top_logprobs=torch.stack(self.top_logprobs),
        )


class Writer:
    """Writes texts, many at the same time. A text depends on its number and the seed, not on its neighbours.

    Args:
        runner: runs the target.
        conversation: the frame of a user's turn.
        stop_token_ids: end a turn.
        prompts: whole prompts to answer, by every other text; empty: the target invents all of them.
        seed: of the run.
        num_sequences: texts at the same time.
        max_answer_tokens: longest answer.
        max_length: longest text, frame included.
    """

    def __init__(
        self,
        runner: ModelRunner,
        conversation: Conversation,
        stop_token_ids: Sequence[int],
        prompts: Sequence[Sequence[int]],
        *,
        seed: int,
        num_sequences: int,
        max_answer_tokens: int,
        max_length: int,
    ) -> None:
        self._runner = runner
        self._conversation = conversation
        self._stop_token_ids = frozenset(stop_token_ids)
        self._prompts = prompts
        self._seed = seed
        self._num_sequences = num_sequences
        self._max_answer_tokens = max_answer_tokens
        self._max_length = max_length
        self._opening_cache = SequenceCache()

    def samples(self, known: Container[int]) -> Iterator[Sample]:
        """Texts as they get finished, without end; those whose number is `known` are not written again."""
        texts: list[_Text] = []
        next_index = 0
        while True:
            while len(texts) < self._num_sequences:
                if next_index not in known:
                    texts.append(self._begin(next_index))
                next_index += 1
            self._advance(texts)
            done = [text for text in texts if self._is_done(text)]
            texts = [text for text in texts if not self._is_done(text)]
            for text in done:
                yield text.finish()

    def _begin(self, index: int) -> _Text:
        seed = noise_key(self._seed, index, Stream.TARGET)
        opening = self._conversation.opening
        if self._prompts and index % 2:
            prompt = self._prompts[index // 2 % len(self._prompts)][-self._max_length // 2 :]
            return _Text(index, seed, list(prompt), len(prompt), self._answer_end(len(prompt)))
        is_plain = not self._conversation.turn_end
        text = _Text(
            index,
            seed,
            list(opening),
            len(opening) if is_plain else None,
            self._answer_end(len(opening)) if is_plain else min(len(opening) + _MAX_TURN_TOKENS, self._max_length // 2),
        )
        if len(opening) > 1:
            if not self._opening_cache.length:
                self._runner.forward([Work(self._opening_cache, opening[:-1], num_logits=0)])
            text.cache.copy_prefix(self._opening_cache, len(opening) - 1)
        return text

    def _answer_end(self, answer_start: int) -> int:
        return min(answer_start + self._max_answer_tokens, self._max_length)

    def _is_done(self, text: _Text) -> bool:
        if text.answer_start is None or len(text.token_ids) <= text.answer_start:
            return False
        return len(text.token_ids) >= text.max_length or text.token_ids[-1] in self._stop_token_ids

    def _advance(self, texts: Sequence[_Text]) -> None:
        """One forward pass, and a token for every text whose tokens have all been run by it."""
        batch, ready = [], []
        room = _MAX_BATCH_ROWS
        for text in sorted(texts, key=lambda text: len(text.token_ids) - text.cache.length):
            pending = text.token_ids[text.cache.length :][:room]
            if not pending:
                break
            room -= len(pending)
            is_last = text.cache.length + len(pending) == len(text.token_ids)
            batch.append(Work(text.cache, pending, num_logits=int(is_last)))
            if is_last:
                ready.append(text)
        logits = torch.cat(self._runner.forward(batch))  # (ready, vocab_size)
        if ready:
            self._continue(ready, logits)

    def _continue(self, texts: Sequence[_Text], logits: torch.Tensor) -> None:
        top = logits.topk(min(NUM_TOP, logits.shape[-1]))
        top_ids = top.indices.to("cpu", torch.int32)
        top_logprobs = (top.values - logits.logsumexp(-1, keepdim=True)).to("cpu", torch.float16)
        sampled = self._sample(texts, logits, top)
        for row, (text, token) in enumerate(zip(texts, sampled, strict=True)):
            text.law_positions.append(len(text.token_ids))
            # Clones: a row alone would keep the whole step's rows in memory.
            text.top_ids.append(top_ids[row].clone())
            text.top_logprobs.append(top_logprobs[row].clone())
            text.token_ids.append(token)
            if text.answer_start is None:
                self._end_turn(text)

    def _end_turn(self, text: _Text) -> None:
        if text.token_ids[-1] in self._stop_token_ids:
            text.token_ids.pop()
        elif len(text.token_ids) < text.max_length:
            return
        text.token_ids.extend(self._conversation.turn_end)
        text.answer_start = len(text.token_ids)
        text.max_length = self._answer_end(text.answer_start)

    def _sample(self, texts: Sequence[_Text], logits: torch.Tensor, top: torch.return_types.topk) -> list[int]:
        """One token for each text, by inversion of its law: first the top tokens, then the others by their ids.

        Only where the top tokens do not reach the number drawn are the others looked at.
        """
        scaled = logits / TEMPERATURE
        log_total = scaled.logsumexp(-1, keepdim=True)
        reach = (top.values / TEMPERATURE - log_total).double().exp().cumsum(-1)  # (texts, top)
        drawn = torch.tensor(
            [[noise_key(text.seed, len(text.token_ids), Stream.TARGET) / 2.0**64] for text in texts],
            dtype=torch.float64,
            device=logits.device,
        )
        ranks = torch.where(
            torch.tensor([[text.temperature == 0.0] for text in texts], device=logits.device),
            0,
            torch.searchsorted(reach, drawn, right=True),
        )
        num_top = reach.shape[-1]
        tokens = top.indices.gather(1, ranks.clamp(max=num_top - 1))[:, 0]
        for row in (ranks[:, 0] >= num_top).nonzero()[:, 0].tolist():
            others = (scaled[row] - log_total[row]).double().exp().index_fill_(0, top.indices[row], 0.0).cumsum(0)
            if float(others[-1]) > 0.0:
                tokens[row] = torch.searchsorted(others, (drawn - reach[:, -1:])[row].clamp(max=float(others[-1])))
        return tokens.tolist()


def score_in_float32(model: PreTrainedModel) -> None:
    """Compute the logits of a half-precision model in float32: they decide which token is the most probable one.

    With SmolLM2-135M in bfloat16 that raises agreement with float32 from 97 to 99.5 % of positions.
    """
    if model.dtype == torch.float32:
        return
    holder: Any = model
    # A copy, because a head may share its values with the embeddings.
    wide = copy.deepcopy(holder.get_output_embeddings()).float()
    wide.register_forward_pre_hook(lambda _module, arguments: (arguments[0].float(),))
    holder.set_output_embeddings(wide)
