from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from specdec.engine.thread import EngineThread

SECONDS = 5.0


class CountingEngine:
    """Each command asks for that many steps."""

    def __init__(self) -> None:
        self.handled: list[list[int]] = []
        self.steps_left = 0
        self.num_steps = 0
        self.threads: set[int] = set()
        self.before_step: Callable[[], None] = lambda: None
        self.wants: Callable[[], float] = lambda: 0.0

    def handle(self, commands: Sequence[int]) -> None:
        self.threads.add(threading.get_ident())
        self.handled.append(list(commands))
        self.steps_left += sum(commands)

    @property
    def patience_seconds(self) -> float:
        return self.wants()

    def step(self) -> bool:
        self.threads.add(threading.get_ident())
        self.before_step()
        if self.steps_left:
            self.steps_left -= 1
            self.num_steps += 1
        return self.steps_left > 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def thread(engine: CountingEngine) -> Iterator[EngineThread[int]]:
    thread = EngineThread(engine, "test-engine")
    yield thread
    assert thread.stop(SECONDS)


def test_a_command_wakes_the_engine_and_it_steps_until_nothing_is_left(
    engine: CountingEngine, thread: EngineThread[int]
) -> None:
    thread.start()
    time.sleep(0.02)
    began = time.monotonic()
    thread.submit(3)
    wait_until(lambda: engine.num_steps == 3)
    assert time.monotonic() - began < 0.9, "a command must not wait for the idle timeout"
    thread.submit(2)
    wait_until(lambda: engine.num_steps == 5)
    assert engine.handled == [[3], [2]]
    assert len(engine.threads) == 1
    assert engine.threads != {threading.get_ident()}


def test_an_idle_engine_does_not_spin(engine: CountingEngine, thread: EngineThread[int]) -> None:
    calls = []
    engine.before_step = lambda: calls.append(1)
    thread.start()
    time.sleep(0.1)
    assert len(calls) <= 1


def test_everything_that_has_arrived_is_taken_at_once_in_order(
    engine: CountingEngine, thread: EngineThread[int]
) -> None:
    for number in range(10):
        thread.submit(number)
    assert thread.backlog == 10
    thread.start()
    wait_until(lambda: engine.num_steps == sum(range(10)))
    assert engine.handled == [list(range(10))]
    assert thread.backlog == 0


def test_commands_submitted_together_are_taken_together(engine: CountingEngine, thread: EngineThread[int]) -> None:
    thread.submit(1, 2, num_bytes=5)
    thread.submit(3, num_bytes=7)
    assert (thread.backlog, thread.backlog_bytes) == (3, 12)
    thread.start()
    wait_until(lambda: engine.num_steps == 6)
    assert engine.handled == [[1, 2, 3]]
    assert (thread.backlog, thread.backlog_bytes) == (0, 0)


def test_commands_are_taken_between_two_steps(engine: CountingEngine, thread: EngineThread[int]) -> None:
    in_step, go_on = threading.Event(), threading.Event()

    def block() -> None:
        if engine.steps_left:
            in_step.set()
            assert go_on.wait(SECONDS)

    engine.before_step = block
    thread.submit(2)
    thread.start()
    assert in_step.wait(SECONDS)
    thread.submit(1)
    go_on.set()
    wait_until(lambda: engine.num_steps == 3)
    assert engine.handled == [[2], [1]]


def test_stopping_lets_the_step_in_progress_finish_and_no_other_begin(
    engine: CountingEngine, thread: EngineThread[int]
) -> None:
    in_step, go_on = threading.Event(), threading.Event()

    def block() -> None:
        in_step.set()
        assert go_on.wait(SECONDS)

    engine.before_step = block
    thread.submit(100)
    thread.start()
    assert in_step.wait(SECONDS)
    assert not thread.stop(0.01), "it is still in its step"
    go_on.set()
    assert thread.stop(SECONDS)
    assert engine.num_steps == 1


def test_an_idle_thread_is_stopped_without_delay(engine: CountingEngine, thread: EngineThread[int]) -> None:
    thread.start()
    thread.submit(1)
    wait_until(lambda: engine.num_steps == 1)
    began = time.monotonic()
    assert thread.stop(SECONDS)
    assert time.monotonic() - began < 0.9
    assert thread.failure is None
    assert engine.handled == [[1]]


def test_a_thread_that_never_ran_can_be_stopped(thread: EngineThread[int]) -> None:
    assert thread.stop(SECONDS)


def test_a_failure_is_kept_logged_and_told_to_those_who_watch(
    engine: CountingEngine, thread: EngineThread[int], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    problem = RuntimeError("device lost")

    def fail() -> None:
        if engine.steps_left:
            raise problem

    engine.before_step = fail
    with caplog.at_level(logging.ERROR), thread.watched(lambda: told.append("one")):
        with thread.watched(lambda: told.append("gone")):
            pass
        thread.start()
        thread.submit(1)
        wait_until(lambda: bool(told))
        assert told == ["one"]
        assert thread.failure is problem
        # Who comes too late is told at once: nobody waits for an engine that is dead.
        with thread.watched(lambda: told.append("late")):
            assert told == ["one", "late"]
    assert "the engine failed" in caplog.text
    assert thread.stop(SECONDS)


def test_the_heartbeat_goes_on(engine: CountingEngine, thread: EngineThread[int]) -> None:
    thread.start()
    thread.submit(1)
    wait_until(lambda: engine.num_steps == 1)
    before = thread.heartbeat
    wait_until(lambda: thread.heartbeat > before)


def test_with_patience_it_waits_for_more_commands_before_a_step(
    engine: CountingEngine, thread: EngineThread[int]
) -> None:
    engine.wants = lambda: SECONDS if engine.handled and sum(map(len, engine.handled)) < 3 else 0.0
    thread.start()
    for _ in range(3):
        assert engine.num_steps == 0
        thread.submit(1)
        time.sleep(0.02)
    wait_until(lambda: engine.num_steps == 3)
    assert len(engine.handled) == 3


def test_patience_ends_when_nothing_comes(engine: CountingEngine, thread: EngineThread[int]) -> None:
    deadlines: list[float] = []

    def wants() -> float:
        if not engine.steps_left:
            return 0.0
        if not deadlines:
            deadlines.append(time.monotonic() + 0.05)
        return max(deadlines[0] - time.monotonic(), 0.0)

    engine.wants = wants
    thread.start()
    began = time.monotonic()
    thread.submit(2)
    wait_until(lambda: engine.num_steps == 2)
    assert 0.05 <= time.monotonic() - began < SECONDS
