"""Free blocks by their numbers, so that the blocks of one sequence come to lie side by side."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Room:
    """Free blocks that a sequence is likely to grow into: `start` up to, and without, `end`.

    They are free all the same: others take them, from behind, when there is nothing else.
    """

    start: int = 0
    end: int = 0

    def __len__(self) -> int:
        return self.end - self.start


class FreeSpace:
    """Ranges of free blocks.

    Args:
        num_blocks: all blocks, free at first; numbered from 0.
    """

    def __init__(self, num_blocks: int) -> None:
        self._ranges = [(0, num_blocks)]  # in order, none empty, none touching the next
        self._rooms: dict[int, Room] = {}
        self.num_free = num_blocks
        """Free blocks, those in rooms included."""

    def has_range(self, size: int) -> bool:
        """Whether so many free blocks lie side by side in nobody's room."""
        return any(end - start >= size for start, end in self._ranges)

    def open(self, size: int) -> Room:
        """Room for a sequence of so many blocks: where it fits best, or the largest range there is."""
        room = Room()
        self._rooms[id(room)] = room
        fitting = [found for found in self._ranges if found[1] - found[0] >= size]
        if fitting:
            start, _ = min(fitting, key=_size)
            self._move(start, start + size, room)
        elif self._ranges:
            self._move(*max(self._ranges, key=_size), room)
        return room

    def close(self, room: Room) -> None:
        """The room is nobody's any more; harmless if it was closed before."""
        if self._rooms.pop(id(room), None) is not None and len(room):
            self._join(room.start, room.end)
        room.start = room.end = 0

    def take(self, room: Room, count: int) -> list[int]:
        """Take blocks, from the room as long as it lasts.

        Raises:
            ValueError: fewer are free.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks are wanted and {self.num_free} are free")
        taken: list[int] = []
        while len(taken) < count:
            if not len(room):
                self._extend(room, count - len(taken))
            end = min(room.end, room.start + count - len(taken))
            taken.extend(range(room.start, end))
            room.start = end
        self.num_free -= count
        return taken

    def give(self, block: int) -> int:
        """A block is free again; returns how many free blocks now lie side by side there."""
        self.num_free += 1
        return self._join(block, block + 1)

    def _extend(self, room: Room, count: int) -> None:
        """Make an empty room one of up to `count` blocks."""
        if self._ranges:
            start, end = max(self._ranges, key=_size)
            self._move(start, min(end, start + count), room)
            return
        other = max(self._rooms.values(), key=len)
        room.end = other.end
        other.end -= min(count, (len(other) + 1) // 2)
        room.start = other.end

    def _move(self, start: int, end: int, room: Room) -> None:
        """Give the beginning of a range, which has no other, to a room."""
        index = bisect_left(self._ranges, (start, 0))
        _, end_of_range = self._ranges[index]
        self._ranges[index : index + 1] = [(end, end_of_range)] if end < end_of_range else []
        room.start, room.end = start, end

    def _join(self, start: int, end: int) -> int:
        """Add a range; returns its size together with its neighbours'."""
        index = bisect_left(self._ranges, (start, 0))
        last = index
        if last < len(self._ranges) and self._ranges[last][0] == end:
            end = self._ranges[last][1]
            last += 1
        if index and self._ranges[index - 1][1] == start:
            index -= 1
            start = self._ranges[index][0]
        self._ranges[index:last] = [(start, end)]
        return end - start


def _size(found: tuple[int, int]) -> int:
    return found[1] - found[0]
