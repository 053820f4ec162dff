"""What a trained draft is worth: acceptance by category, K and temperature, step times, and the speed to expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draft_service.feature_runner import make_runner
from draft_service.training.rounds import RoundCounts, replay_rounds, write_answers
from draft_service.training.step_times import Pass, step_seconds
from specdec.models.loading import LoadedModel
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner
from specdec.sampling.params import SamplingParams

NUM_DRAFT_TOKENS = (2, 4, 8)
TEMPERATURES = (0.0, 0.8)
OVERALL = "overall"
HELD_OUT = "held-out"
"""Category of prompts that the target wrote itself; the overall numbers are of all others."""
_MAX_NEW_TOKENS = 128
_NUM_SEQUENCES = 64
_TIMED_WINDOW = 4
"""Steps of the draft in a row, as a window has them: the first one finds the target's weights in the caches."""


def measure_draft(
    draft: LoadedModel,
    target: LoadedModel,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    *,
    seed: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Acceptance and step times of a draft; for report.json.

    Args:
        draft: with logits over the target's vocabulary.
        target: what it guesses.
        prompts: token ids of whole prompts, by category.
        seed: of the requests that are replayed.
        tell: told what is going on.
    """
    draft_runner = make_runner(draft)
    feature_states = tuple(draft.info.feature_states)
    hidden_states = HiddenStates(target.model) if feature_states else None
    if hidden_states is not None:
        hidden_states.watch(feature_states)
    target_runner = ModelRunner(target.model, target.info.vocab_size, hidden_states)
    tell("timing steps")
    times = _step_seconds(draft_runner, target_runner, target.info.max_context_length)
    acceptance = []
    for temperature in TEMPERATURES:
        counts: dict[tuple[str, int], RoundCounts] = {}
        for category, of_category in prompts.items():
            tell(f"answering {len(of_category)} prompts of {category} at temperature {temperature:g}")
            params = SamplingParams(
                temperature=temperature, seed=seed, stop_token_ids=tuple(target.info.stop_token_ids)
            )
            answers = write_answers(
                target_runner,
                of_category,
                params,
                max_new_tokens=_MAX_NEW_TOKENS,
                max_length=target.info.max_context_length,
                device=target.model.device,
                num_sequences=_NUM_SEQUENCES,
                feature_states=feature_states,
            )
            for num_draft_tokens in NUM_DRAFT_TOKENS:
                found = replay_rounds(draft_runner, of_category, answers, params, num_draft_tokens, draft.model.device)
                counts[category, num_draft_tokens] = found
                if category != HELD_OUT:
                    counts.setdefault((OVERALL, num_draft_tokens), RoundCounts(num_draft_tokens)).merge(found)
        for (category, num_draft_tokens), of_rounds in sorted(counts.items()):
            round_seconds = num_draft_tokens * times["draft"]["1"] + times["target"][str(num_draft_tokens + 1)]
            speedup = of_rounds.mean_acceptance_length * times["target"]["1"] / round_seconds
            acceptance.append(
                {
                    "temperature": temperature,
                    "category": category,
                    **of_rounds.summary(),
                    "predicted_speedup": round(speedup, 3),
                }
            )
    return {
        "step_seconds": times,
        "step_ratio": round(times["draft"]["1"] / times["target"]["1"], 4),
        "acceptance": acceptance,
    }


def _step_seconds(draft: ModelRunner, target: ModelRunner, max_length: int) -> dict[str, dict[str, float]]:
    windows = [1, *(count + 1 for count in NUM_DRAFT_TOKENS)]
    passes = [Pass("draft", draft, 1, in_a_row=_TIMED_WINDOW), *(Pass("target", target, rows) for rows in windows)]
    medians: dict[str, dict[str, float]] = {"draft": {}, "target": {}}
    for (name, rows), seconds in step_seconds(passes, max_length).items():
        medians[name][str(rows)] = round(seconds, 6)
    return medians
