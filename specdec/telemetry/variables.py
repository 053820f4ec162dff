"""The OTEL_* variables that set telemetry up, checked before the OpenTelemetry SDK reads them.

The SDK meets a malformed value with a log line and a default; an operator who set a variable wants to be told instead.
"""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, FilePath, ValidationError, create_model
from pydantic_settings import BaseSettings, SettingsConfigDict


class TelemetrySettingError(Exception):
    """An OTEL_* variable is malformed. The message names it and leaves the value out: headers hold credentials."""


def _boolean(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _endpoint(value: object) -> str:
    text = str(value).strip()
    problem = "must be a URL with scheme, host and port, such as http://127.0.0.1:4317"
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        raise ValueError(problem) from None
    if not is_whole:
        raise ValueError(problem)
    return text


def _pairs(value: object) -> str:
    if any("=" not in pair for pair in str(value).split(",") if pair.strip()):
        raise ValueError("must be a list of key=value, separated by commas")
    return str(value)


_Boolean = Annotated[bool, BeforeValidator(_boolean)]
_Endpoint = Annotated[str, BeforeValidator(_endpoint)]
_Pairs = Annotated[str, BeforeValidator(_pairs)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_PositiveWhole = Annotated[int, Field(gt=0)]
_Exporter = Literal["otlp", "none"]
_Sampler = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]


class TelemetrySwitches(BaseSettings):
    """The variables that turn telemetry on. Empty is the same as unset, as the standard wants it."""

    model_config = SettingsConfigDict(env_prefix="OTEL_", env_ignore_empty=True)

    sdk_disabled: _Boolean = False
    traces_exporter: _Exporter = "otlp"
    metrics_exporter: _Exporter = "otlp"
    exporter_otlp_endpoint: _Endpoint | None = None
    exporter_otlp_traces_endpoint: _Endpoint | None = None
    exporter_otlp_metrics_endpoint: _Endpoint | None = None

    @property
    def has_traces(self) -> bool:
        """Whether traces are exported."""
        endpoint = self.exporter_otlp_traces_endpoint or self.exporter_otlp_endpoint
        return not self.sdk_disabled and self.traces_exporter == "otlp" and endpoint is not None

    @property
    def has_metrics(self) -> bool:
        """Whether metrics are exported."""
        endpoint = self.exporter_otlp_metrics_endpoint or self.exporter_otlp_endpoint
        return not self.sdk_disabled and self.metrics_exporter == "otlp" and endpoint is not None


# The rest is read by the SDK itself, and only checked here. Each of the first has a variant for one signal.
_EXPORTER_FIELDS: dict[str, Any] = {
    "protocol": Literal["grpc"],
    "timeout": _Positive,
    "compression": Literal["gzip"],
    "headers": _Pairs,
    "insecure": _Boolean,
    "certificate": FilePath,
    "client_key": FilePath,
    "client_certificate": FilePath,
}
_SDK_FIELDS: dict[str, Any] = {
    "resource_attributes": _Pairs,
    "traces_sampler": _Sampler,
    "traces_sampler_arg": Annotated[float, Field(ge=0, le=1)],
    "bsp_schedule_delay": _PositiveWhole,
    "bsp_max_queue_size": _PositiveWhole,
    "bsp_max_export_batch_size": _PositiveWhole,
    "bsp_export_timeout": _PositiveWhole,
    "metric_export_interval": _Positive,
    "metric_export_timeout": _Positive,
    "metrics_exemplar_filter": Literal["always_on", "always_off", "trace_based"],
    "exporter_otlp_metrics_temporality_preference": Literal["cumulative", "delta", "lowmemory"],
}
_FIELDS: dict[str, Any] = {
    **_SDK_FIELDS,
    **{
        f"exporter_otlp_{signal}{name}": kind
        for signal in ("", "traces_", "metrics_")
        for name, kind in _EXPORTER_FIELDS.items()
    },
}
_OPTIONAL_FIELDS: dict[str, Any] = {name: (kind | None, None) for name, kind in _FIELDS.items()}
_ALL_VARIABLES = create_model("_AllVariables", __base__=TelemetrySwitches, **_OPTIONAL_FIELDS)
CHECKED_VARIABLES = frozenset(f"OTEL_{name.upper()}" for name in _ALL_VARIABLES.model_fields)
"""All that are looked at here; the SDK reads a few more."""


def read_switches() -> TelemetrySwitches:
    """The switches; if they turn something on, every other variable is checked too.

    Raises:
        TelemetrySettingError: a variable is malformed; names it.
    """
    try:
        switches = TelemetrySwitches()
        if switches.has_traces or switches.has_metrics:
            _ALL_VARIABLES()
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise TelemetrySettingError(
            "; ".join(
                f"OTEL_{str(problem['loc'][0]).upper()}: {problem['msg'].removeprefix('Value error, ')}"
                for problem in problems
            )
        ) from None
    return switches
