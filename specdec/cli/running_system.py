"""What a running system says of its own times, and what a few generations through it show."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import grpc

from specdec.client import GenerationClient
from specdec.forward_costs import ForwardCosts
from specdec.planning.acceptance import Acceptance
from specdec.planning.pass_costs import PassCosts, PassPoint
from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.v1 import draft_pb2, draft_pb2_grpc, generation_pb2, model_pb2, sampling_pb2, target_pb2, target_pb2_grpc

_NUM_PINGS = 15
_TIMEOUT_SECONDS = 10.0
_MAX_MESSAGE_BYTES = 1 << 20
_GENERATION_TIMEOUT_SECONDS = 300.0
_OUTLIERS = 0.02
"""Share of the longest times, and of the shortest, that are left out of a mean."""
_PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that adds two numbers, then one that subtracts and one that multiplies.",
    "Write a short letter to a friend about a walk in the mountains.",
)
_NEW_TOKENS = 48
_USUALLY = 0.9
"""Share of the rounds with drafts below which the formulas, by which every round has some, do not fit."""
_WINDOW_SIZES = (0, 1, 2, 4, 8)
_FEWEST_JUDGED = 30
"""A position that was judged less often says too little."""


@dataclass(frozen=True)
class Figures:
    """What could be had; None: not from there."""

    verify: PassCosts | None = None
    draft: PassCosts | None = None
    rtt_seconds: float | None = None
    draft_rtt_seconds: float | None = None
    overhead_seconds: float | None = None
    acceptance: Acceptance | None = None
    notes: tuple[str, ...] = ()
    """Where each came from, for people."""

    def filled_from(self, other: Figures) -> Figures:
        """These, and from the other one what is missing here."""
        missing = {name: getattr(other, name) for name in self.__dataclass_fields__ if getattr(self, name) is None}
        return replace(self, **missing, notes=(*self.notes, *other.notes))


class ServiceUnreadableError(Exception):
    """A service does not answer, or is none of the project's; the message names it."""


async def read_figures(addresses: Sequence[str], security: ChannelSecurity | None = None) -> Figures:
    """Ask each service; the first that knows a figure gives it.

    A target or a draft service is asked for the costs that it measured when it started and is pinged. An orchestrator
    is sent a few short generations, whose rounds are reported with their times and their acceptance.

    Args:
        addresses: HOST:PORT of targets, draft services and orchestrators.
        security: certificates, and the token or secret to send to each; None: plaintext, without one.

    Raises:
        ServiceUnreadableError: one of them does not answer, or is none of the three.
        SecurityError: a file cannot be read, or the token would go to another machine in plaintext.
    """
    figures = Figures()
    for address in addresses:
        figures = figures.filled_from(await _read(address, security))
    return figures


async def _read(address: str, security: ChannelSecurity | None) -> Figures:
    try:
        async with open_channel(address, max_message_bytes=_MAX_MESSAGE_BYTES, security=security) as channel:
            target, draft = target_pb2_grpc.TargetServiceStub(channel), draft_pb2_grpc.DraftServiceStub(channel)
            try:
                return await _target_figures(
                    address,
                    lambda: target.GetModelInfo(
                        target_pb2.TargetServiceGetModelInfoRequest(), timeout=_TIMEOUT_SECONDS
                    ),
                )
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                    raise
            try:
                return await _draft_figures(
                    address,
                    lambda: draft.GetModelInfo(draft_pb2.DraftServiceGetModelInfoRequest(), timeout=_TIMEOUT_SECONDS),
                )
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                    raise
        return await _orchestrator_figures(address, security)
    except grpc.aio.AioRpcError as error:
        raise ServiceUnreadableError(f"{address}: {error.code().name}: {error.details()}") from error


async def _target_figures(
    address: str, ask: Callable[[], Awaitable[target_pb2.TargetServiceGetModelInfoResponse]]
) -> Figures:
    info = (await ask()).model_info
    rtt = await _round_trip(ask)
    verify = _costs(info.forward_costs)
    known = (
        f"{len(info.forward_costs)} times of passes that it measured when it started"
        if verify
        else "no times of passes"
    )
    return Figures(
        verify=verify,
        rtt_seconds=rtt,
        notes=(f"target {address} ({info.model_id}): {known}; round trip from here {1e3 * rtt:.2f} ms",),
    )


async def _draft_figures(
    address: str, ask: Callable[[], Awaitable[draft_pb2.DraftServiceGetModelInfoResponse]]
) -> Figures:
    info = (await ask()).model_info
    rtt = await _round_trip(ask)
    draft = _costs(info.forward_costs)
    known = f"{len(info.forward_costs)} times of steps" if draft else "no times of steps"
    return Figures(
        draft=draft,
        draft_rtt_seconds=rtt,
        notes=(f"draft service {address} ({info.model_id}): {known}; round trip from here {1e3 * rtt:.2f} ms",),
    )


async def _round_trip(ask: Callable[[], Awaitable[object]]) -> float:
    """Median of some calls that cost the service nothing, in seconds. The connection is open already."""
    durations = []
    for _ in range(_NUM_PINGS):
        began = time.perf_counter()
        await ask()
        durations.append(time.perf_counter() - began)
    return statistics.median(durations)


