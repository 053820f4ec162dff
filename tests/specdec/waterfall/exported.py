"""Spans as the file exporter of a collector writes them: OTLP in JSON, ids in hex, an export a line."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

_IDS = ("traceId", "spanId", "parentSpanId")


def exported(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """One export."""
    written: dict[str, Any] = _with_hex_ids(MessageToDict(encode_spans(spans), use_integers_for_enums=True))
    return written


def lines(*exports: dict[str, Any]) -> bytes:
    """The file."""
    return b"".join(json.dumps(export, separators=(",", ":")).encode() + b"\n" for export in exports)


def _with_hex_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: base64.b64decode(entry).hex() if key in _IDS else _with_hex_ids(entry) for key, entry in value.items()
        }
    return [_with_hex_ids(entry) for entry in value] if isinstance(value, list) else value
