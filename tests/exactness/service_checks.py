"""Checks of the running services: the joint law of what they generate over gRPC is the target's.

Each check is small and its tables are far apart, so that a few hundred texts show what is wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draft_service.drafters.combined import CombinedDrafter
from draft_service.drafters.drafter import Drafter
from draft_service.drafters.making import causal_lm_drafter, suffix_lookup
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.suffix import SuffixDrafter
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.exactness.expected_law import joint_law
from tests.exactness.goodness_of_fit import assert_follows
from tests.exactness.round_driver import MAX_NUM_DRAFT_TOKENS, Text, draft_settings, driving
from tests.exactness.table_model import Table, loaded_table, one_law_table, target_and_draft

COUPLED = model_pb2.ACCEPTANCE_RULE_COUPLED
REJECTION = model_pb2.ACCEPTANCE_RULE_REJECTION
BLOCK = model_pb2.ACCEPTANCE_RULE_BLOCK
TARGET, DRAFT = target_and_draft(1)
PROMPT = (0, 1, 2, 3, 1, 0, 3, 2, 0, 2, 1, 3, 3, 1)
"""Has every token behind some other, so that prompt lookup finds something."""
SURE_TARGET = one_law_table(0.4, 0.35, 0.25)
SURE_DRAFT = one_law_table(0.7, 0.2, 0.1)
"""One law each, the draft's much surer: where accepting or recovering is wrong, all tokens are wrong the same way."""
_NUM_COUPLED_TEXTS = 400
"""Fewer: noise costs more time than a draw, and `coupled_id_checks` knows each token that must come."""
_LOOKUP: dict[str, Any] = {"suffix_min": 1, "past_output_tenants": 1 << 12, "past_output_tokens": 100}
_FEW_OF_EACH: dict[int, int] = {draft_pb2.DRAFT_SOURCE_MODEL: 200, draft_pb2.DRAFT_SOURCE_SUFFIX: 200}

PLAIN = SamplingParams()
COLD = SamplingParams(temperature=0.35)
FILTERS = SamplingParams(temperature=1.6, top_k=3, top_p=0.9, min_p=0.05)
TYPICAL = SamplingParams(temperature=0.6, typical_p=0.8)
PENALTIES = SamplingParams(repetition_penalty=1.3, frequency_penalty=2.0, presence_penalty=1.0)
LISTS = SamplingParams(
    logit_bias={0: 1.5, 2: -1.0}, banned_token_ids=(3,), min_new_tokens=3, stop_token_ids=(1,), no_repeat_ngram_size=4
)


def causal_drafter(table: Table, **settings: Any) -> Callable[[], Drafter]:
    """A causal language model that is a table."""
    return lambda: causal_lm_drafter(loaded_table(table), draft_settings(**settings))


UNSURE_DRAFTER = causal_drafter(DRAFT, confidence_threshold=0.6)
"""Its laws give at most 0.8 or 0.55 to a token, so its windows have 0 to 2 tokens."""


def ngram_drafter() -> Drafter:
    """Prompt lookup that goes by a single token."""
    return NgramDrafter(
        min_length=1, max_length=2, max_num_draft_tokens=MAX_NUM_DRAFT_TOKENS, max_num_sequences=1 << 12
    )


def suffix_drafter() -> Drafter:
    """Lookup by the longest match, of a single token too, in the request and in past outputs."""
    return SuffixDrafter(
        suffix_lookup(draft_settings(**_LOOKUP)),
        max_num_draft_tokens=MAX_NUM_DRAFT_TOKENS,
        max_num_sequences=1 << 12,
    )


def combined_drafter() -> Drafter:
    """The same lookup beside a causal language model that is much surer than the target; each makes some windows."""
    settings = draft_settings(**_LOOKUP, combined_model_cost=1.0)
    return CombinedDrafter(
        causal_lm_drafter(loaded_table(SURE_DRAFT), settings),
        suffix_lookup(settings),
        model_cost=settings.combined_model_cost,
    )


@dataclass(frozen=True)
class Setting:
    """One way to run the services."""

    rule: model_pb2.AcceptanceRule.ValueType
    params: SamplingParams = PLAIN
    make_drafter: Callable[[], Drafter] = field(default_factory=lambda: causal_drafter(DRAFT))
    target: Table = field(default_factory=lambda: TARGET)
    num_texts: int = 800
    num_draft_tokens: int = 2
    num_tokens: int = 4
    """Length of the outputs whose law is looked at. The first token comes with the open, the next K + 1 from the first
    window if all of it is accepted, and from further rounds if not."""

    prompt_tokens: Sequence[int] = PROMPT

    @property
    def prompt(self) -> list[int]:
        """The prompt, within the target's vocabulary."""
        return [token % len(self.target) for token in self.prompt_tokens]


def check_rejection_over_grpc() -> None:
    """Rejection rule, sampled drafts."""
    _check(Setting(REJECTION))


def check_rejection_with_sure_drafts() -> None:
    """Rejection rule, a drafter that is much surer than the target."""
    _check(Setting(REJECTION, make_drafter=causal_drafter(SURE_DRAFT), target=SURE_TARGET))


def check_rejection_with_temperature() -> None:
    """Rejection rule, a drafter that is much surer than the target, low temperature."""
    _check(Setting(REJECTION, COLD, causal_drafter(SURE_DRAFT), SURE_TARGET))


def check_rejection_with_truncated_drafts() -> None:
    """Rejection rule, drafts sampled from a law cut to two of four tokens."""
    target, draft = one_law_table(0.1, 0.2, 0.3, 0.4), one_law_table(0.4, 0.3, 0.2, 0.1)
    _check(Setting(REJECTION, make_drafter=causal_drafter(draft, max_law_size=2), target=target))


