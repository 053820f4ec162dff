import json
import logging
import re
import warnings
from collections.abc import Iterator

import pytest

from specdec.logs import PROJECT_LOGGERS, configure_logs
from specdec.telemetry import names, tracing
from tests.recorded_spans import recorded_spans

logger = logging.getLogger("specdec.test")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    # What configure_logs removes, it closes; the test runner's own handlers must survive that.
    root.handlers = []
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = before
    for name in PROJECT_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_text_line_has_time_level_service_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text", "info", service="target")
    logger.info("listening on %s", "127.0.0.1:1")
    (line,) = lines_of(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    target listening on 127\.0\.0\.1:1", line)


def test_a_message_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text", "info", service="target")
    logger.info("model %s", "a\r\n2026-01-01T00:00:00.000Z error   target all is lost")
    assert len(lines_of(capsys)) == 1


def test_a_json_line_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", service="draft")
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("it\nfailed")
    (line,) = lines_of(capsys)
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert "Traceback" in fields.pop("exception")
    assert fields == {"level": "error", "service": "draft", "logger": "specdec.test", "message": "it\nfailed"}


def test_a_json_line_names_its_span(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", service="draft")
    with recorded_spans(), tracing.span(names.GENERATE) as span:
        logger.info("in the span", extra=tracing.log_fields(span))
        logger.info("not in it")
        context = span.get_span_context()
    inside, outside = (json.loads(line) for line in lines_of(capsys))
    assert (inside["trace_id"], inside["span_id"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert "trace_id" not in outside


def test_without_tracing_a_record_has_no_span(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", service="draft")
    with tracing.span(names.GENERATE) as span:
        logger.info("hello", extra=tracing.log_fields(span))
    assert "trace_id" not in json.loads(lines_of(capsys)[0])


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", ["d", "i", "w"]), ("info", ["i", "w"]), ("warning", ["w"]), ("error", [])]
)
def test_the_level_is_for_the_project_and_libraries_warn(
    level: str, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs("json", level, service="draft")  # type: ignore[arg-type]
    for name in PROJECT_LOGGERS:
        own = logging.getLogger(f"{name}.x")
        own.debug("d")
        own.info("i")
        own.warning("w")
        assert [json.loads(line)["message"] for line in lines_of(capsys)] == shown
    library = logging.getLogger("some_library.x")
    library.info("i")
    library.warning("w")
    assert [json.loads(line)["message"] for line in lines_of(capsys)] == (["w"] if "w" in shown else [])


def test_python_warnings_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", service="draft")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old thing", stacklevel=1)
    (line,) = lines_of(capsys)
    assert "old thing" in json.loads(line)["message"]


def test_the_telemetry_library_gets_one_line_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("specdec.logs.time.monotonic", lambda: now)
    configure_logs("json", "info", service="draft")
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    for _ in range(100):
        exporter.error("cannot export")
        exporter.warning("retrying")
    logging.getLogger("opentelemetry.sdk").warning("queue is full")
    assert [json.loads(line)["message"] for line in lines_of(capsys)] == ["cannot export", "queue is full"]
    now += 61
    exporter.error("cannot export")
    assert len(lines_of(capsys)) == 1


def test_an_idle_wake_up_of_grpc_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text", "info", service="target")
    logger = logging.getLogger("asyncio")
    callback = "Exception in callback PollerCompletionQueue._handle_events(...)()"
    logger.error(callback, exc_info=BlockingIOError(11, "Resource temporarily unavailable"))
    assert capsys.readouterr().err == ""
    logger.error(callback, exc_info=RuntimeError("another one"))
    assert "another one" in capsys.readouterr().err
    logger.error("Exception in callback other()", exc_info=BlockingIOError(11, "Resource temporarily unavailable"))
    assert "BlockingIOError" in capsys.readouterr().err
