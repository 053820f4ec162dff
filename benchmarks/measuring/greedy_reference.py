"""transformers' own greedy `generate`, with the gap between the two largest logits at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

from specdec.models.loading import choose_device, choose_dtype
from specdec.models.progress import default_report
from specdec.models.source import provide_model


@dataclass(frozen=True)
class GreedyReference:
    """What transformers generates for one prompt."""

    prompt_ids: list[int]
    token_ids: list[int]
    """Up to and with the stop token, if there is one."""
    top2_gaps: list[float]
    """For each token, how far the largest logit was above the second."""


class _Gaps(LogitsProcessor):
    """Changes nothing, and remembers."""

    def __init__(self) -> None:
        self.steps: list[list[float]] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        top = scores.float().topk(2, dim=-1).values
        self.steps.append((top[:, 0] - top[:, 1]).tolist())
        return scores


def generate_references(
    model_name: str,
    texts: Sequence[str],
    *,
    device: str,
    dtype: str,
    max_new_tokens: int,
    batch_size: int,
    num_threads: int,
    on_done: Callable[[int], None],
) -> list[GreedyReference]:
    """Answer each text as a chat, in its order.

    Args:
        model_name: as `specdec.models` finds it.
        texts: one user turn each.
        device: as for the services.
        dtype: element type of the weights.
        max_new_tokens: most tokens of an answer.
        batch_size: prompts generated together, padded on the left; 1 pads nothing.
        num_threads: of this process on CPU, from now on.
        on_done: told how many more are done.
    """
    torch.set_num_threads(num_threads)
    directory = provide_model(model_name, default_report())
    torch_device = choose_device(device)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=choose_dtype(dtype, torch_device), local_files_only=True
    )
    model = model.to(torch_device).eval()
    configured = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
    stops = sorted(int(token_id) for token_id in ends)
    prompts = [_chat_ids(tokenizer, text) for text in texts]
    references: list[GreedyReference | None] = [None] * len(prompts)
    # Prompts of like length together: less padding.
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        width = max(len(prompts[index]) for index in indices)
        pad = stops[0] if stops else 0
        input_ids = torch.tensor([[pad] * (width - len(prompts[i])) + prompts[i] for i in indices])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in indices])
        gaps = _Gaps()
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=stops, pad_token_id=pad
        )
        with torch.inference_mode():
            output = model.generate(
                input_ids.to(torch_device),
                attention_mask=mask.to(torch_device),
                logits_processor=LogitsProcessorList([gaps]),
            )
        for row, index in enumerate(indices):
            token_ids = _until_stop(output[row, width:].tolist(), stops)
            row_gaps = [step[row] for step in gaps.steps[: len(token_ids)]]
            references[index] = GreedyReference(prompts[index], token_ids, row_gaps)
        on_done(len(indices))
    return [reference for reference in references if reference is not None]


def _chat_ids(tokenizer: Any, text: str) -> list[int]:
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    token_ids: list[int] = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    return token_ids


def _until_stop(token_ids: list[int], stops: Sequence[int]) -> list[int]:
    for index, token_id in enumerate(token_ids):
        if token_id in stops:
            return token_ids[: index + 1]
    return token_ids
