"""Carries faults out, each when its round has come, and makes them good again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.links.conditions import LinkConditions
from tests.chaos.faults import Class, Fault, Kind
from tests.chaos.load import Load
from tests.chaos.member import Member
from tests.chaos.system import DRAIN_SECONDS, ChaosSystem, Way

_POLL_SECONDS = 0.01
_SETTLE_SECONDS = 1.0
"""After a fault is made good, for those who call to see it; then the next one of its class may come."""
_RECOVERY_SECONDS = 30.0
_DRAIN_MARGIN_SECONDS = 8.0


@dataclass(slots=True)
class Injected:
    """A fault that happened; times are seconds of `time.monotonic`."""

    fault: Fault
    victim: str
    began: float
    ended: float = 0.0
    """When what was broken was made good; 0: not yet."""
    drain_seconds: float | None = None
    """How long the victim took to end when it was asked to."""


class Injector:
    """Breaks a system that is used.

    Args:
        system: that is broken.
        load: that uses it.
        faults: in the order of their rounds.
    """

    def __init__(self, system: ChaosSystem, load: Load, faults: Sequence[Fault]) -> None:
        self._system = system
        self._load = load
        self._faults = list(faults)
        self._is_stopping = False
        self.injected: list[Injected] = []

    def stop(self) -> None:
        """Begin no further fault; `run` ends when those that have begun are made good."""
        self._is_stopping = True

    async def run(self) -> None:
        """Carry all of them out.

        Raises:
            MemberFailedError: a process did not come back, or did not end when it was asked to.
        """
        queues: dict[Class, asyncio.Queue[Fault | None]] = {
            of: asyncio.Queue() for of in dict.fromkeys(fault.of for fault in self._faults)
        }
        workers = [asyncio.create_task(self._work(queue)) for queue in queues.values()]
        try:
            for fault in self._faults:
                while self._load.num_deltas < fault.after_deltas and not self._is_stopping:
                    if failed := next((worker for worker in workers if worker.done()), None):
                        failed.result()
                    await asyncio.sleep(_POLL_SECONDS)
                queues[fault.of].put_nowait(fault)
            for queue in queues.values():
                queue.put_nowait(None)
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, queue: asyncio.Queue[Fault | None]) -> None:
        while (fault := await queue.get()) is not None:
            if not self._is_stopping:
                await self._inject(fault)

    async def _inject(self, fault: Fault) -> None:
        if fault.kind is Kind.CANCEL:
            now = time.monotonic()
            self.injected.append(Injected(fault, f"request {await self._load.cancel_one(fault.victim)}", now, now))
            return
        if fault.kind in (Kind.KILL, Kind.FREEZE, Kind.DRAIN):
            members = self._system.of(fault.of)  # type: ignore[arg-type]
            member = members[fault.victim % len(members)]
            record = Injected(fault, member.name, time.monotonic())
            self.injected.append(record)
            await self._break_member(member, fault, record)
        else:
            ways = [way for way in self._system.ways if way.part == fault.of]
            way = ways[fault.victim % len(ways)]
            record = Injected(fault, way.name, time.monotonic())
            self.injected.append(record)
            await self._break_way(way, fault)
        record.ended = time.monotonic()
        await asyncio.sleep(_SETTLE_SECONDS)

    async def _break_member(self, member: Member, fault: Fault, record: Injected) -> None:
        if fault.kind is Kind.FREEZE:
            member.pause()
            try:
                await asyncio.sleep(fault.hold_seconds)
            finally:
                member.resume()
            await member.serving(_RECOVERY_SECONDS)
            return
        if fault.kind is Kind.KILL:
            await member.kill()
        else:
            record.drain_seconds = await member.drain(DRAIN_SECONDS + _DRAIN_MARGIN_SECONDS)
        await asyncio.sleep(fault.hold_seconds)
        await member.start()

    async def _break_way(self, way: Way, fault: Fault) -> None:
        relay = way.relay
        if fault.kind is Kind.CUT_LINK:
            relay.refuse()
            relay.cut()
            try:
                await asyncio.sleep(fault.hold_seconds)
            finally:
                await relay.accept()
        elif fault.kind is Kind.FREEZE_LINK:
            relay.freeze()
            try:
                await asyncio.sleep(fault.hold_seconds)
            finally:
                relay.thaw()
        else:
            usual = self._system.conditions
            relay.change(
                LinkConditions(rtt_seconds=fault.rtt_seconds, jitter_seconds=fault.rtt_seconds / 4, seed=fault.number)
            )
            try:
                await asyncio.sleep(fault.hold_seconds)
            finally:
                relay.change(usual)
