"""From raw logits to the law that is sampled: the rules of `SamplingParams`, by transformers' logits processors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specdec.sampling.params import SamplingParams


class OutputPenaltyLogitsProcessor(LogitsProcessor):
    """Frequency and presence penalties over the generated tokens, as OpenAI's API defines them.

    logit -= frequency_penalty * count + presence_penalty * (count > 0). Transformers has no processor for them.
    """

    def __init__(self, prompt_length: int, frequency_penalty: float, presence_penalty: float) -> None:
        self._prompt_length = prompt_length
        self._frequency_penalty = frequency_penalty
        self._presence_penalty = presence_penalty

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Args: input_ids (rows, length), scores (rows, vocab_size). Returns new scores."""
        output = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self._frequency_penalty * counts - self._presence_penalty * (counts > 0)  # type: ignore[return-value]


class ShortTopPLogitsWarper(TopPLogitsWarper):
    """Top-p without sorting the vocabulary: as a rule the nucleus lies within the most probable few hundred tokens.

    If it does not, transformers' own processor sorts everything. `benchmarks.sampling` times both.
    """

    _NUM_TOKENS = 1024

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Args: input_ids (rows, length), scores (rows, vocab_size). Returns new scores."""
        top = torch.softmax(scores, dim=-1).topk(min(self._NUM_TOKENS, scores.shape[-1]))
        mass = top.values.cumsum(dim=-1)
        is_short = mass[:, -1] >= self.top_p
        if not bool(is_short.all()):
            # Row by row, so that none depends on what the others are like.
            rows = zip(torch.split(scores, 1), is_short.tolist(), strict=True)
            whole = super().__call__
            return torch.cat([self(input_ids, row) if short else whole(input_ids, row) for row, short in rows])  # type: ignore[arg-type,return-value]
        # A token stays if those before it do not make up top_p yet; the first always stays.
        dropped = mass - top.values >= self.top_p
        kept = scores.gather(1, top.indices).masked_fill(dropped, self.filter_value)
        return torch.full_like(scores, self.filter_value).scatter_(1, top.indices, kept)  # type: ignore[return-value]


class AllowedTokensLogitsProcessor(LogitsProcessor):
    """Nothing but the listed tokens."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = torch.tensor(token_ids)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Args: input_ids (rows, length), scores (rows, vocab_size). Returns new scores."""
        ids = self._token_ids.to(scores.device)
        return torch.full_like(scores, -torch.inf).index_copy_(1, ids, scores[:, ids])  # type: ignore[return-value]


class LogitsRules:
    """The rules of one request, applied to the logits of any of its positions.

    Args:
        params: the request's rules.
        prompt_length: tokens of the prompt; penalties on the output begin behind them.
        device: of the logits.
    """

    def __init__(self, params: SamplingParams, prompt_length: int, device: torch.device) -> None:
        history_rules: list[LogitsProcessor] = []
        if params.repetition_penalty != 1.0:
            history_rules.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
        if params.frequency_penalty or params.presence_penalty:
            history_rules.append(
                OutputPenaltyLogitsProcessor(prompt_length, params.frequency_penalty, params.presence_penalty)
            )
        if params.no_repeat_ngram_size:
            history_rules.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
        if params.min_new_tokens and params.stop_token_ids:
            history_rules.append(
                MinNewTokensLengthLogitsProcessor(
                    prompt_length, params.min_new_tokens, list(params.stop_token_ids), device=str(device)
                )
            )
        rules: list[LogitsProcessor] = []
        if params.logit_bias:
            biases = {(token_id,): float(bias) for token_id, bias in params.logit_bias.items()}
            # As a dict: given a list, transformers 5.17 refuses token 0.
            rules.append(SequenceBiasLogitsProcessor(biases))  # type: ignore[arg-type]
        if params.allowed_token_ids:
            rules.append(AllowedTokensLogitsProcessor(params.allowed_token_ids))
        if params.banned_token_ids:
            rules.append(SuppressTokensLogitsProcessor(list(params.banned_token_ids), device=str(device)))
        if not params.is_greedy:
            # The order of transformers' generate, which does not apply them either when it decodes greedily.
            if params.temperature != 1.0:
                rules.append(TemperatureLogitsWarper(params.temperature))
            if params.top_k:
                rules.append(TopKLogitsWarper(params.top_k))
            if params.top_p != 1.0:
                rules.append(ShortTopPLogitsWarper(params.top_p))
            if params.min_p:
                rules.append(MinPLogitsWarper(params.min_p))
            if params.typical_p != 1.0:
                rules.append(TypicalLogitsWarper(params.typical_p))
        self.reads_history = bool(history_rules)
        """Whether the law of a position depends on the tokens before it other than through the model."""
        self._rules = LogitsProcessorList([*history_rules, *rules])
        self.is_empty = not self._rules
        """Whether logits stay as the model gave them."""
        self._device = device
        self._no_history = torch.zeros((1, 0), dtype=torch.long, device=device)

    def apply_to_rows(self, logits: torch.Tensor) -> torch.Tensor:
        """The processed logits of several positions, as `apply` gives those of each; only if not `reads_history`.

        Args:
            logits: (rows, vocab_size), float32.
        """
        return logits if self.is_empty else self._rules(self._no_history.expand(len(logits), 0), logits)  # type: ignore[arg-type]

    def apply(self, logits: torch.Tensor, history: Sequence[int]) -> torch.Tensor:
        """The processed logits of one position.

        Args:
            logits: (vocab_size,), float32, as the model gave them.
            history: all tokens before the position: prompt, output, and draft tokens on the path. Not read unless
                `reads_history`.

        Returns:
            (vocab_size,), float32; -inf for excluded tokens. The law is their softmax.
        """
        if self.is_empty:
            return logits
        input_ids = torch.tensor([list(history)], device=self._device) if self.reads_history else self._no_history
        return self._rules(input_ids, logits[None])[0]  # type: ignore[arg-type]
