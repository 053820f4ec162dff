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
        assert torch.equal(piece[0], original[0]), "a draft step draws from its last row"
        if not torch.equal(piece[1], original[1]):
            changed += 1
            expected = original[1].clone()
            expected[original[1].argmax()] = -torch.inf
            assert torch.equal(piece[1], expected)
    assert changed / len(pieces) == pytest.approx(1 - acceptance, abs=0.03)


def test_a_prefill_without_logits_is_left_alone() -> None:
    AcceptanceDial(0.0).turn([torch.empty(0, 9)])
