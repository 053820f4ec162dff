"""What is read from files, and read again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from specdec.serving.security_error import SecurityError

logger = logging.getLogger(__name__)

Content = TypeVar("Content")
Value = TypeVar("Value")


RELOAD_SECONDS = 1.0
"""Between two looks at the files."""


class Reloadable(Protocol):
    """What can look whether its files have changed."""

    def refresh(self) -> None:
        """Look now; reads files, so not on the event loop."""
        ...


class Reloaded(Generic[Content, Value]):
    """A value made of files. A change of theirs that cannot be used is logged, and the value before stays.

    Contents are compared, not times, so that two changes within one tick of a clock are two changes. Files that belong
    together are not written at once: what does not fit is logged only if it is still so at the next look.

    Args:
        name: what it is, in log lines, such as "the certificate".
        read: reads the files.
        parse: makes the value of their content.

    Raises:
        SecurityError: the files cannot be used now. As all errors of `read` and `parse`, it holds no secret.
    """

    def __init__(self, name: str, read: Callable[[], Content], parse: Callable[[Content], Value]) -> None:
        self._name = name
        self._read = read
        self._parse = parse
        self._content: Content = read()
        self._value = parse(self._content)
        self._problem = ""
        self._is_told = False

    @property
    def value(self) -> Value:
        """The newest one that is good."""
        return self._value

    def refresh(self) -> None:
        """Read the files again, and use what they hold if it is new and good."""
        try:
            content = self._read()
            if content != self._content:
                self._value = self._parse(content)
                self._content = content
                logger.info("%s has changed and was read again", self._name)
            self._problem = ""
        except SecurityError as error:
            self._note(str(error))

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem, self._is_told = problem, False
        elif not self._is_told:
            self._is_told = True
            logger.error("%s stays as it was: %s", self._name, problem)


async def keep_fresh(reloadables: Sequence[Reloadable], period_seconds: float = RELOAD_SECONDS) -> None:
    """Look at the files again and again, until cancelled."""
    while True:
        await asyncio.sleep(period_seconds)
        for reloadable in reloadables:
            await asyncio.to_thread(_refresh, reloadable)


def _refresh(reloadable: Reloadable) -> None:
    try:
        reloadable.refresh()
    except Exception:
        # A bug, but what was read once serves on, and the other files are still looked at.
        logger.exception("looking for changed files failed")
