import threading
import time

from benchmarks.deployment.device_turns import DeviceTurns

NAMES = [f"pass {index}" for index in range(5)]


def test_turns_come_one_at_a_time_in_the_order_asked_for() -> None:
    turns = DeviceTurns()
    done: list[str] = []
    holders: list[str] = []

    def take(name: str) -> None:
        with turns:
            holders.append(name)
            time.sleep(0.005)
            assert holders == [name]
            holders.clear()
            done.append(name)

    threads = []
    with turns:
        for name in NAMES:
            threads.append(threading.Thread(target=take, args=[name]))
            threads[-1].start()
            deadline = time.monotonic() + 10
            while len(turns._waiting) < len(threads):
                assert time.monotonic() < deadline
                time.sleep(0.001)
        # Whoever lets go and asks again comes last.
    take("again")
    for thread in threads:
        thread.join(10)
    assert done == [*NAMES, "again"]


def test_a_failure_lets_go() -> None:
    turns = DeviceTurns()
    try:
        with turns:
            raise MemoryError
    except MemoryError:
        pass
    with turns:
        assert turns._is_taken
