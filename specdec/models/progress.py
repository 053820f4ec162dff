"""Progress of slow steps: a bar for a person at a terminal, one log line for everyone else."""

from __future__ import annotations

import logging
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]
"""Told how much of the total is done."""
Report = Callable[[str, int], AbstractContextManager[Advance]]
"""Opened with a description and a total (in any unit) for as long as the step takes."""

_POLL_SECONDS = 0.2

_logger = logging.getLogger(__name__)


@contextmanager
def terminal_report(description: str, total: int) -> Iterator[Advance]:
    """A bar on standard error, as it is when the step starts."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(description, total=total)
        yield lambda completed: progress.update(task, completed=min(completed, total))


@contextmanager
def log_report(description: str, total: int) -> Iterator[Advance]:
    """One log line when the step starts."""
    _logger.info("%s", description)
    yield lambda completed: None


def default_report() -> Report:
    """The bar on a terminal, the log line otherwise."""
    return terminal_report if sys.stderr.isatty() else log_report


@contextmanager
def watching_growth(directory: Path, advance: Advance) -> Iterator[None]:
    """While something that reports nothing writes into `directory`, report by how many bytes it has grown."""
    start = directory_bytes(directory)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            advance(directory_bytes(directory) - start)

    watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextmanager
def no_library_bars() -> Iterator[None]:
    """Keep the bars of transformers and huggingface_hub out of the logs and away from ours."""
    from transformers.utils import logging as transformers_logging

    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def directory_bytes(directory: Path) -> int:
    """Size of all files below a directory, in bytes; 0 if there is none. Files may come and go meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
