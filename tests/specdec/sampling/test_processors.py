"""Each sampling rule against its definition written out, and all of them together against transformers' generate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import TopPLogitsWarper

from specdec.sampling.params import SamplingParams
from specdec.sampling.processors import LogitsRules, ShortTopPLogitsWarper
from tests.tiny_models import tiny_llama

CPU = torch.device("cpu")
VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
OUTPUT = [9, 2, 6, 5, 9]
INF = math.inf

Law = list[float]
Rule = Callable[[Law], Law]


def some_logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def apply(params: SamplingParams, logits: torch.Tensor, history: Sequence[int] = (*PROMPT, *OUTPUT)) -> torch.Tensor:
    before = logits.clone()
    processed = LogitsRules(params, len(PROMPT), CPU).apply(logits, history)
    assert torch.equal(logits, before), "the model's own logits must stay as they are"
    assert processed.shape == logits.shape
    assert processed.dtype == torch.float32
    return processed


def softmax(scores: Law) -> Law:
    weights = [math.exp(score) for score in scores]
    return [weight / sum(weights) for weight in weights]


def keep(scores: Law, kept: set[int]) -> Law:
    return [score if token in kept else -INF for token, score in enumerate(scores)]


def by_probability(scores: Law) -> list[int]:
    return sorted(range(len(scores)), key=lambda token: -scores[token])


def top_k(count: int) -> Rule:
    return lambda scores: keep(scores, set(by_probability(scores)[:count]))


def top_p(mass: float) -> Rule:
    def rule(scores: Law) -> Law:
        law, kept, reached = softmax(scores), set(), 0.0
        for token in by_probability(scores):
            if reached >= mass:
                break
            kept.add(token)
            reached += law[token]
        return keep(scores, kept)

    return rule


def min_p(share: float) -> Rule:
    def rule(scores: Law) -> Law:
        law = softmax(scores)
        return keep(scores, {token for token in range(len(law)) if law[token] >= share * max(law)})

    return rule


def typical(mass: float) -> Rule:
    def rule(scores: Law) -> Law:
        law = softmax(scores)
        surprise = [-math.log(probability) if probability else INF for probability in law]
        entropy = sum(p * s for p, s in zip(law, surprise, strict=True) if p)
        kept, reached = set(), 0.0
        for token in sorted(range(len(law)), key=lambda token: abs(surprise[token] - entropy)):
            if reached >= mass:
                break
            kept.add(token)
            reached += law[token]
        return keep(scores, kept)

    return rule


def divide(number: float) -> Rule:
    return lambda scores: [score / number for score in scores]


def repetition(penalty: float) -> Rule:
    seen = {*PROMPT, *OUTPUT}
    return lambda scores: [
        (score / penalty if score > 0 else score * penalty) if token in seen else score
        for token, score in enumerate(scores)
    ]


def output_penalties(frequency: float, presence: float) -> Rule:
    counts = Counter(OUTPUT)
    return lambda scores: [
        score - frequency * counts[token] - presence * (counts[token] > 0) for token, score in enumerate(scores)
    ]


def bias(values: dict[int, float]) -> Rule:
    return lambda scores: [score + values.get(token, 0.0) for token, score in enumerate(scores)]


def without(*tokens: int) -> Rule:
    return lambda scores: keep(scores, set(range(VOCAB)) - set(tokens))


RULES: list[tuple[SamplingParams, list[Rule]]] = [
    (SamplingParams(), []),
    (SamplingParams(temperature=0.7), [divide(0.7)]),
    (SamplingParams(top_k=3), [top_k(3)]),
    (SamplingParams(top_k=1000), []),
    (SamplingParams(top_p=0.8), [top_p(0.8)]),
    (SamplingParams(top_p=1e-9), [top_k(1)]),
    (SamplingParams(min_p=0.2), [min_p(0.2)]),
    (SamplingParams(min_p=1.0), [top_k(1)]),
    (SamplingParams(typical_p=0.5), [typical(0.5)]),
    (SamplingParams(repetition_penalty=1.7), [repetition(1.7)]),
    (SamplingParams(repetition_penalty=0.5), [repetition(0.5)]),
    (SamplingParams(frequency_penalty=0.6), [output_penalties(0.6, 0.0)]),
    (SamplingParams(presence_penalty=-1.1), [output_penalties(0.0, -1.1)]),
    (SamplingParams(frequency_penalty=2.0, presence_penalty=0.5), [output_penalties(2.0, 0.5)]),
    (SamplingParams(logit_bias={0: 5.0, 11: -100.0}), [bias({0: 5.0, 11: -100.0})]),
    (SamplingParams(allowed_token_ids=(2, 7, 2, 5)), [without(0, 1, 3, 4, 6, 8, 9, 10, 11)]),
    (SamplingParams(banned_token_ids=(2, 7)), [without(2, 7)]),
    (SamplingParams(allowed_token_ids=(2, 7, 5), banned_token_ids=(7,)), [without(0, 1, 3, 4, 6, 7, 8, 9, 10, 11)]),
    # "9" and "5, 9" were followed by "2" before, which must not come again.
    (SamplingParams(no_repeat_ngram_size=2), [without(2)]),
    (SamplingParams(no_repeat_ngram_size=3), [without(2)]),
    (SamplingParams(no_repeat_ngram_size=1), [without(*PROMPT, *OUTPUT)]),
    (SamplingParams(no_repeat_ngram_size=4), []),
    (SamplingParams(min_new_tokens=6, stop_token_ids=(1, 8)), [without(1, 8)]),
    (SamplingParams(min_new_tokens=5, stop_token_ids=(1, 8)), []),
    # Together: the order matters. Filters see the probabilities that the rules before them leave.
    (SamplingParams(temperature=0.5, top_k=6, top_p=0.7), [divide(0.5), top_k(6), top_p(0.7)]),
    (SamplingParams(temperature=2.0, top_p=0.9, min_p=0.3), [divide(2.0), top_p(0.9), min_p(0.3)]),
    (SamplingParams(min_p=0.05, typical_p=0.6), [min_p(0.05), typical(0.6)]),
    (
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={4: 3.0}, temperature=0.9, top_k=4),
        [repetition(1.3), output_penalties(0.4, 0.0), bias({4: 3.0}), divide(0.9), top_k(4)],
    ),
    (
        SamplingParams(banned_token_ids=(4,), logit_bias={4: 100.0}, top_p=0.5),
        [bias({4: 100.0}), without(4), top_p(0.5)],
    ),
    (
        SamplingParams(presence_penalty=1.0, no_repeat_ngram_size=2, temperature=1.5, min_p=0.1),
        [output_penalties(0.0, 1.0), without(2), divide(1.5), min_p(0.1)],
    ),
]


@pytest.mark.parametrize(("params", "rules"), RULES, ids=range(len(RULES)))
def test_rules_do_what_their_definitions_say(params: SamplingParams, rules: list[Rule]) -> None:
    for seed in range(20):
        logits = some_logits(seed)
        expected = logits.tolist()
        for rule in rules:
            expected = rule(expected)
        torch.testing.assert_close(apply(params, logits), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_each_rule_changes_something_on_some_of_the_logits() -> None:
    for params, rules in RULES:
        changed = any(not torch.equal(apply(params, some_logits(seed)), some_logits(seed)) for seed in range(20))
        assert changed == bool(rules)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.7),
        SamplingParams(frequency_penalty=1.0),
        SamplingParams(presence_penalty=1.0),
        SamplingParams(no_repeat_ngram_size=2),
        SamplingParams(min_new_tokens=3, stop_token_ids=(1,)),
    ],
)
def test_rules_that_read_the_history_say_so(params: SamplingParams) -> None:
    assert LogitsRules(params, 2, CPU).reads_history


def test_rules_that_do_not_read_the_history_do_not_change_with_it() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, logit_bias={1: 2.0}, banned_token_ids=(4,))
    assert not LogitsRules(params, 2, CPU).reads_history
    assert torch.equal(apply(params, some_logits(0), ()), apply(params, some_logits(0), PROMPT))


def test_output_penalties_leave_the_prompt_alone() -> None:
    params = SamplingParams(frequency_penalty=2.0, presence_penalty=2.0)
    assert torch.equal(apply(params, some_logits(0), PROMPT), some_logits(0))


def test_filters_are_off_when_decoding_greedily() -> None:
    # As in transformers; locally typical sampling would even drop the most probable token.
    params = SamplingParams(temperature=0.0, top_k=2, top_p=0.5, min_p=0.5, typical_p=0.2)
    assert torch.equal(apply(params, some_logits(0)), some_logits(0))


@pytest.mark.parametrize("temperature", [1e-5, 100.0])
def test_no_allowed_value_makes_numbers_overflow(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, repetition_penalty=0.01, logit_bias={0: 100.0, 1: -100.0})
    logits = torch.linspace(-1e4, 1e4, VOCAB)
    assert bool(apply(params, logits).isfinite().all())


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("mass", [0.01, 0.5, 0.9, 0.999])
def test_top_p_is_that_of_transformers_with_and_without_a_nucleus_among_the_first(spread: float, mass: float) -> None:
    for seed in range(5):
        logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(seed)) * spread
        logits[0, 7] += 2.0
        expected = TopPLogitsWarper(mass)(None, logits)
        found = ShortTopPLogitsWarper(mass)(torch.zeros(1, 0, dtype=torch.long), logits)  # type: ignore[arg-type]
        # Summing in another order may decide the last token of the nucleus otherwise, and so may equal logits.
        sizes = (int(law.isfinite().sum()) for law in (found, expected))
        assert abs(next(sizes) - next(sizes)) <= 1 + (spread == 0.0) * 2
        if spread:
            assert int((found.isfinite() != expected.isfinite()).sum()) <= 1
        kept = found.isfinite()
        assert torch.equal(found[kept], logits[kept])


def test_rules_equal_those_of_transformers_generate() -> None:
    model = tiny_llama()
    model.set_attn_implementation("eager")
    prompt = [5, 9, 200, 5, 9]
    banned = tuple(range(100, 130))
    num_new = 25

    @torch.inference_mode()
    def decode(min_new_tokens: int, stop: int) -> list[int]:
        params = SamplingParams(
            temperature=0.0,
            repetition_penalty=1.2,
            no_repeat_ngram_size=2,
            banned_token_ids=banned,
            min_new_tokens=min_new_tokens,
            stop_token_ids=(stop,),
        )
        rules = LogitsRules(params, len(prompt), CPU)
        tokens = list(prompt)
        while len(tokens) < len(prompt) + num_new and stop not in tokens:
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(rules.apply(logits, tokens).argmax()))
        return tokens

    # A token that the model wants early on.
    stop = decode(0, stop=319)[len(prompt) + 3]
    assert len(decode(0, stop)) == len(prompt) + 4 < len(decode(12, stop))
    for min_new_tokens in (0, 12):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=num_new,
            repetition_penalty=1.2,
            no_repeat_ngram_size=2,
            suppress_tokens=list(banned),
            min_new_tokens=min_new_tokens,
            eos_token_id=stop,
            pad_token_id=0,
        )
        assert decode(min_new_tokens, stop) == expected[0].tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.7, top_k=20),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.3, min_p=0.05),
        SamplingParams(temperature=0.9, typical_p=0.8),
        SamplingParams(temperature=0.6, top_k=40, top_p=0.95, min_p=0.01, typical_p=0.97),
        SamplingParams(temperature=0.0, logit_bias={3: 2.0}, banned_token_ids=(4,)),
        SamplingParams(temperature=0.5, allowed_token_ids=(1, 2, 3, 900)),
    ],
)
def test_rows_that_are_processed_together_have_the_bits_that_each_has_alone(params: SamplingParams) -> None:
    rules = LogitsRules(params, 1, CPU)
    # Nuclei of all sizes: of some rows they lie within the first tokens, of others nowhere near.
    spread = torch.linspace(0.01, 8, 9)[:, None]
    rows = torch.randn(9, 3_000, generator=torch.Generator().manual_seed(3)) * spread
    alone = torch.stack([rules.apply(row, ()) for row in rows])
    for order in (torch.arange(9), torch.arange(9).flip(0), torch.tensor([4]), torch.tensor([0, 8, 0])):
        assert torch.equal(rules.apply_to_rows(rows[order]), alone[order])
