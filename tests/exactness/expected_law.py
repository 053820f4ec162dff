"""The law of a target with sampling rules, written out by hand in plain Python: no code of the services, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specdec.sampling.params import SamplingParams
from tests.exactness.goodness_of_fit import Tokens
from tests.exactness.table_model import Table

_NEVER = -math.inf


def joint_law(table: Table, prompt: Sequence[int], params: SamplingParams, length: int) -> dict[Tokens, float]:
    """Probability of each continuation of `length` tokens that can come."""
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        law = {
            (*tokens, token): so_far * chance
            for tokens, so_far in law.items()
            for token, chance in enumerate(next_token_law(table, [*prompt, *tokens], len(prompt), params))
            if chance
        }
    return law


def next_token_law(table: Table, history: Sequence[int], prompt_length: int, params: SamplingParams) -> list[float]:
    """Probability of each token behind `history` (at least two tokens, prompt included)."""
    scores = list(table[history[-2]][history[-1]])
    scores = _penalised(scores, history, prompt_length, params)
    scores = [score + params.logit_bias.get(token, 0.0) for token, score in enumerate(scores)]
    banned = set(params.banned_token_ids)
    if len(history) - prompt_length < params.min_new_tokens:
        banned |= set(params.stop_token_ids)
    for token in range(len(scores)):
        if token in banned or (params.allowed_token_ids and token not in params.allowed_token_ids):
            scores[token] = _NEVER
    if params.temperature == 0.0:
        best = max(range(len(scores)), key=lambda token: scores[token])
        return [float(token == best) for token in range(len(scores))]
    law = _softmax([score / params.temperature for score in scores])
    if params.top_k:
        law = _kept(law, _ranked(law)[: params.top_k])
    law = _kept(law, _nucleus(law, params.top_p))
    law = _kept(law, [token for token, chance in enumerate(law) if chance >= params.min_p * max(law)])
    return _kept(law, _typical(law, params.typical_p))


def _penalised(scores: list[float], history: Sequence[int], prompt_length: int, params: SamplingParams) -> list[float]:
    output = history[prompt_length:]
    scores = list(scores)
    for token, score in enumerate(scores):
        if token in history:
            scores[token] = score * params.repetition_penalty if score < 0 else score / params.repetition_penalty
        if token in output:
            scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    size = params.no_repeat_ngram_size
    if size:
        for start in range(len(history) - size + 1):
            *first, last = history[start : start + size]
            if list(history[len(history) - size + 1 :]) == first:
                scores[last] = _NEVER
    return scores


def _softmax(scores: Sequence[float]) -> list[float]:
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def _kept(law: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """The law of only these tokens."""
    mass = sum(law[token] for token in tokens)
    return [chance / mass if token in tokens else 0.0 for token, chance in enumerate(law)]


def _ranked(law: Sequence[float]) -> list[int]:
    return sorted(range(len(law)), key=lambda token: -law[token])


def _nucleus(law: Sequence[float], top_p: float) -> list[int]:
    """The most probable tokens that reach `top_p` together."""
    kept: list[int] = []
    for token in _ranked(law):
        if kept and sum(law[other] for other in kept) >= top_p:
            break
        kept.append(token)
    return kept


def _typical(law: Sequence[float], typical_p: float) -> list[int]:
    """The tokens whose surprise is nearest to its mean, as many as reach `typical_p` together."""
    possible = [token for token, chance in enumerate(law) if chance]
    mean = sum(-law[token] * math.log(law[token]) for token in possible)
    kept: list[int] = []
    for token in sorted(possible, key=lambda token: abs(-math.log(law[token]) - mean)):
        if kept and sum(law[other] for other in kept) >= typical_p:
            break
        kept.append(token)
    return kept
