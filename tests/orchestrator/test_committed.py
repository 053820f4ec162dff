"""What may be committed."""

from collections.abc import Sequence

import pytest

from orchestrator.committed import CommittedTokens, ImpossibleVerdict
from orchestrator.window import EMPTY_WINDOW, Window
from specdec.checksum import prefix_checksum
from specdec.v1 import target_pb2

CHAIN = Window([10, 11, 12])
TREE = Window([10, 20, 11, 21], [-1, -1, 0, 1])


def verdict(
    accepted: Sequence[int], base: int = 2, judged: int = 3, next_token_id: int = 9, committed: int | None = None
) -> target_pb2.Verdict:
    return target_pb2.Verdict(
        base_length=base,
        num_judged_tokens=judged,
        accepted_nodes=accepted,
        next_token_id=next_token_id,
        committed_length=base + len(accepted) + 1 if committed is None else committed,
    )


@pytest.mark.parametrize(
    ("window", "answer", "expected"),
    [
        (EMPTY_WINDOW, verdict([], judged=0), [9]),
        (CHAIN, verdict([]), [9]),
        (CHAIN, verdict([0, 1, 2]), [10, 11, 12, 9]),
        (CHAIN, verdict([0], judged=1), [10, 9]),
        (TREE, verdict([1, 3], judged=4), [20, 21, 9]),
        (TREE, verdict([0, 2], judged=4), [10, 11, 9]),
    ],
)
def test_outcomes(window: Window, answer: target_pb2.Verdict, expected: list[int]) -> None:
    committed = CommittedTokens([1, 2], vocab_size=30, max_length=6)
    assert committed.outcome(window, answer) == expected
    assert committed.token_ids == [1, 2]
    committed.extend(expected)
    assert committed.token_ids == [1, 2, *expected]
    assert committed.checksum == prefix_checksum(committed.token_ids)
    assert committed.room == 4 - len(expected)
    assert len(committed) == 2 + len(expected)


@pytest.mark.parametrize(
    ("window", "answer"),
    [
        (CHAIN, verdict([0], base=1)),
        (CHAIN, verdict([0], base=3)),
        (CHAIN, verdict([0], judged=4)),
        (CHAIN, verdict([0, 1], judged=1)),
        (CHAIN, verdict([1])),
        (CHAIN, verdict([0, 2])),
        (CHAIN, verdict([0, 0])),
        (CHAIN, verdict([0], committed=5)),
        (CHAIN, verdict([0], committed=3)),
        (CHAIN, verdict([0, 1, 2], next_token_id=30)),
        (TREE, verdict([0, 1], judged=4)),
        (TREE, verdict([2], judged=4)),
        (TREE, verdict([3, 1], judged=4)),
        (Window([1, 2, 3, 4]), verdict([0, 1, 2, 3], judged=4)),
        (EMPTY_WINDOW, verdict([0], judged=0)),
        (EMPTY_WINDOW, verdict([], judged=1)),
    ],
)
def test_impossible_verdicts(window: Window, answer: target_pb2.Verdict) -> None:
    committed = CommittedTokens([1, 2], vocab_size=30, max_length=6)
    with pytest.raises(ImpossibleVerdict):
        committed.outcome(window, answer)
    assert committed.token_ids == [1, 2]
