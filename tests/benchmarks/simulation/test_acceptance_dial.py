import pytest
import torch

from benchmarks.simulation.acceptance_dial import AcceptanceDial


def some_logits(count: int) -> list[torch.Tensor]:
    return list(torch.randn(count, 2, 9, generator=torch.Generator().manual_seed(0)).unbind())


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_it_takes_the_best_token_from_so_many_draft_steps(acceptance: float) -> None:
    pieces, before = some_logits(2000), some_logits(2000)
    AcceptanceDial(acceptance).turn(pieces)
    changed = 0
    for piece, original in zip(pieces, before, strict=True):
        # A pass that drafts ahead makes a token of each row.
        for row, row_before in zip(piece, original, strict=True):
            if not torch.equal(row, row_before):
                changed += 1
                expected = row_before.clone()
                expected[row_before.argmax()] = -torch.inf
                assert torch.equal(row, expected)
    assert changed / (2 * len(pieces)) == pytest.approx(1 - acceptance, abs=0.03)


def test_a_prefill_without_logits_is_left_alone() -> None:
    AcceptanceDial(0.0).turn([torch.empty(0, 9)])
