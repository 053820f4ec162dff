import dataclasses
import io

import pytest
from rich.console import Console

from specdec.cli.rounds_view import STYLES, RoundText, rounds_table, summary
from specdec.v1 import draft_pb2, generation_pb2, model_pb2, target_pb2
from tests.specdec.fake_generation import responses

DELTAS = [response.delta for response in responses() if response.HasField("delta")]
FINISHED = responses()[-1].finished


def rendered(rounds: list[RoundText]) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=200)
    console.print(rounds_table(rounds))
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip()]


def test_each_token_has_the_colour_of_where_it_came_from() -> None:
    coloured = RoundText.of(DELTAS[1]).coloured()
    assert coloured.plain == DELTAS[1].text
    assert [(coloured.plain[span.start : span.end], span.style) for span in coloured.spans] == [
        ("lo", STYLES["accepted"]),
        (" w", STYLES["accepted"]),
        ("or", STYLES["bonus"]),
    ]
    assert [RoundText.of(delta).coloured().spans[-1].style for delta in DELTAS[2:]] == [
        STYLES["recovered"],
        STYLES["bonus"],
    ]


def test_text_of_unknown_tokens_is_shown_all_the_same() -> None:
    report = generation_pb2.RoundReport(round=1)
    assert RoundText(report, 1, "abc", (1,)).coloured().plain == "abc"


def test_a_row_shows_where_the_time_went() -> None:
    *_, row = rendered([RoundText.of(DELTAS[1])])
    # round, K, accepted, source, kind, tokens, draft queue and compute, verify queue and compute, network, wall, text
    # The waits of 3.0 and 6.5 ms hold 2.0 and 6.0 that the services account for.
    assert row == ["1", "2", "2", "suffix", "bonus", "3", "0.5+1.5", "1.0+5.0", "1.5", "10.0", "lo", "wor"]


@pytest.mark.parametrize(("outcome", "shown"), [("HIT", "suffix+"), ("MISS", "suffix"), ("UNSPECIFIED", "suffix")])
def test_a_row_shows_what_was_drafted_ahead(outcome: str, shown: str) -> None:
    entry = RoundText.of(DELTAS[1])
    report = generation_pb2.RoundReport()
    report.CopyFrom(entry.report)
    report.draft_ahead = draft_pb2.AheadOutcome.Value(f"AHEAD_OUTCOME_{outcome}")
    *_, row = rendered([dataclasses.replace(entry, report=report)])
    assert row[3] == shown


def test_a_round_without_a_draft_has_no_times_of_it() -> None:
    *_, row = rendered([RoundText.of(DELTAS[3])])
    assert (row[3], row[6]) == ("–", "–")


def test_a_draft_computed_ahead_makes_no_negative_network_time() -> None:
    report = generation_pb2.RoundReport(
        round=1,
        draft_wait_microseconds=10,
        verify_wait_microseconds=5_000,
        draft=model_pb2.Timings(compute_microseconds=4_000),
        verify=model_pb2.Timings(compute_microseconds=4_000),
    )
    assert RoundText(report, 1, "x", (1,)).network_microseconds == 1_000


@pytest.mark.parametrize(("text", "shown"), [("a\nb", "a\\nb"), ("\x1b[31m", "\\x1b[31m"), ("it's", "it's")])
def test_a_piece_of_text_stays_on_its_line(text: str, shown: str) -> None:
    report = generation_pb2.RoundReport(round=1, next_token_kind=target_pb2.NEXT_TOKEN_KIND_BONUS)
    *_, row = rendered([RoundText(report, 1, text, (len(text),))])
    assert row[-1] == shown


def test_the_sums_are_one_line() -> None:
    assert summary(FINISHED.stats) == (
        "3 rounds, 2 of 5 draft tokens accepted (40%), mean acceptance length 1.67 (bonus counted), "
        "first token after 0.01 s, then 166.7 tokens/s"
    )
