"""One direction of a relayed connection, where its ends are odd."""

import asyncio
import errno
from typing import cast

from benchmarks.links.conditions import DeliverySchedule, LinkConditions
from benchmarks.links.lane import End, Lane


class GoneTransport:
    """Of a socket whose peer has reset it, which asyncio does not know yet."""

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "not connected")


async def test_an_end_for_a_receiver_that_is_gone_still_ends_the_lane() -> None:
    ends = []
    lane = Lane(DeliverySchedule(LinkConditions()), 1 << 20, in_pieces=False, on_end=lambda: ends.append(True))
    lane.connect(cast("asyncio.Transport", GoneTransport()))
    lane.put(End.EOF)
    assert ends == [True]
    assert lane.has_ended
