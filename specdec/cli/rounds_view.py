"""Rounds for people: a table of them, and a colour for the text that each one brought."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from specdec.draft_source import source_name
from specdec.v1 import draft_pb2, generation_pb2, model_pb2, target_pb2

PREFILL, ACCEPTED, RECOVERED, BONUS = "prefill", "accepted", "recovered", "bonus"
STYLES = {PREFILL: "", ACCEPTED: "green", RECOVERED: "yellow", BONUS: "blue"}
_LONGEST_PIECE = 48


@dataclass(frozen=True)
class RoundText:
    """A round with what it brought. The text may lag behind the tokens, or hold characters begun by earlier ones."""

    report: generation_pb2.RoundReport
    num_tokens: int
    text: str
    text_lengths: tuple[int, ...]
    """Characters of `text` that each token made certain."""

    @classmethod
    def of(cls, delta: generation_pb2.Delta) -> RoundText:
        return cls(delta.round, len(delta.token_ids), delta.text, tuple(delta.text_lengths))

    def coloured(self) -> Text:
        """The text, each token's part in the colour of where the token came from."""
        coloured = Text()
        start = 0
        for index, length in enumerate(self.text_lengths):
            accepted = index < self.report.num_accepted_tokens
            source = ACCEPTED if accepted else PREFILL if self.report.round == 0 else self.next_token_kind
            coloured.append(self.text[start : start + length], STYLES[source])
            start += length
        return coloured.append(self.text[start:])

    @property
    def next_token_kind(self) -> str:
        """Kind of its last token."""
        bonus = self.report.next_token_kind == target_pb2.NEXT_TOKEN_KIND_BONUS
        return BONUS if bonus else RECOVERED

    @property
    def network_microseconds(self) -> int:
        """Time of its waits that neither service accounts for; 0 if a draft was computed before it was waited for."""
        report = self.report
        draft = report.draft_wait_microseconds - _spent(report.draft) if report.HasField("draft") else 0
        verify = report.verify_wait_microseconds - _spent(report.verify) if report.HasField("verify") else 0
        return max(draft, 0) + max(verify, 0)


def legend() -> Text:
    """What the colours of the text mean."""
    return Text.assemble(
        ("accepted draft tokens", STYLES[ACCEPTED]),
        " · ",
        ("recovered tokens", STYLES[RECOVERED]),
        " · ",
        ("bonus tokens", STYLES[BONUS]),
    )


def rounds_table(rounds: list[RoundText]) -> Table:
    """One row a round; times in milliseconds, of the services as queue + run."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for name in ("round", "K", "acc."):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("from", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("tok.", "draft\nq + run", "verify\nq + run", "net", "wall\nms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=_LONGEST_PIECE)
    for entry in rounds:
        report = entry.report
        kind = PREFILL if report.round == 0 else entry.next_token_kind
        table.add_row(
            str(report.round),
            str(report.num_draft_tokens),
            Text(str(report.num_accepted_tokens), STYLES[ACCEPTED] if report.num_accepted_tokens else ""),
            _source(report),
            Text(kind, STYLES[kind]),
            str(entry.num_tokens),
            _queue_and_compute(report.draft if report.HasField("draft") else None),
            _queue_and_compute(report.verify if report.HasField("verify") else None),
            _milliseconds(entry.network_microseconds),
            _milliseconds(report.wall_microseconds),
            _one_line(entry.coloured()),
        )
    return table


def summary(stats: generation_pb2.RoundStats) -> str:
    """The sums over the rounds, in one line."""
    return (
        f"{stats.num_rounds} rounds, {stats.num_accepted_tokens} of {stats.num_draft_tokens} draft tokens accepted "
        f"({stats.acceptance_rate:.0%}), mean acceptance length {stats.mean_acceptance_length:.2f} (bonus counted), "
        f"first token after {stats.ttft_seconds:.2f} s, then {stats.tokens_per_second:.1f} tokens/s"
    )


def _source(report: generation_pb2.RoundReport) -> str:
    """Where the draft tokens came from, with a "+" if they, or the first of them, were drafted ahead."""
    if not report.num_draft_tokens:
        return "–"
    return source_name(report.draft_source) + "+" * (report.draft_ahead == draft_pb2.AHEAD_OUTCOME_HIT)


def _spent(timings: model_pb2.Timings) -> int:
    return timings.queue_microseconds + timings.compute_microseconds


def _queue_and_compute(timings: model_pb2.Timings | None) -> str:
    if timings is None:
        return "–"
    return f"{_milliseconds(timings.queue_microseconds)}+{_milliseconds(timings.compute_microseconds)}"


def _one_line(text: Text) -> Text:
    """The same with line breaks and the like written out."""
    line = Text()
    for character in text.divide(range(1, len(text))):
        shown = character.plain if character.plain.isprintable() else repr(character.plain)[1:-1]
        line.append(shown, character.spans[0].style if character.spans else "")
    return line


def _milliseconds(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f}"
