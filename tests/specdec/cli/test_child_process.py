import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from specdec.cli.child_process import ChildProcess

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


def python(program: str, **keywords: object) -> ChildProcess:
    return ChildProcess("child", [sys.executable, "-c", program], **keywords)  # type: ignore[arg-type]


async def test_it_hands_on_every_line_of_both_streams() -> None:
    seen: list[tuple[str, str]] = []
    child = python(
        "import sys; print('one'); print('two', file=sys.stderr); sys.stdout.write('no newline')",
        on_line=lambda name, line: seen.append((name, line)),
    )
    await child.start()
    assert await child.wait() == 0
    assert seen == [("child", "one"), ("child", "two"), ("child", "no newline")]
    assert list(child.lines) == ["one", "two", "no newline"]


async def test_a_line_without_end_is_kept_in_parts_and_bytes_that_are_no_text_are_replaced() -> None:
    child = python("import sys; sys.stdout.buffer.write(b'x' * 300000 + b'\\n\\xff\\n')")
    await child.start()
    await child.wait()
    assert "".join(child.lines) == "x" * 300000 + "\ufffd"
    assert len(child.lines) > 2


async def test_it_says_how_it_ended() -> None:
    child = python("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="was not started"):
        _ = child.pid
    await child.start()
    assert await child.wait() == 3
    assert child.ending == "ended with status 3"
    killed = python(SLEEP)
    await killed.start()
    assert killed.ending == "is running"
    killed.kill()
    assert await killed.wait() == -signal.SIGKILL
    assert killed.ending == "was killed by SIGKILL"


async def test_it_gets_variables_on_top_of_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_PARENT", "inherited")
    child = python("import os; print(os.environ['OF_PARENT'], os.environ['OWN'])", environment={"OWN": "given"})
    await child.start()
    await child.wait()
    assert list(child.lines) == ["inherited given"]


async def test_stopping_asks_first(eventually: Eventually) -> None:
    child = python(SLEEP)
    await child.start()
    await eventually(lambda: bool(child.lines))
    await child.stop(grace_seconds=30)
    assert child.ending == "was killed by SIGTERM"
    await child.stop(grace_seconds=30)


async def test_stopping_kills_what_does_not_listen(eventually: Eventually) -> None:
    child = python(DEAF)
    await child.start()
    await eventually(lambda: bool(child.lines))
    await child.stop(grace_seconds=0.2)
    assert child.ending == "was killed by SIGKILL"


async def test_a_cancelled_stop_kills(eventually: Eventually) -> None:
    child = python(DEAF)
    await child.start()
    await eventually(lambda: bool(child.lines))
    stop = asyncio.create_task(child.stop(grace_seconds=60))
    await asyncio.sleep(0.05)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    assert not child.is_running


async def test_it_can_be_paused_resumed_and_stopped_while_paused(eventually: Eventually) -> None:
    child = python(SLEEP)
    await child.start()
    await eventually(lambda: bool(child.lines))
    process = psutil.Process(child.pid)
    child.pause()
    await eventually(lambda: process.status() == psutil.STATUS_STOPPED)
    child.resume()
    await eventually(lambda: process.status() != psutil.STATUS_STOPPED)
    child.pause()
    await child.stop(grace_seconds=30)
    assert child.ending == "was killed by SIGTERM"


async def test_it_starts_again_after_its_end_and_not_before() -> None:
    child = python(SLEEP)
    await child.start()
    first = child.pid
    with pytest.raises(RuntimeError, match="is running"):
        await child.start()
    child.kill()
    await child.wait()
    await child.start()
    assert child.pid != first
    await child.stop(0)


async def test_it_is_in_a_process_group_of_its_own() -> None:
    child = python(SLEEP)
    await child.start()
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    await child.stop(0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ties the two together")
async def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    pid_file = tmp_path / "pid"
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"""
import asyncio, pathlib
from specdec.cli.child_process import ChildProcess
async def main():
    child = ChildProcess("child", [{sys.executable!r}, "-c", {SLEEP!r}])
    await child.start()
    while not child.lines:
        await asyncio.sleep(0.01)
    pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))
    await child.wait()
asyncio.run(main())
""",
    )
    try:
        await eventually(lambda: pid_file.exists() and pid_file.read_text() != "")
        child = psutil.Process(int(pid_file.read_text()))
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_a_command_whose_parent_is_gone_does_not_start() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "specdec.cli.tied",
        "1" if os.getpid() != 1 else "2",
        sys.executable,
        "-c",
        "print('started')",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert out == b""
    assert b"the parent process is gone" in err
    assert process.returncode == 1
