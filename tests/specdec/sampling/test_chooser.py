"""Which token is chosen, and on what it may depend."""

from __future__ import annotations

import math

import pytest
import torch

from specdec.errors import InvalidArgumentError
from specdec.sampling.chooser import TokenChooser, choose_rows
from specdec.sampling.noise import Stream, gumbel, noise_key
from specdec.sampling.params import SamplingParams

CPU = torch.device("cpu")
VOCAB = 40
PROMPT = [3, 1, 4, 1, 5]
COMMITTED = [*PROMPT, 9, 2, 6]
PATH = [5, 9, 9]


def some_logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


def chooser(**params: object) -> TokenChooser:
    return TokenChooser(SamplingParams(**params), len(PROMPT), CPU)  # type: ignore[arg-type]


def test_token_is_the_argmax_of_processed_logits_plus_noise_of_the_position() -> None:
    chosen = set()
    for seed in range(50):
        logits = some_logits(seed)
        noise = gumbel(noise_key(seed, len(COMMITTED) + len(PATH), Stream.TARGET), torch.arange(VOCAB))
        expected = int(((logits / 0.7).double() + noise).argmax())
        assert chooser(seed=seed, temperature=0.7).choose(logits, COMMITTED, PATH) == expected
        chosen.add(expected == int(logits.argmax()))
    assert chosen == {True, False}


def test_greedy_takes_the_first_of_the_most_probable() -> None:
    logits = torch.zeros(VOCAB)
    logits[[7, 30, 12]] = 2.0
    for seed in range(5):
        assert chooser(temperature=0.0, seed=seed).choose(logits, COMMITTED) == 7
    assert chooser(temperature=0.0, banned_token_ids=(7,)).choose(logits, COMMITTED) == 12


@pytest.mark.parametrize(
    "rules",
    [
        {"repetition_penalty": 3.0},
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": len(COMMITTED) + 1, "stop_token_ids": (0, 1, 2)},
        {},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_on_the_path_count_like_committed_tokens(rules: dict[str, object], temperature: float) -> None:
    choose = chooser(temperature=temperature, **rules)
    for seed in range(10):
        for split in range(len(PATH) + 1):
            committed, path = [*COMMITTED, *PATH[:split]], PATH[split:]
            logits = some_logits(seed)
            assert torch.equal(choose.process(logits, committed, path), choose.process(logits, [*COMMITTED, *PATH]))
            assert choose.choose(logits, committed, path) == choose.choose(logits, [*COMMITTED, *PATH])


def test_each_position_of_a_window_sees_the_drafts_before_it() -> None:
    # B22: with a frequency penalty of 2, each draft of token 9 makes another 9 less likely by the same amount.
    choose = chooser(temperature=1.0, frequency_penalty=2.0)
    logits = torch.zeros(VOCAB)
    seen = [float(choose.process(logits, [*PROMPT, 9], [9] * depth)[9]) for depth in range(4)]
    assert seen == [-2.0, -4.0, -6.0, -8.0]
    # And nothing sticks to the chooser: the counts of a rejected path are gone.
    assert float(choose.process(logits, [*PROMPT, 9])[9]) == -2.0


def test_rules_that_exclude_every_token_are_refused() -> None:
    everything = {"allowed_token_ids": (9,), "no_repeat_ngram_size": 1}
    for temperature in (0.0, 1.0):
        choose = chooser(temperature=temperature, **everything)
        assert choose.choose(some_logits(0), PROMPT) == 9
        for call in (choose.choose, choose.process, choose.target_law):
            with pytest.raises(InvalidArgumentError, match="exclude every token"):
                call(some_logits(0), COMMITTED)
        with pytest.raises(InvalidArgumentError, match="exclude every token"):
            choose.draft_law(some_logits(0), COMMITTED, [], 8)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.0},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.5},
        {"typical_p": 0.5},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    ],
)
def test_a_model_that_gives_no_numbers_is_noticed(rules: dict[str, object], broken: float) -> None:
    logits = some_logits(0)
    logits[3] = broken
    with pytest.raises(FloatingPointError, match="not finite"):
        chooser(**rules).choose(logits, COMMITTED)
    with pytest.raises(FloatingPointError, match="not finite"):
        chooser(**rules).choose(torch.full((VOCAB,), math.nan), COMMITTED)


def test_draft_law_is_one_hot_at_temperature_0_and_cut_to_its_size_above() -> None:
    logits = some_logits(0)
    assert dict(chooser(temperature=0.0).draft_law(logits, COMMITTED, [], 8).weights) == {int(logits.argmax()): 1}
    law = chooser(temperature=0.5).draft_law(logits, COMMITTED, [], 8)
    assert list(law.weights) == logits.topk(8).indices.tolist()
    probabilities = torch.softmax(logits / 0.5, 0)
    kept = probabilities.topk(8).values
    shares = torch.tensor(list(law.weights.values())) / law.total
    torch.testing.assert_close(shares, kept / kept.sum(), atol=2e-5, rtol=0)
    assert law.lost_mass == pytest.approx(1 - float(kept.sum()), abs=1e-6)


