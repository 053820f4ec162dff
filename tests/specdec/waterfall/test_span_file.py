import contextlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.telemetry import names
from specdec.waterfall import span_file
from specdec.waterfall.span_file import SpanFileError, read_span_file
from tests.specdec.waterfall.exported import lines
from tests.specdec.waterfall.made import export, span, trace


def read(data: bytes) -> span_file.SpanFile:
    return read_span_file(io.BytesIO(data))


def test_an_export_a_line(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    spans = trace()
    path.write_bytes(lines(export(spans[:3]), {"resourceMetrics": []}, export(spans[3:])) + b"\n")
    file = read_span_file(path)
    assert len(file.spans) == len(spans)
    assert not file.is_cut


@pytest.mark.parametrize("indent", [None, 2])
def test_one_object(indent: int | None) -> None:
    assert len(read(json.dumps(export(trace()), indent=indent).encode()).spans) == len(trace())


def test_a_list_of_exports() -> None:
    assert len(read(json.dumps([export(trace()[:2]), export(trace()[2:])]).encode()).spans) == len(trace())


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    whole = lines(export(trace()), export(trace()))
    file = read(whole[:-40])
    assert file.is_cut
    assert len(file.spans) == len(trace())


def test_nothing() -> None:
    assert read(b"").spans == []
    assert read(b"\n\n").spans == []


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"hello\n", "line 1: it is not JSON"),
        (b"\x1f\x8b\x08\x00", "line 1: it is not UTF-8 text"),
        (b'{"a": 1}\nhello\n{"a": 1}\n', "line 2: it is not JSON"),
        (b'{"a": 1}\n{"resourceSpans": 5}\n', "line 2: resourceSpans is not a list"),
        (b"[" * 200_000, "not JSON that can be read"),
        (b"5\n", "line 1: an export is not a JSON object"),
        (b'{"resourceSpans": 1' + b"0" * 6000 + b"}\n", "not JSON that can be read"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(data: bytes, complaint: str) -> None:
    with pytest.raises(SpanFileError, match=complaint):
        read(data)


def test_errors_quote_nothing_of_the_file() -> None:
    with pytest.raises(SpanFileError) as failure:
        read(b"my secret prompt\n")
    assert "secret" not in str(failure.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpanFileError, match="no such file"):
        read_span_file(tmp_path / "none")
    with pytest.raises(SpanFileError, match="is a directory"):
        read_span_file(tmp_path)


def test_a_line_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_file, "_MAX_LINE_BYTES", 1000)

    class Endless(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 < size <= 1001
            return b"x" * size

    with pytest.raises(SpanFileError, match="line 1: it is too large"):
        read_span_file(Endless())


def test_one_object_over_many_lines_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_file, "_MAX_LINE_BYTES", 1000)
    with pytest.raises(SpanFileError, match="line 1"):
        read(json.dumps(export(trace()), indent=2).encode())


def test_spans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_file, "_MAX_SPANS", 3)
    with pytest.raises(SpanFileError, match="line 2: more than 3 spans"):
        read(lines(*(export([span(names.ROUND, 2 * index + half, 1, 0, 1) for half in (1, 2)]) for index in range(3))))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["resourceSpans", "scopeSpans", "spans", "name", "traceId", "attributes", "value", "events"]
                ),
                inner | st.sampled_from(["round", "generate"]),
                max_size=4,
            )
        ),
    )
)
def test_any_json_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(SpanFileError):
        read(json.dumps(document).encode())
