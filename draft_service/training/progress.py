"""What a person sees of a training run: a bar on a terminal, and a log line now and then everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

Tell = Callable[[float, str], None]
"""Told the share of the run that is done, 0 to 1, and what is going on."""


@contextmanager
def progress_bar() -> Iterator[Tell]:
    """A bar on standard error if that is a terminal; nothing otherwise."""
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda _share, _what: None
        return
    with Progress(*columns, console=console, redirect_stdout=False) as bar:
        task = bar.add_task("loading the target", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)
