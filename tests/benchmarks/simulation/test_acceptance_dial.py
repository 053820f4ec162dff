import pytest
import torch

from benchmarks.simulation.acceptance_dial import BLOCK_POSITIONS, AcceptanceDial


def some_logits(count: int) -> torch.Tensor:
    return torch.randn(count, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 0.999, 1.0])
def test_it_puts_the_second_choice_first_at_so_many_positions(acceptance: float) -> None:
    before = some_logits(40 * BLOCK_POSITIONS)
    after = before.clone()
    AcceptanceDial(acceptance).turn([after[:5], after[5:]], [range(5), range(5, len(after))])
    changed = 0
    for row, original in zip(after, before, strict=True):
        if not torch.equal(row, original):
            changed += 1
            first, second = original.topk(2).indices.tolist()
            assert row.topk(2).indices.tolist() == [second, first]
            assert sorted(row.tolist()) == sorted(original.tolist())
    assert changed / len(before) == pytest.approx(1 - acceptance, abs=1e-9)


def test_a_position_is_right_or_wrong_whenever_it_is_drafted() -> None:
    positions = [3, 70, 71, 3, 500, 70]
    before = some_logits(1).repeat(len(positions), 1)
    after = before.clone()
    dial = AcceptanceDial(0.5)
    dial.turn([after], [positions])
    assert torch.equal(after[0], after[3])
    assert torch.equal(after[1], after[5])
    assert [torch.equal(row, before[0]) for row in after] == [dial.is_right(position) for position in positions]
    assert [AcceptanceDial(0.5).is_right(place) for place in range(999)] == [dial.is_right(n) for n in range(999)]
    assert [AcceptanceDial(0.5, seed=1).is_right(n) for n in range(999)] != [dial.is_right(n) for n in range(999)]


def test_windows_are_accepted_as_independent_tokens_would_be() -> None:
    dial = AcceptanceDial(0.8)
    num_positions = 100 * BLOCK_POSITIONS
    right = [dial.is_right(position) for position in range(num_positions)]
    for length, slack in ((2, 0.01), (5, 0.02)):
        runs = sum(all(right[start : start + length]) for start in range(num_positions - length))
        assert runs / num_positions == pytest.approx(0.8**length, abs=slack)


def test_a_prefill_without_logits_is_left_alone() -> None:
    AcceptanceDial(0.0).turn([torch.empty(0, 9)], [[]])
