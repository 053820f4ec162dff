import io

import pytest
from rich.console import Console

from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.served import ServedGeneration
from benchmarks.measuring.speedup_report import PromptResult, summarize, summarize_categories, summary_table
from specdec.v1 import generation_pb2


def measured(num_tokens: int, seconds: float, token: int = 7) -> Measurement:
    return Measurement((token,) * num_tokens, 1, 0.5, seconds)


def result(category: str, tokens: int, seconds: float, *, drafted: int, accepted: int, rounds: int) -> PromptResult:
    stats = generation_pb2.RoundStats(
        num_rounds=rounds, num_draft_tokens=drafted, num_accepted_tokens=accepted, tokens_per_second=99
    )
    return PromptResult(
        category,
        ServedGeneration(measured(tokens, seconds), stats, (0.001, 0.003)),
        k0=measured(tokens, 2 * seconds),
        transformers=measured(tokens, 4 * seconds),
        assisted=measured(2 * tokens - 1, 3 * seconds, token=8),
    )


RESULTS = [
    result("a", 11, 1.0, drafted=10, accepted=5, rounds=5),
    result("b", 31, 3.0, drafted=30, accepted=3, rounds=27),
    result("a", 101, 5.0, drafted=100, accepted=50, rounds=50),
]


def test_rates_are_sums_over_sums_and_leave_the_first_tokens_out() -> None:
    summary = summarize(RESULTS, greedy=True)
    assert summary["num_prompts"] == 3
    assert summary["num_generated_tokens"] == 143
    assert summary["mean_acceptance_length"] == pytest.approx(1 + 58 / 82)
    assert summary["acceptance_rate"] == pytest.approx(58 / 140)
    assert summary["tokens_per_second"] == pytest.approx(140 / 9)
    assert summary["speedup_over_k0"] == pytest.approx(2)
    assert summary["speedup_over_transformers"] == pytest.approx(4)
    assert summary["speedup_over_assisted"] == pytest.approx(1.5)
    assert summary["round_overhead_seconds_p50"] == pytest.approx(0.002)
    assert summary["num_same_tokens_as_k0"] == 3
    assert summary["num_same_tokens_as_transformers"] == 3


def test_other_tokens_are_counted() -> None:
    other = PromptResult("a", RESULTS[0].speculative, measured(11, 1, token=9), measured(10, 1), None)
    summary = summarize([other], greedy=True)
    assert (summary["num_same_tokens_as_k0"], summary["num_same_tokens_as_transformers"]) == (0, 0)


def test_what_does_not_apply_is_none() -> None:
    plain = ServedGeneration(measured(5, 1.0), generation_pb2.RoundStats(num_rounds=4), ())
    summary = summarize([PromptResult("a", plain, None, measured(5, 2.0), None)], greedy=False)
    assert summary["speedup_over_transformers"] == pytest.approx(2)
    for name in ("acceptance_rate", "speedup_over_k0", "speedup_over_assisted", "round_overhead_seconds_p50"):
        assert summary[name] is None
    assert summary["num_same_tokens_as_k0"] is None
    assert summary["num_same_tokens_as_transformers"] is None


def test_a_generation_of_one_token_has_no_rate() -> None:
    one = ServedGeneration(measured(1, 0.0), generation_pb2.RoundStats(), ())
    summary = summarize([PromptResult("a", one, measured(1, 0.0), measured(1, 0.0), None)], greedy=False)
    assert (summary["tokens_per_second"], summary["speedup_over_k0"], summary["mean_acceptance_length"]) == (None,) * 3


def test_categories_are_apart_and_the_table_has_them_all() -> None:
    categories = summarize_categories(RESULTS, greedy=True)
    assert {name: summary["num_prompts"] for name, summary in categories.items()} == {"a": 2, "b": 1}
    assert categories["b"]["acceptance_rate"] == pytest.approx(0.1)
    console = Console(file=io.StringIO(), width=80)
    console.print(summary_table("ngram", categories, summarize(RESULTS, greedy=True)))
    assert isinstance(console.file, io.StringIO)
    assert "ngram: decoding by the services" in console.file.getvalue()
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["b", "1", "1.11", "10%", "10.0", "2.00", "4.00", "1.50", "2.00"] in rows
    assert ["all", "3", "1.71", "41%", "15.6", "2.00", "4.00", "1.50", "2.00"] in rows
