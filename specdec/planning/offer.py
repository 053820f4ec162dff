"""The three ways to serve a model, each at its best under load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from specdec.planning.acceptance import Acceptance
from specdec.planning.capacity import Absence, Serving, Shift
from specdec.planning.costs import Costs
from specdec.planning.latency_goal import LatencyGoal
from specdec.planning.pipeline import Pipeline, RoundParts
from specdec.planning.request_mix import RequestMix

Way = Literal["target-only", "co-located", "split"]

_NUM_DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Prices:
    """What a device costs, in dollars an hour.

    Raises:
        ValueError: a price is not above 0.
    """

    target_per_hour: float
    draft_per_hour: float

    def __post_init__(self) -> None:
        if self.target_per_hour <= 0 or self.draft_per_hour <= 0:
            raise ValueError("prices are above 0")


@dataclass(frozen=True)
class Offer:
    """One target, and what goes with it, full of clients that all keep the goal."""

    way: Way
    num_draft_tokens: int
    """K."""
    num_clients: int
    drafts_per_target: float
    """Draft devices; a part of one where several targets share it."""
    tokens_per_second: float
    """Of all clients, while they decode."""
    tpot_seconds: float
    pass_seconds: float
    """By which the target's device is occupied, co-located drafting and a share of prefills included."""
    busy_share: float
    """Of the target's device."""
    dollars_per_hour: float | None
    dollars_per_million_tokens: float | None


@dataclass(frozen=True)
class Demand:
    """What is to be served, and how well."""

    mix: RequestMix
    goal: LatencyGoal
    max_sequences: int
    """Most clients of one target, whatever the times say."""
    kv_tokens: int | None
    """Tokens that the target's memory holds; None: enough."""
    num_targets: int = 1
    """Targets that share the draft devices."""

    @property
    def limit(self) -> int:
        """Most clients of one target; 0 if its memory holds not one request."""
        if self.kv_tokens is None:
            return self.max_sequences
        return min(self.max_sequences, int(self.kv_tokens / self.mix.mean_context_tokens()))


@dataclass(frozen=True)
class Offers:
    """Looks for the best of each way: the cheapest token, or the most clients where there are no prices."""

    costs: Costs
    acceptance: Acceptance
    demand: Demand
    prices: Prices | None
    max_draft_tokens: int

    def target_only(self) -> Offer | None:
        """Plain decoding, without network: the loop runs beside the target. None: the goal cannot be kept."""
        return self._best(self._on_one_device("target-only", [0]))

    def colocated(self) -> Offer | None:
        """Draft and target take turns on one device, which every round occupies for `K * t_draft + t_verify`.

        As `target_only`; K is at least 1.
        """
        return self._best(self._on_one_device("co-located", range(1, self.max_draft_tokens + 1)))

    def split(self, pipeline: Pipeline) -> Offer | None:
        """Drafts on devices of their own. A round occupies the target for `t_verify`, and takes the pipeline's time.

        As `target_only`; K is at least 1.
        """
        return self._best(self._split(pipeline))

    def _on_one_device(self, way: Way, sizes: Iterable[int]) -> Iterator[Offer]:
        draft = self.costs.draft_beside_target
        tpot = self.demand.goal.longest_tpot(self.demand.mix, self.costs.verify, 0.0)
        for k in sizes:
            verify = self._verify_seconds(k)
            serving = Serving(
                # Bound here: the next k is another function.
                lambda n, k=k, verify=verify: (k * draft.seconds(n, n) if k else 0.0) + verify(n),  # type: ignore[misc]
                lambda n, seconds: [Absence(1.0, self.costs.overhead_seconds)],
                # The loop is in step with the device, and the target service waits for sequences that decode plainly.
                waits=True,
            )
            yield from self._offer(way, k, serving, tpot, 0)

    def _split(self, pipeline: Pipeline) -> Iterator[Offer]:
        costs = self.costs
        tpot = self.demand.goal.longest_tpot(self.demand.mix, costs.verify, costs.rtt_seconds)
        for k in range(1, self.max_draft_tokens + 1):
            for num_drafts in _NUM_DRAFTS:
                serving = self._split_serving(pipeline, k, num_drafts)
                found = list(self._offer("split", k, serving, tpot, num_drafts / self.demand.num_targets))
                yield from found
                # One for each client is the most that can be of use.
                most = self.demand.num_targets * (found[0].num_clients if found else self.demand.limit)
                if costs.draft.is_constant or num_drafts >= most:
                    break

    def _split_serving(self, pipeline: Pipeline, k: int, num_drafts: int) -> Serving:
        costs = self.costs
        verify = self._verify_seconds(k)

        def absences(num_clients: int, seconds: float) -> list[Absence]:
            # At worst all clients of a drafter draft at once.
            together = -(-num_clients * self.demand.num_targets // num_drafts)
            drafting = k * costs.draft.seconds(together, together)
            network = costs.rtt_seconds + costs.overhead_seconds
            parts = RoundParts(drafting, seconds, network, costs.draft_rtt_seconds)
            # A drafter that drafts for more outcomes than come true has to find the time for it.
            least = max(seconds, pipeline.drafting_rounds() * drafting)
            return [Absence(share, max(taken, least) - seconds) for share, taken in pipeline.outcomes(parts)]

        return Serving(verify, absences)

    def _verify_seconds(self, k: int) -> Callable[[float], float]:
        """Time that a pass over so many windows takes of the target, with the prefills that its tokens cost."""
        verify, mix = self.costs.verify, self.demand.mix
        tokens = self.acceptance.expected_tokens(k)

        def seconds(num_sequences: float) -> float:
            rows = num_sequences * (k + 1)
            prefill = mix.prefill_seconds_per_token(verify, rows)
            return verify.seconds(rows, num_sequences) + num_sequences * tokens * prefill

        return seconds

    def _offer(self, way: Way, k: int, serving: Serving, tpot: float, drafts: float) -> Iterator[Offer]:
        """One, or none if the goal cannot be kept."""
        tokens = self.acceptance.expected_tokens(k)
        shift = serving.most_clients(tpot * tokens, self.demand.limit)
        if shift is not None:
            yield self._of_shift(way, k, drafts, shift, tokens)

    def _of_shift(self, way: Way, k: int, drafts: float, shift: Shift, tokens: float) -> Offer:
        rate = shift.num_clients * tokens / shift.round_seconds
        per_hour = None
        if self.prices is not None:
            per_hour = self.prices.target_per_hour + drafts * self.prices.draft_per_hour
        return Offer(
            way=way,
            num_draft_tokens=k,
            num_clients=shift.num_clients,
            drafts_per_target=drafts,
            tokens_per_second=rate,
            tpot_seconds=shift.round_seconds / tokens,
            pass_seconds=shift.pass_seconds,
            busy_share=shift.busy_share,
            dollars_per_hour=per_hour,
            dollars_per_million_tokens=None if per_hour is None else per_hour / _SECONDS_PER_HOUR / rate * 1e6,
        )

    @staticmethod
    def _best(offers: Iterable[Offer]) -> Offer | None:
        """The cheapest, of equals the first; without prices the one with most clients and fewest drafts."""
        return min(
            offers,
            key=lambda offer: (
                (-offer.num_clients, offer.drafts_per_target, -offer.tokens_per_second)
                if offer.dollars_per_million_tokens is None
                else (offer.dollars_per_million_tokens, 0, 0.0)
            ),
            default=None,
        )
