"""Many requests against services of known costs, on a clock of its own: who waits for whom is as in the real ones."""

from __future__ import annotations

import contextlib
import functools
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.round_costs import RoundCosts
from orchestrator.window_size import WindowSize
from specdec.engine.gathering import Gathering
from specdec.forward_costs import ForwardCosts
from tests.orchestrator.made_rounds import made_round

_NOISE = 0.05
"""Standard deviation of the logarithm of what passes take."""


@dataclass(frozen=True)
class Machine:
    """What passes take, in seconds."""

    verify: tuple[tuple[int, float], ...]
    """Of the target with one sequence, by rows."""
    verify_each: float
    """What another sequence adds to it."""
    step: float
    """Of the drafter, with one sequence."""
    step_each: float
    hop: float = 0.002
    """One way between the orchestrator and a service."""
    contention: float = 0.0
    """How much longer passes take while the drafter is at work: they share a memory bus, or a power limit."""

    def costs(self) -> ForwardCosts:
        """Of the target, as it measures them when it starts."""
        return ForwardCosts(self.verify, self.verify_each)


@dataclass(eq=False)
class _Client:
    """One request after another."""

    size: WindowSize
    ends: contextlib.ExitStack
    tokens_left: int
    has_drafter: bool
    """Whether the draft service has read the text so far."""
    count: int = 0
    """Draft tokens of the round in progress; what follows is of that round, too."""
    steps_left: int = 0
    asked: float = 0.0
    drafted_from: float = 0.0
    drafted_at: float = 0.0
    draft_sequences: int = 0
    draft_queue: float = 0.0
    arrived: float = 0.0


@dataclass
class SimulatedLoad:
    """A closed loop of clients.

    Args:
        machine: the services.
        num_clients: how many requests run at once.
        acceptance: probability that a draft token is right.
        new_size: the choice of K of a new request.
        costs: told of the requests that run; None: nobody is.
        output_tokens: of each request.
    """

    machine: Machine
    num_clients: int
    acceptance: float
    new_size: Callable[[], WindowSize]
    costs: RoundCosts | None = None
    output_tokens: int = 128
    seed: int = 0
    chosen: list[int] = field(default_factory=list)
    """K of all rounds."""
    num_begun: int = 0
    """Requests so far."""
    num_without_drafts: int = 0
    """Those that the draft service did not read the prompt of when they began."""
    num_tokens: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._true = self.machine.costs()
        self._learnt = self.machine.costs()
        self._gathering = Gathering()
        self._waiting: list[_Client] = []
        self._is_verifying = self._is_drafting = False
        self._drafts: list[_Client] = []
        self._num_ended = 0
        self.num_clients, wanted = 0, self.num_clients
        self.resize(wanted)

    def resize(self, num_clients: int) -> None:
        """Let more requests come, or those that end be the last ones of their clients."""
        missing = num_clients - self.num_clients
        self.num_clients = num_clients
        for _ in range(missing):
            self._begin()
        self._num_ended += max(0, -missing)

    def run(self, seconds: float) -> float:
        """Go on for so long. Returns tokens a second."""
        until, before = self.now + seconds, self.num_tokens
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until
        return (self.num_tokens - before) / seconds

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now + seconds, self._num_events, action))

    def _begin(self) -> None:
        ends = contextlib.ExitStack()
        if self.costs is not None:
            ends.enter_context(self.costs.running())
        # Not all at once: prompts take their time.
        size, num_tokens = self.new_size(), self._random.randint(self.output_tokens // 2, self.output_tokens)
        client = _Client(size, ends, num_tokens, size.begins_with_drafts())
        self.num_begun += 1
        self.num_without_drafts += not client.has_drafter
        self._at(self._random.uniform(0.0, 0.02), functools.partial(self._round, client))

    def _round(self, client: _Client) -> None:
        client.count = client.size.choose().model
        if client.count and not client.has_drafter:
            # The draft service reads the text; the round does not wait for it.
            client.count, client.has_drafter = 0, True
        self.chosen.append(client.count)
        client.asked, client.steps_left = self.now, client.count
        client.drafted_from = client.drafted_at = self.now
        client.draft_sequences = 0
        self._at(self.machine.hop, functools.partial(self._draft if client.count else self._arrive, client))

    def _draft(self, client: _Client) -> None:
        client.arrived = self.now
        self._drafts.append(client)
        if not self._is_drafting:
            # Who is answered together asks together.
            self._is_drafting = True
            self._at(0.0, self._step)

    def _step(self) -> None:
        drafts = list(self._drafts)
        self._is_drafting = bool(drafts)
        if not drafts:
            return
        for client in drafts:
            if not client.draft_sequences:
                client.draft_sequences, client.drafted_from = len(drafts), self.now
                client.draft_queue = self.now - client.arrived
        seconds = self._noisy(self.machine.step + self.machine.step_each * (len(drafts) - 1))

        def end() -> None:
            for client in drafts:
                client.steps_left -= 1
                if not client.steps_left:
                    self._drafts.remove(client)
                    client.drafted_at = self.now
                    self._at(2 * self.machine.hop, functools.partial(self._arrive, client))
            self._step()

        self._at(seconds, end)

    def _arrive(self, client: _Client) -> None:
        client.arrived = self.now
        self._gathering.returned(client, self.now)
        self._waiting.append(client)
        self._verify()

    def _verify(self) -> None:
        if self._is_verifying or not self._waiting:
            return
        patience = self._gathering.wait_seconds(self.now, len(self._waiting))
        if patience > 0:
            self._at(patience, self._verify)
            return
        batch, self._waiting = self._waiting, []
        rows = sum(client.count + 1 for client in batch)
        slowed = 1.0 + self.machine.contention * self._is_drafting
        seconds = self._noisy(slowed * self._true.seconds(rows, len(batch)))
        started = self.now
        self._is_verifying = True

        def end() -> None:
            self._is_verifying = False
            self._learnt.observe(rows, seconds, len(batch))
            empty = min(seconds, self._learnt.empty_seconds(rows))
            self._gathering.passed(empty, (seconds - empty) / len(batch))
            for client in batch:
                self._judge(client, rows, len(batch), started, seconds)
            self._verify()

        self._at(seconds, end)

    def _judge(self, client: _Client, rows: int, sequences: int, started: float, seconds: float) -> None:
        accepted = 0
        while accepted < client.count and self._random.random() < self.acceptance:
            accepted += 1
        drafting = client.drafted_at - client.drafted_from
        done = made_round(
            client.count,
            accepted,
            verify_seconds=seconds,
            queue_seconds=started - client.arrived,
            draft_seconds=drafting,
            step_seconds=drafting / client.count if client.count else 0.0,
            network_seconds=2 * self.machine.hop,
            draft_network_seconds=2 * self.machine.hop + client.draft_queue if client.count else 0.0,
            batch_sequences=sequences,
            batch_rows=rows,
            draft_sequences=client.draft_sequences or 1,
        )
        self._gathering.answered(client, self.now)

        def answered() -> None:
            client.size.observe(done)
            self.num_tokens += min(accepted + 1, client.tokens_left)
            client.tokens_left -= accepted + 1
            if client.tokens_left > 0:
                self._round(client)
                return
            self._gathering.left(client)
            client.ends.close()
            if self._num_ended:
                self._num_ended -= 1
            else:
                self._begin()

        self._at(self.machine.hop, answered)

    def _noisy(self, seconds: float) -> float:
        return seconds * self._random.lognormvariate(0.0, _NOISE)
