"""A process that sets telemetry up from its environment, emits, and shuts it down; prints what the tests ask of it."""

import json
import sys
import time

from specdec.logs import configure_logs
from specdec.telemetry import names, tracing
from specdec.telemetry.metrics import EngineMetrics
from specdec.telemetry.setup import setup_telemetry

NUM_LINKS = 300


def main(num_spans: int, emit_seconds: float) -> None:
    configure_logs("text", "info", service="emitter")
    telemetry = setup_telemetry("specdec-emitter")
    metrics = EngineMetrics("target")
    began = time.monotonic()
    slowest = 0.0
    windows = []
    for _ in range(num_spans):
        start = time.monotonic()
        window = tracing.start_span(names.TARGET_WINDOW, attributes={names.ROUND_INDEX: 1})
        tracing.end_span(window)
        metrics.forward(duration_seconds=0.1, num_sequences=1, num_rows=5)
        slowest = max(slowest, time.monotonic() - start)
        windows.append(window.get_span_context())
        time.sleep(emit_seconds / num_spans)
    with tracing.span(names.TARGET_FORWARD, links=windows[-NUM_LINKS:]):
        pass
    emitted = time.monotonic()
    telemetry.shutdown(1.0)
    sys.stdout.write(
        json.dumps(
            {
                "is_on": telemetry.is_on,
                "has_sdk": "opentelemetry.sdk" in sys.modules,
                "slowest_seconds": slowest,
                "emit_seconds": emitted - began,
                "shutdown_seconds": time.monotonic() - emitted,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
