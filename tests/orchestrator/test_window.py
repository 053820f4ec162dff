"""Which proposals become windows."""

from collections.abc import Sequence

import pytest

from orchestrator.window import EMPTY_WINDOW, ImpossibleProposal, Window
from specdec.v1 import draft_pb2, model_pb2


def window(
    token_ids: Sequence[int], parents: Sequence[int] = (), num_distributions: int = 0, base_length: int = 5
) -> Window:
    distribution = model_pb2.DraftDistribution(token_ids=[1], weights=[1])
    proposal = draft_pb2.Proposal(
        base_length=base_length,
        token_ids=token_ids,
        parents=parents,
        distributions=[distribution] * num_distributions,
    )
    return Window.from_proposal(proposal, base_length=5, num_draft_tokens=3, vocab_size=10)


def test_chains_trees_and_distributions_pass_through_unchanged() -> None:
    assert len(window([])) == len(EMPTY_WINDOW) == 0
    assert window([9, 0, 3]).token_ids == [9, 0, 3]
    assert window([1, 2, 3], [-1, -1, 1]).parents == [-1, -1, 1]
    assert len(window([1, 2], num_distributions=2).distributions) == 2


@pytest.mark.parametrize(
    ("token_ids", "parents", "num_distributions", "base_length"),
    [
        ([1], [], 0, 4),
        ([1], [], 0, 6),
        ([1, 2, 3, 4], [], 0, 5),
        ([10], [], 0, 5),
        ([1, 2], [-1], 0, 5),
        ([1, 2], [0, -1], 0, 5),
        ([1, 2], [-1, 1], 0, 5),
        ([1, 2], [-1, -2], 0, 5),
        ([], [-1], 0, 5),
        ([1, 2], [], 1, 5),
    ],
)
def test_impossible_proposals(
    token_ids: list[int], parents: list[int], num_distributions: int, base_length: int
) -> None:
    with pytest.raises(ImpossibleProposal):
        window(token_ids, parents, num_distributions, base_length)
