"""The target as author: it invents what users ask, answers it, and leaves its law of every token that it wrote."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.training.conversation import Conversation
from draft_service.training.samples import FAMILY, NUM_TOP, Sample
from draft_service.training.tasks import task_about
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.noise import Stream, noise_key

TEMPERATURE = 0.9
_MAX_TURN_TOKENS = 96
_MAX_BATCH_ROWS = 2048
_LONG_EVERY = 4
_TIMES_LONGER = 2
"""The first answer of every fourth family may be so much longer: users ask about long texts."""


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
    features: list[torch.Tensor] = field(default_factory=list)  # each (rows, states, hidden_size)

    @property
    def temperature(self) -> float:
        """Of every other answer 0: what is decoded greedily reads differently, and drafts must know it too."""
        # Families have an odd number of texts, so each place in them is greedy in every other family.
        return 0.0 if self.answer_start is not None and self.index % 2 else TEMPERATURE

    def finish(self) -> Sample:
        return Sample(
            index=self.index,
            answer_start=self.answer_start or 0,
            token_ids=torch.tensor(self.token_ids, dtype=torch.int32),
            law_positions=torch.tensor(self.law_positions, dtype=torch.int32),
            top_ids=torch.stack(self.top_ids),
            top_logprobs=torch.stack(self.top_logprobs),
            features=torch.cat(self.features) if self.features else None,
        )


class Writer:
    """Writes texts, many at the same time. A text depends on its number and the seed, not on its neighbours.

    Texts come in families of three, one after the other. The first answers what the target itself asks as a user. The
    second answers a task about that. The third answers a task about both, or one of the given prompts.

    Args:
        runner: runs the target.
        conversation: the frame of a user's turn.
        stop_token_ids: end a turn.
        prompts: whole prompts to answer, by the third text of every family; may be empty.
        seed: of the run.
        num_sequences: texts at the same time.
        max_answer_tokens: longest answer.
        max_length: longest text, frame included.
        feature_states: hidden states to keep of every text, watched by the runner; empty: none.
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
        feature_states: tuple[int, ...] = (),
    ) -> None:
        self._runner = runner
        self._feature_states = feature_states
        self._conversation = conversation
        self._stop_token_ids = frozenset(stop_token_ids)
        self._prompts = prompts
        self._seed = seed
        self._num_sequences = num_sequences
        self._max_answer_tokens = max_answer_tokens
        self._max_length = max_length
        self._opening_cache = SequenceCache()
        self._opening_features: torch.Tensor | None = None

    def samples(self, known: Mapping[int, Sample]) -> Iterator[Sample]:
        """Texts as they get finished, without end.

        Args:
            known: texts by their numbers, which are not written again.
        """
        written: dict[int, Sample] = {}
        families = (self._family(family, known, written) for family in itertools.count())
        running: list[tuple[_Text, Iterator[_Text]]] = []
        while True:
            while len(running) < self._num_sequences:
                family = next(families)
                running.extend((text, family) for text in itertools.islice(family, 1))
            self._advance([text for text, _ in running])
            done = [entry for entry in running if self._is_done(entry[0])]
            running = [entry for entry in running if not self._is_done(entry[0])]
            for text, family in done:
                written[text.index] = text.finish()
                yield written[text.index]
                running.extend((text, family) for text in itertools.islice(family, 1))

    def _family(self, family: int, known: Mapping[int, Sample], written: dict[int, Sample]) -> Iterator[_Text]:
        """The texts of a family that are not known; each begins when the one before is in `written`."""
        elders: list[Sample] = []
        for index in range(FAMILY * family, FAMILY * (family + 1)):
            if index not in known:
                yield self._begin(index, elders)
            elders.append(known[index] if index in known else written.pop(index))

    def _begin(self, index: int, elders: Sequence[Sample]) -> _Text:
        if self._prompts and len(elders) == FAMILY - 1:
            return self._answering(index, self._prompts[index // FAMILY % len(self._prompts)])
        if elders and self._conversation.turn_end:
            return self._answering(index, self._task(index, elders))
        return self._inventing(index)

    def _answering(self, index: int, prompt: Sequence[int]) -> _Text:
        cut = prompt[-self._max_length // 2 :]
        return _Text(index, self._text_seed(index), list(cut), len(cut), self._answer_end(index, len(cut)))

    def _task(self, index: int, elders: Sequence[Sample]) -> tuple[int, ...]:
        first, stops = elders[0].token_ids.tolist(), self._stop_token_ids
        conversation = self._conversation
        turn = first[len(conversation.opening) : elders[0].answer_start - len(conversation.turn_end)]
        answers = [
            [token for token in elder.token_ids[elder.answer_start :].tolist() if token not in stops]
            for elder in elders
        ]
        decode = conversation.tokenizer.decode
        return conversation.prompt(
            task_about(decode(turn).strip(), [decode(answer).strip() for answer in answers], self._text_seed(index))
        )

    def _inventing(self, index: int) -> _Text:
        opening = self._conversation.opening
        is_plain = not self._conversation.turn_end
        text = _Text(
            index,
            self._text_seed(index),
            list(opening),
            len(opening) if is_plain else None,
            self._answer_end(index, len(opening))
            if is_plain
            else min(len(opening) + _MAX_TURN_TOKENS, self._max_length // 2),
        )
        if len(opening) > 1:
            if not self._opening_cache.length:
                work = self._work(self._opening_cache, opening[:-1], 0)
                self._runner.forward([work])
                self._opening_features = work.features
            text.cache.copy_prefix(self._opening_cache, len(opening) - 1)
            if self._opening_features is not None:
                text.features.append(self._opening_features.cpu())
        return text

    def _text_seed(self, index: int) -> int:
        return noise_key(self._seed, index, Stream.TARGET)

    def _work(self, cache: SequenceCache, token_ids: Sequence[int], num_logits: int) -> Work:
        num_features = len(token_ids) if self._feature_states else 0
        return Work(cache, token_ids, num_logits, num_features=num_features, feature_states=self._feature_states)

    def _answer_end(self, index: int, answer_start: int) -> int:
        is_long = index % (FAMILY * _LONG_EVERY) == 0
        longest = self._max_answer_tokens * (_TIMES_LONGER if is_long else 1)
        return min(answer_start + longest, self._max_length)

    def _is_done(self, text: _Text) -> bool:
        if text.answer_start is None or len(text.token_ids) <= text.answer_start:
            return False
        return len(text.token_ids) >= text.max_length or text.token_ids[-1] in self._stop_token_ids

    def _advance(self, texts: Sequence[_Text]) -> None:
        """One forward pass, and a token for every text whose tokens have all been run by it."""
        batch, run, ready = [], [], []
        room = _MAX_BATCH_ROWS
        for text in sorted(texts, key=lambda text: len(text.token_ids) - text.cache.length):
            pending = text.token_ids[text.cache.length :][:room]
            if not pending:
                break
            room -= len(pending)
            is_last = text.cache.length + len(pending) == len(text.token_ids)
            batch.append(self._work(text.cache, pending, int(is_last)))
            run.append(text)
            if is_last:
                ready.append(text)
        logits = torch.cat(self._runner.forward(batch))  # (ready, vocab_size)
        for text, work in zip(run, batch, strict=True):
            if work.features is not None:
                # A copy: it is a part of the features of all.
                text.features.append(work.features.to("cpu", copy=True))
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
        text.max_length = self._answer_end(text.index, text.answer_start)

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