def _costs(costs: Iterable[model_pb2.ForwardCost]) -> PassCosts | None:
    """None: not measured, or nothing that could be."""
    passes = [(cost.rows, max(cost.sequences, 1), cost.microseconds / 1e6) for cost in costs]
    most = max((sequences for _, sequences, _ in passes), default=1)
    try:
        if most == 1:
            return PassCosts(PassPoint(rows, seconds) for rows, _, seconds in passes)
        # What sequences cost was measured with few rows, and comes on top of more of them as well.
        known = ForwardCosts.measured(passes)
        rows_of_one = [rows for rows, sequences, _ in passes if sequences == 1]
        rows_of_most = sorted({most, *(rows for rows in rows_of_one if rows > most)})
        return PassCosts(
            PassPoint(rows, known.seconds(rows, sequences), sequences)
            for sequences, all_rows in ((1, rows_of_one), (most, rows_of_most))
            for rows in all_rows
        )
    except ValueError:
        return None


async def _orchestrator_figures(address: str, security: ChannelSecurity | None) -> Figures:
    rounds: list[ProbedRound] = []
    async with GenerationClient(address, timeout_seconds=_GENERATION_TIMEOUT_SECONDS, security=security) as client:
        # The first one finds everything cold.
        await client.collect(_request(_PROMPTS[0], 1))
        # In turns, so that a slow minute hits every size.
        for prompt in _PROMPTS:
            for num_draft_tokens in _WINDOW_SIZES:
                rounds += await _rounds(client, prompt, num_draft_tokens)
    return figures_of_rounds(rounds, f"orchestrator {address}")


class ProbedRound(NamedTuple):
    """A round, and how many draft tokens were asked for."""

    num_wanted: int
    report: generation_pb2.RoundReport


async def _rounds(client: GenerationClient, prompt: str, num_draft_tokens: int) -> list[ProbedRound]:
    """Of a prompt, prefill left out; none if the server takes no such windows."""
    try:
        result = await client.collect(_request(prompt, num_draft_tokens))
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.INVALID_ARGUMENT and num_draft_tokens:
            return []
        raise
    length = (result.started.num_prompt_tokens if result.started else 0) + _NEW_TOKENS
    # At the end of the text there is no room for more.
    return [
        ProbedRound(max(0, min(num_draft_tokens, length - report.base_length - 1)), report)
        for report in result.rounds[1:]
    ]


def _request(prompt: str, num_draft_tokens: int) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        text=prompt,
        sampling=sampling_pb2.SamplingParams(temperature=0.0, ignore_eos=True),
        max_new_tokens=_NEW_TOKENS,
        num_draft_tokens=num_draft_tokens,
    )


@dataclass
class _Counts:
    """Of windows, by position from 1."""

    judged: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    accepted: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, num_wanted: int, num_accepted: int) -> None:
        """One window. A token that was wanted and not drafted is one not accepted; those behind it do not count."""
        for position in range(1, min(num_accepted + 1, num_wanted) + 1):
            self.judged[position] += 1
            self.accepted[position] += position <= num_accepted

    def acceptance(self) -> Acceptance | None:
        """Of the positions up to the first that says too little; None: of none."""
        rates = []
        for position in sorted(self.judged):
            if self.judged[position] < _FEWEST_JUDGED:
                break
            rates.append(self.accepted[position] / self.judged[position])
        return Acceptance(tuple(rates)) if rates else None


def figures_of_rounds(rounds: Sequence[ProbedRound], source: str) -> Figures:
    """Means over reported rounds: what is late now and then counts for the rate, so medians would promise too much.

    The network is what the services do not account for of the waits, and so holds the time of messages too.

    Args:
        rounds: of requests with several K, without prefills.
        source: for the notes.
    """
    passes: defaultdict[int, list[float]] = defaultdict(list)
    networks, draft_networks, steps, rests = [], [], [], []
    counts = _Counts()
    num_wanting = sum(probed.num_wanted > 0 for probed in rounds)
    for num_wanted, report in rounds:
        counts.add(num_wanted, report.num_accepted_tokens)
        rests.append(report.wall_microseconds - report.draft_wait_microseconds - report.verify_wait_microseconds)
        verify, draft = report.verify, report.draft
        if verify.batch_rows:
            passes[verify.batch_rows].append(verify.compute_microseconds)
            spent = verify.queue_microseconds + verify.compute_microseconds
            networks.append(report.verify_wait_microseconds - spent)
        if report.num_draft_tokens and report.HasField("draft"):
            steps.append(draft.compute_microseconds / report.num_draft_tokens)
            spent = draft.queue_microseconds + draft.compute_microseconds
            draft_networks.append(report.draft_wait_microseconds - spent)
    points = [PassPoint(rows, _seconds(durations)) for rows, durations in sorted(passes.items()) if any(durations)]
    return Figures(
        verify=PassCosts(points) if points else None,
        # A drafter without a model takes next to no time, but takes some.
        draft=PassCosts.constant(max(_seconds(steps), 1e-6)) if steps else None,
        rtt_seconds=max(_seconds(networks), 0.0) if networks else None,
        draft_rtt_seconds=max(_seconds(draft_networks), 0.0) if draft_networks else None,
        overhead_seconds=max(_seconds(rests), 0.0) if rests else None,
        acceptance=counts.acceptance(),
        notes=(
            f"{source}: {len(rounds)} rounds of short generations at temperature 0, {len(steps)} with drafts",
            *_doubts(len(steps), num_wanting),
        ),
    )


def _doubts(num_drafted: int, num_wanting: int) -> list[str]:
    """What is to be said of a drafter that often has nothing to propose."""
    if num_drafted >= _USUALLY * num_wanting:
        return []
    return [
        f"its drafter proposed something in {num_drafted / num_wanting:.0%} of the rounds that wanted drafts; the "
        "plan takes the others to cost as much, which is more than they do"
    ]


def _seconds(microseconds: Sequence[float]) -> float:
    """Mean, in seconds, without a few at either end."""
    left_out = round(_OUTLIERS * len(microseconds))
    return statistics.fmean(sorted(microseconds)[left_out : len(microseconds) - left_out]) / 1e6
