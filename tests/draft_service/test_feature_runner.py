"""Guesses that rest on guesses of the same pass are those of one pass after the other."""

from __future__ import annotations

import pytest
import torch

from draft_service.feature_runner import FeatureRunner, FeatureWork, row_parents
from draft_service.state_guess import state_guess
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.cache import SequenceCache
from tests.draft_service.feature_drafts import feature_draft, random_features
from tests.tiny_models import TINY_VOCAB_SIZE

TEXT = [5, 9, 200, 31, 7, 88]
NUM_KNOWN = 4


@pytest.fixture(scope="module")
def runner() -> FeatureRunner:
    model = feature_draft()
    model.set_attn_implementation(ATTENTION_NAME)
    guess = state_guess(model)
    assert guess is not None
    return FeatureRunner(model, TINY_VOCAB_SIZE, guess)


def begun(token_ids: list[int], num_logits: int, parents: list[int] | None = None) -> FeatureWork:
    """Rows on an empty cache, of which the target has told the first ones."""
    num_rows = len(token_ids)
    states = torch.zeros((num_rows, 32))
    states[:NUM_KNOWN] = random_features(NUM_KNOWN, 1)[:, 0].float()
    return FeatureWork(
        SequenceCache(), token_ids, num_logits, parents, states=states, is_known=torch.arange(num_rows) < NUM_KNOWN
    )


def step_by_step(runner: FeatureRunner, token_ids: list[int]) -> torch.Tensor:
    """Logits behind the last token; guesses are made one pass after the other."""
    work = begun(token_ids[: NUM_KNOWN + 1], 1)
    (logits,) = runner.forward([work])
    for token_id in token_ids[NUM_KNOWN + 1 :]:
        assert work.read is not None
        work = FeatureWork(work.cache, [token_id], 1, before={0: work.read[-1]})
        (logits,) = runner.forward([work])
    return logits[0]


def test_a_chain(runner: FeatureRunner) -> None:
    (logits,) = runner.forward([begun([*TEXT, 3, 4], 4)])
    for place, found in enumerate(logits):
        assert torch.allclose(found, step_by_step(runner, [*TEXT, 3, 4][: NUM_KNOWN + 1 + place]), atol=1e-5)


def test_a_tree_behind_rows_that_the_target_has_told(runner: FeatureRunner) -> None:
    # Behind the first five tokens: 88 and its child 3, a sibling 12 with the child 40, and 3 again there.
    tokens, parents = [88, 12, 3, 40, 3], [-1, -1, 0, 1, 3]
    paths = [[88], [12], [88, 3], [12, 40], [12, 40, 3]]
    other = begun(TEXT, 1)
    logits, of_other = runner.forward([begun([*TEXT[:5], *tokens], 5, parents), other])
    for found, path in zip(logits, paths, strict=True):
        assert torch.allclose(found, step_by_step(runner, [*TEXT[:5], *path]), atol=1e-5)
    assert torch.allclose(of_other[0], step_by_step(runner, TEXT), atol=1e-5)


def test_a_tree_whose_first_nodes_are_in_the_cache(runner: FeatureRunner) -> None:
    first = begun([*TEXT[:5], 88, 12], 2, [-1, -1])
    runner.forward([first])
    assert first.read is not None
    parents = [-1, -1, 1, 0, -1, 2]
    before = {0: first.read[-1], 1: first.read[-2], 2: first.read[-3]}
    (logits,) = runner.forward([FeatureWork(first.cache, [40, 3, 17, 3], 4, parents, before=before)])
    for found, path in zip(logits, [[12, 40], [88, 3], [17], [12, 40, 3]], strict=True):
        assert torch.allclose(found, step_by_step(runner, [*TEXT[:5], *path]), atol=1e-5)


@pytest.mark.parametrize(
    ("num_rows", "parents", "expected"),
    [
        (3, None, [-1, 0, 1]),
        (3, [], [-1, 0, 1]),
        (4, [-1, 0, -1], [-1, 0, 1, 0]),
        (2, [-1, -1], [-1, -1]),
        (2, [-1, 0, -1, 1], [-3, -1]),
        (3, [-1, 0, -1, 1, 3], [-3, -1, 1]),
    ],
)
def test_whom_rows_follow(num_rows: int, parents: list[int] | None, expected: list[int]) -> None:
    assert row_parents(num_rows, parents) == expected