def test_target_law_is_the_softmax_of_the_processed_logits() -> None:
    logits = some_logits(1)
    law = chooser(temperature=0.5, top_k=4).target_law(logits, COMMITTED)
    kept = logits.topk(4)
    expected = torch.softmax(kept.values.double() / 0.5, 0)
    for token, probability in zip(kept.indices.tolist(), expected.tolist(), strict=True):
        assert law.weight(token) / law.total == pytest.approx(probability, abs=1e-6)
    assert sum(law.weight(token) for token in kept.indices.tolist()) == law.total
    greedy = chooser(temperature=0.0).target_law(logits, COMMITTED)
    assert (greedy.weight(int(logits.argmax())), greedy.total) == (1, 1)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=3)])
def test_candidates_follow_the_choice_in_the_order_of_logit_and_noise(params: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(1)
    chooser = TokenChooser(params, 2, torch.device("cpu"))
    for position in range(40):
        logits = 3 * torch.randn(500, generator=generator)
        committed = list(range(2 + position))
        found = chooser.candidates(logits, committed, (), 6)
        assert found[0][0] == chooser.choose(logits, committed)
        assert len({token for token, _ in found}) == 6
        shares = [share for _, share in found]
        assert shares == sorted(shares, reverse=True)
        assert 0.0 < sum(shares) <= 1.0
        scores = chooser.process(logits, committed)
        if not params.is_greedy:
            key = noise_key(params.seed, len(committed), Stream.TARGET)
            scores = scores + gumbel(key, torch.arange(500)).float()
        considered = chooser.process(logits, committed).topk(64).indices
        order = considered[scores[considered].argsort(descending=True)].tolist()
        assert [token for token, _ in found[1:]] == [token for token in order if token != found[0][0]][:5]


def test_candidates_that_the_rules_exclude_are_none() -> None:
    chooser = TokenChooser(SamplingParams(temperature=0.0, allowed_token_ids=(3, 5)), 1, torch.device("cpu"))
    found = chooser.candidates(torch.arange(10.0), [1], (), 4)
    assert [token for token, _ in found] == [5, 3]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_runners_up_are_chosen_one_after_the_other(temperature: float) -> None:
    each = chooser(temperature=temperature, seed=4)
    logits = some_logits(3)
    expected: list[int] = []
    left = logits.clone()
    for _ in range(4):
        expected.append(each.choose(left, [1, 2]))
        left[expected[-1]] = -math.inf
    assert each.runners_up(logits, [1, 2], (), (), 4, with_noise=True) == expected
    assert each.runners_up(logits, [1, 2], (), expected[:1], 3, with_noise=True) == expected[1:]
    assert each.runners_up(logits, [1], [2], (), 4, with_noise=True) == expected
    assert torch.equal(logits, some_logits(3))


def test_runners_up_without_noise_are_the_most_probable() -> None:
    logits = some_logits(3)
    found = chooser(temperature=0.7, seed=4).runners_up(logits, [1], (), (), 3, with_noise=False)
    assert found == logits.topk(3).indices.tolist()


def test_there_are_no_more_runners_up_than_the_rules_leave() -> None:
    each = chooser(temperature=0.0, allowed_token_ids=(4, 5))
    assert sorted(each.runners_up(some_logits(3), [1], (), (), 9, with_noise=True)) == [4, 5]


@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "logit_bias": {4: 3.0}},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "logit_bias": {2: -1.0}},
        {"temperature": 0.8, "allowed_token_ids": (3, 5)},
    ],
)
def test_rows_of_many_requests_are_chosen_from_as_from_each(rules: dict[str, object]) -> None:
    choosers = [chooser(**rules, seed=seed) for seed in range(12)]
    logits = torch.stack([some_logits(seed) for seed in range(12)])
    logits[3] = -math.inf
    logits[5, 2] = math.nan
    positions = [2, 40, 7, 7, 3, 3, 9, 1000, 0, 5, 6, 8]

    def choose(each: TokenChooser, row: torch.Tensor, position: int) -> int | None:
        try:
            return each.choose(row, [0] * position)
        except (FloatingPointError, InvalidArgumentError):
            return None

    expected = list(map(choose, choosers, logits, positions))
    assert expected[3] is None
    assert sum(token is None for token in expected) <= 2
    assert choose_rows(choosers, logits, positions) == expected


def test_rules_are_alike_whatever_the_seed_and_differ_otherwise() -> None:
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_k": 3},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.8, "min_p": 0.1},
        {"temperature": 0.8, "typical_p": 0.9},
        {"temperature": 0.8, "allowed_token_ids": (1, 2)},
        {"temperature": 0.8, "banned_token_ids": (1, 2)},
        {"temperature": 0.8, "logit_bias": {1: 2.0}},
    ]
    assert len({chooser(**kind).rules_key for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert chooser(**kind, seed=1).rules_key == chooser(**kind, seed=2).rules_key
