"""What a service tells its peers of how busy it is."""

from __future__ import annotations

from collections.abc import Callable

from specdec.v1 import model_pb2


class LoadNews:
    """What one stream was told last. On the event loop.

    Args:
        load: says how busy the service is now.
    """

    def __init__(self, load: Callable[[], model_pb2.Load]) -> None:
        self._load = load
        self._told: model_pb2.Load | None = None

    @property
    def is_due(self) -> bool:
        """Whether the load has changed since it was told."""
        return self._load() != self._told

    def tell(self) -> model_pb2.Load:
        """The load, which counts as told."""
        self._told = self._load()
        return self._told
