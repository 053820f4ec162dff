import io

import pytest
from rich.console import Console

from specdec.top.reading import KvBlocks, Reading
from specdec.top.table import system_table

READINGS = [
    Reading(
        "127.0.0.1:9102",
        "draft",
        interval_seconds=2.0,
        open_sequences=3,
        queued_commands=0,
        queued_sequences=0,
        forwards_per_second=40.0,
        busy_share=0.8,
    ),
    Reading(
        "127.0.0.1:9101",
        "target",
        interval_seconds=2.0,
        open_sequences=3,
        queued_commands=2,
        queued_sequences=1,
        forwards_per_second=12.34,
        busy_share=0.56,
        batch_sequences=2.0,
        batch_rows=8.0,
        kv_blocks=KvBlocks(50, 25, 25),
    ),
    Reading(
        "127.0.0.1:9103",
        "orchestrator",
        interval_seconds=2.0,
        active_requests=3,
        targets_available=2,
        drafts_available=0,
        requests_per_second=1.5,
        tokens_per_second=33.3,
        num_draft_tokens=3.9,
        acceptance_rate=0.51,
        mean_acceptance_length=2.96,
        ttft_p50_seconds=0.25,
        tpot_p50_seconds=0.03,
        failovers=1,
        resyncs=0,
        fallbacks={"overdue": 2, "lost": 1},
    ),
    Reading("127.0.0.1:9104", "target", problem="connection refused"),
]


def drawn(readings: list[Reading], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(system_table(readings, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 116, 140])
def test_all_processes_are_shown(width: int) -> None:
    lines = drawn(READINGS, width)
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if "127.0.0.1" in line]
    assert rows[0] == ["127.0.0.1:9103", "2", "none", "3", "1.5", "33.3", "250.0", "ms", "30.0", "ms"]
    assert rows[1][:8] == ["127.0.0.1:9103", "3.9", "51%", "2.96", "1", "0", "1", "lost,"]
    assert "overdue" in " ".join(lines)
    assert rows[2][:10] == ["127.0.0.1:9101", "target", "3", "3", "12.3", "56%", "2.0", "×", "4.0", "50%"]
    assert ("25%" in rows[2]) == (width >= 88)
    assert rows[3][:7] == ["127.0.0.1:9102", "draft", "3", "0", "40.0", "80%", "–"]
    assert " ".join(rows[4]) == "target 127.0.0.1:9104 connection refused"
    assert "the bonus counted" in " ".join(" ".join(lines).split())


def test_memory_is_drawn_to_scale() -> None:
    text = "\n".join(drawn(READINGS, 140))
    assert f"{10 * '█'}{5 * '▒'}{5 * '·'} 100" in text


def test_nothing_is_known_yet() -> None:
    lines = drawn([Reading("127.0.0.1:9103", "orchestrator"), Reading("127.0.0.1:9101", "")], 120)
    rows = [line.split() for line in lines if "127.0.0.1" in line]
    assert set(rows[0][1:]) == {"–"}
    assert rows[2][1] == "?"


def test_of_a_name_nothing_is_markup() -> None:
    assert "[bold]x" in "\n".join(drawn([Reading("a:1", "[bold]x", problem="[red]gone")], 100))