def check_rejection_with_filters() -> None:
    """Rejection rule, temperature, top-k, top-p and min-p."""
    _check(Setting(REJECTION, FILTERS))


def check_rejection_with_typical_p() -> None:
    """Rejection rule, temperature and locally typical sampling."""
    _check(Setting(REJECTION, TYPICAL))


def check_rejection_with_penalties() -> None:
    """Rejection rule, repetition, frequency and presence penalties."""
    _check(Setting(REJECTION, PENALTIES))


def check_rejection_with_lists() -> None:
    """Rejection rule, bias, banned tokens, fewest new tokens and n-grams that must not repeat."""
    _check(Setting(REJECTION, LISTS))


def check_rejection_with_ngram() -> None:
    """Rejection rule, deterministic drafts of prompt lookup."""
    _check(Setting(REJECTION, make_drafter=ngram_drafter))


def check_block_over_grpc() -> None:
    """Block rule, sampled drafts, windows of three."""
    _check(Setting(BLOCK, num_draft_tokens=3))


def check_block_over_rounds() -> None:
    """Block rule, a drafter that is nearly always sure, so that rounds often look at positions and leave them again."""
    _check(
        Setting(
            BLOCK,
            target=one_law_table(0.6, 0.4),
            make_drafter=causal_drafter(one_law_table(0.97, 0.03)),
        )
    )


def check_block_with_filters() -> None:
    """Block rule, temperature, top-k, top-p and min-p."""
    _check(Setting(BLOCK, FILTERS))


def check_block_with_penalties() -> None:
    """Block rule, repetition, frequency and presence penalties."""
    _check(Setting(BLOCK, PENALTIES))


def check_block_with_ngram() -> None:
    """Block rule, deterministic drafts of prompt lookup, penalties."""
    _check(Setting(BLOCK, PENALTIES, ngram_drafter))


def check_rejection_with_confidence() -> None:
    """Rejection rule, windows that the drafter ends where it is unsure."""
    _check(Setting(REJECTION, make_drafter=UNSURE_DRAFTER, num_draft_tokens=3))


def check_block_with_confidence() -> None:
    """Block rule, windows that the drafter ends where it is unsure."""
    _check(Setting(BLOCK, make_drafter=UNSURE_DRAFTER, num_draft_tokens=3))


_COMBINED: dict[str, Any] = {
    "make_drafter": combined_drafter,
    "target": SURE_TARGET,
    "prompt_tokens": (0, 1, 2),
    "num_texts": 1200,
}


def check_rejection_with_combined() -> None:
    """Rejection rule, windows of samples and windows of lookup in the same text."""
    _check(Setting(REJECTION, **_COMBINED), at_least=_FEW_OF_EACH)


def check_block_with_combined() -> None:
    """Block rule, the same."""
    _check(Setting(BLOCK, **_COMBINED), at_least=_FEW_OF_EACH)


def check_coupled_over_grpc() -> None:
    """Coupled rule, drafts by the same noise."""
    _check(Setting(COUPLED, num_texts=_NUM_COUPLED_TEXTS))


def check_coupled_with_filters() -> None:
    """Coupled rule, temperature, top-k, top-p and min-p."""
    _check(Setting(COUPLED, FILTERS, num_texts=_NUM_COUPLED_TEXTS))


def check_coupled_with_penalties() -> None:
    """Coupled rule, repetition, frequency and presence penalties, prompt lookup."""
    _check(Setting(COUPLED, PENALTIES, ngram_drafter, num_texts=_NUM_COUPLED_TEXTS))


def check_coupled_with_ngram() -> None:
    """Coupled rule, prompt lookup."""
    _check(Setting(COUPLED, make_drafter=ngram_drafter, num_texts=_NUM_COUPLED_TEXTS))


def check_rejection_with_memory() -> None:
    """Rejection rule, the same requests sent again, seeds included, each of a tenant of its own with lookup in its past
    outputs."""
    target = one_law_table(0.55, 0.35, 0.1)
    setting = Setting(REJECTION, make_drafter=suffix_drafter, target=target, prompt_tokens=(2, 2), num_tokens=3)
    _check(setting, num_times=3)


def _check(setting: Setting, *, num_times: int = 1, at_least: Mapping[int, int] | None = None) -> None:
    """Generate texts with different seeds; their first tokens must follow the target's joint law.

    Args:
        setting: how.
        num_times: the texts that are looked at are those of the last time.
        at_least: windows that must have come from a source, so that the check means something.
    """
    texts = asyncio.run(_texts(setting, num_times))
    sources = Counter(source for text in texts for source in text.sources)
    assert all(sources[source] >= least for source, least in (at_least or {}).items()), f"windows by source: {sources}"
    counts = Counter(text.output[: setting.num_tokens] for text in texts)
    law = joint_law(setting.target, setting.prompt, setting.params, setting.num_tokens)
    assert_follows(counts, law, f"{model_pb2.AcceptanceRule.Name(setting.rule)}, {setting.params}")


async def _texts(setting: Setting, num_times: int) -> list[Text]:
    async with driving(loaded_table(setting.target), setting.make_drafter, setting.rule) as driver:
        for _ in range(num_times):
            texts = [
                Text(
                    setting.prompt,
                    len(setting.prompt),
                    replace(setting.params, seed=seed),
                    setting.num_draft_tokens,
                    tenant=seed.to_bytes(32, "big"),
                )
                for seed in range(setting.num_texts)
            ]
            await driver.generate(texts, setting.num_tokens)
    return texts
