"""Wrong variants of the random numbers and of rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specdec.sampling import laws, noise
from specdec.sampling.laws import CounterDraws, TargetLaw
from specdec.sampling.noise import Stream
from tests.exactness import number_checks as numbers
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage


def _patch_below(patch: pytest.MonkeyPatch, change: Callable[[int, Stream, int], tuple[int, Stream, int]]) -> None:
    """Change the position, stream and base length that a decision's number is made of."""

    def below(bound: int, seed: int, position: int, stream: Stream, base_length: int, nth: int = 0) -> int:
        return noise.below(bound, seed, *change(position, stream, base_length), nth)

    patch.setattr(laws, "below", below)


@sabotage(services.check_rejection_over_grpc, numbers.check_counter_draws)
def draft_and_accept_by_one_number(patch: pytest.MonkeyPatch) -> None:
    """A draft token is judged with the number it was drawn with."""
    _patch_below(patch, lambda position, stream, base: (position, Stream(min(stream, Stream.DRAFT)), base))


@sabotage(services.check_block_over_rounds, numbers.check_counter_draws)
def rounds_share_numbers(patch: pytest.MonkeyPatch) -> None:
    """A round decides about a position by the numbers of the round before, which left it."""
    _patch_below(patch, lambda position, stream, base: (position, stream, 0))


@sabotage(numbers.check_counter_draws)
def pick_at_the_edge(patch: pytest.MonkeyPatch) -> None:
    """A number that falls on the edge between two tokens goes to the first: one without weight can be picked."""
    pick = CounterDraws.pick

    def pick_first(
        self: CounterDraws, weights: torch.Tensor | list[int], position: int, stream: Stream, nth: int = 0
    ) -> int:
        if isinstance(weights, list):
            return pick(self, weights, position, stream, nth)
        cumulative = weights.cumsum(0)
        drawn = noise.below(int(cumulative[-1]), self._seed, position, stream, self._base_length, nth)
        return int(torch.searchsorted(cumulative, drawn))

    patch.setattr(CounterDraws, "pick", pick_first)


@sabotage(numbers.check_law_rounding)
def a_chance_for_excluded_tokens(patch: pytest.MonkeyPatch) -> None:
    """A token that the rules exclude keeps the least weight there is."""
    from_logits = TargetLaw.from_logits

    def with_excluded(processed_logits: torch.Tensor, *, is_greedy: bool) -> TargetLaw:
        weights = from_logits(processed_logits, is_greedy=is_greedy)._weights
        return TargetLaw(weights + (processed_logits == -torch.inf).long())

    patch.setattr(TargetLaw, "from_logits", with_excluded)


@sabotage(numbers.check_noise_resolution)
def coarse_noise(patch: pytest.MonkeyPatch) -> None:
    """Noise of 24 bits, as a float32 generator gives it."""
    of_bits = noise._gumbel_of_bits
    patch.setattr(noise, "_gumbel_of_bits", lambda bits: of_bits(bits >> 8 << 8))


@sabotage(numbers.check_law_rounding)
def coarse_law(patch: pytest.MonkeyPatch) -> None:
    """The target's law is rounded as the draft's may be."""
    patch.setattr(laws, "_TARGET_SCALE", 2.0**16)
