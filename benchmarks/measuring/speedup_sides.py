"""What `benchmarks.speedup` compares: the services with each drafter and without, and transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.measuring.drafters import WITH_MODEL
from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.prompts import Prompt
from benchmarks.measuring.served import ServedGeneration, measure_served
from benchmarks.measuring.speedup_report import PromptResult
from benchmarks.measuring.transformers_baseline import Assistance, TransformersBaseline
from specdec.cli.drafter_kind import DrafterKind
from specdec.client import GenerationClient

Item = TypeVar("Item")

_ASSISTED: dict[Assistance, str] = {
    "model": "transformers with assistant_model",
    "lookup": "transformers with prompt lookup",
}


@dataclass(frozen=True)
class Side:
    """Who generates: the services with one drafter, or transformers if there is none."""

    drafter: DrafterKind | None = None
    num_draft_tokens: int | None = 0
    """None: as many as the orchestrator chooses."""
    assistance: Assistance | None = None
    """Of transformers."""


@dataclass(frozen=True)
class SpeedupSettings:
    """What is measured. The same for every side, as far as it applies."""

    model: str
    drafters: tuple[DrafterKind, ...]
    draft_model: str | None
    """Of those drafters that have one, and what assists transformers where it is compared with them."""
    num_draft_tokens: int
    max_new_tokens: int
    temperature: float
    seed: int
    num_threads: int
    """Threads of a forward pass on CPU: in the target service, in the draft service, and in transformers."""
    device: str
    dtype: str
    is_auto: bool = False
    """The orchestrator chooses K; `num_draft_tokens` is that of transformers."""
    reads_features: bool = False
    """The draft model needs hidden states of the target, which transformers does not give: it assists by lookup."""

    def speculative(self, drafter: DrafterKind) -> Side:
        """The services with a drafter."""
        return Side(drafter, None if self.is_auto else self.num_draft_tokens)

    @property
    def k0(self) -> Side | None:
        """The same services with K = 0; None if that is what they are measured with anyway."""
        return Side(self.drafters[0]) if self.num_draft_tokens else None

    @property
    def transformers(self) -> Side:
        """transformers without drafts."""
        return Side()

    def assisted(self, drafter: DrafterKind) -> Side | None:
        """transformers with drafts of the same kind; None with K = 0."""
        if not self.num_draft_tokens:
            return None
        has_model = drafter in WITH_MODEL and not self.reads_features
        return Side(None, self.num_draft_tokens, "model" if has_model else "lookup")

    def assisted_words(self, drafter: DrafterKind) -> str | None:
        """What `assisted` is."""
        side = self.assisted(drafter)
        return None if side is None or side.assistance is None else _ASSISTED[side.assistance]

    @property
    def sides(self) -> tuple[Side, ...]:
        """All of them, each once."""
        wanted = [
            *(self.speculative(drafter) for drafter in self.drafters),
            self.k0,
            self.transformers,
            *(self.assisted(drafter) for drafter in self.drafters),
        ]
        return tuple(dict.fromkeys(side for side in wanted if side is not None))


class Bench:
    """Every side, ready to generate.

    Args:
        settings: what is measured.
        clients: of the orchestrator of each drafter.
        baseline: transformers.
    """

    def __init__(
        self,
        settings: SpeedupSettings,
        clients: Mapping[DrafterKind, GenerationClient],
        baseline: TransformersBaseline,
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._baseline = baseline

    async def measure(
        self, prompt: Prompt, first_side: int, max_new_tokens: int | None = None
    ) -> dict[DrafterKind, PromptResult]:
        """One generation by each side, beginning with side number `first_side`; the result for each drafter."""
        settings = self._settings
        token_ids = await self._baseline.tokenize(prompt.text)
        limit = settings.max_new_tokens if max_new_tokens is None else max_new_tokens
        served: dict[Side, ServedGeneration] = {}
        own: dict[Side, Measurement] = {}
        for side in rotated(settings.sides, first_side):
            if side.drafter is not None:
                served[side] = await self._served(side.drafter, token_ids, limit, side.num_draft_tokens)
            else:
                own[side] = await self._transformers(side, token_ids, limit)
        results = {}
        for drafter in settings.drafters:
            assisted = settings.assisted(drafter)
            results[drafter] = PromptResult(
                prompt.category,
                served[settings.speculative(drafter)],
                served[settings.k0].measurement if settings.k0 else None,
                own[settings.transformers],
                own[assisted] if assisted else None,
            )
        return results

    async def _served(
        self, drafter: DrafterKind, token_ids: list[int], max_new_tokens: int, num_draft_tokens: int | None
    ) -> ServedGeneration:
        return await measure_served(
            self._clients[drafter],
            token_ids,
            max_new_tokens=max_new_tokens,
            temperature=self._settings.temperature,
            seed=self._settings.seed,
            num_draft_tokens=num_draft_tokens,
        )

    async def _transformers(self, side: Side, token_ids: list[int], max_new_tokens: int) -> Measurement:
        return await self._baseline.generate(
            token_ids,
            max_new_tokens=max_new_tokens,
            temperature=self._settings.temperature,
            seed=self._settings.seed,
            assistance=side.assistance,
            num_assistant_tokens=side.num_draft_tokens or 0,
        )


def rotated(items: tuple[Item, ...], first: int) -> Iterator[Item]:
    """All items, beginning with number `first` (counted on past the end)."""
    for offset in range(len(items)):
        yield items[(first + offset) % len(items)]
