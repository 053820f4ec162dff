"""The second phase, if it is asked for: the student writes answers, and the target says what its law was at each token.

Zhou et al. 2023 ("DistillSpec") train a draft on its own text, so that it learns from its mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from draft_service.training.samples import FAMILY, NUM_TOP, Sample
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.noise import Stream, noise_key

_FIRST_INDEX = FAMILY << 38
"""Added to the number of the text whose prompt is answered; what is held out stays held out."""
_MAX_LOGITS = 512


@dataclass(slots=True, eq=False)
class _Answer:
    index: int
    token_ids: list[int]
    answer_start: int
    seed: int
    cache: SequenceCache = field(default_factory=SequenceCache)


def own_index(sample: Sample) -> int:
    """Number of the text in which the student answers the prompt of a sample."""
    return _FIRST_INDEX + sample.index


def is_own(sample: Sample) -> bool:
    """Whether the student wrote it."""
    return sample.index >= _FIRST_INDEX


def write_own_samples(
    student: PreTrainedModel,
    draft_vocab: torch.Tensor,
    target: ModelRunner,
    samples: Sequence[Sample],
    *,
    stop_token_ids: Sequence[int],
    max_answer_tokens: int,
    max_length: int,
    seed: int,
) -> list[Sample]:
    """Answers of the student to the prompts of some texts, sampled at temperature 1, with the target's laws.

    Args:
        student: from `make_student`.
        draft_vocab: (draft_vocab_size,), int64, what its logits are of.
        target: runs the target.
        samples: whose prompts are answered; all at the same time.
        stop_token_ids: end an answer.
        max_answer_tokens: longest answer.
        max_length: longest text.
        seed: of the run.
    """
    answers = [
        _Answer(
            own_index(sample),
            sample.token_ids[: sample.answer_start].tolist(),
            sample.answer_start,
            noise_key(seed, own_index(sample), Stream.DRAFT),
        )
        for sample in samples
    ]
    ids = draft_vocab.tolist()
    runner = ModelRunner(student, len(ids))
    backend = student.config._attn_implementation
    student.set_attn_implementation(ATTENTION_NAME)
    try:
        running = answers
        while running:
            logits = torch.cat(
                runner.forward([Work(each.cache, each.token_ids[each.cache.length :], 1) for each in running])
            )
            for answer, drawn in zip(running, _draw(running, logits), strict=True):
                answer.token_ids.append(ids[drawn])
            running = [
                each
                for each in running
                if each.token_ids[-1] not in stop_token_ids
                and len(each.token_ids) < min(each.answer_start + max_answer_tokens, max_length)
            ]
    finally:
        student.set_attn_implementation(backend)
    return [_judge(target, answer) for answer in answers]


def _draw(answers: Sequence[_Answer], logits: torch.Tensor) -> list[int]:
    reach = torch.softmax(logits.double(), -1).cumsum(-1)
    numbers = [noise_key(each.seed, len(each.token_ids), Stream.DRAFT) / 2.0**64 for each in answers]
    drawn = torch.tensor(numbers, dtype=torch.float64, device=logits.device)[:, None] * reach[:, -1:]
    return torch.searchsorted(reach, drawn, right=True).clamp(max=logits.shape[-1] - 1)[:, 0].tolist()


def _judge(target: ModelRunner, answer: _Answer) -> Sample:
    """The answer with the target's laws, in pieces, because logits over the whole vocabulary are large."""
    text, start = answer.token_ids, answer.answer_start
    cache = SequenceCache()
    top_ids, top_logprobs = [], []
    ends = [*range(start, len(text) - 1, _MAX_LOGITS)[1:], len(text) - 1]
    for end in ends:
        pending = text[cache.length : end]
        logits = target.forward([Work(cache, pending, num_logits=min(len(pending), end - start + 1))])[0]
        top = logits.topk(min(NUM_TOP, logits.shape[-1]))
        top_ids.append(top.indices.to("cpu", torch.int32))
        top_logprobs.append((top.values - logits.logsumexp(-1, keepdim=True)).to("cpu", torch.float16))
    return Sample(
        index=answer.index,
        answer_start=start,
        token_ids=torch.tensor(text, dtype=torch.int32),
        law_positions=torch.arange(start, len(text), dtype=torch.int32),
        top_ids=torch.cat(top_ids),
        top_logprobs=torch.cat(top_logprobs),
    )
