import os

import pytest

from specdec.telemetry.variables import TelemetrySettingError, read_switches

ENDPOINT = "http://127.0.0.1:4317"


@pytest.fixture(autouse=True)
def _no_telemetry_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ENDPOINT}, True, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://collector.example:443"}, False, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_SDK_DISABLED": "false"}, True, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False, False),
    ],
)
def test_what_turns_telemetry_on(
    variables: dict[str, str], traces: bool, metrics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    switches = read_switches()
    assert (switches.has_traces, switches.has_metrics) == (traces, metrics)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SDK_DISABLED", "yes"),
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector:1"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "nan"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "perhaps"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nothing/here.pem"),
        ("OTEL_RESOURCE_ATTRIBUTES", "zone"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1.5"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
    ],
)
def test_a_malformed_variable_is_named_without_its_value(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    monkeypatch.setenv(name, value)
    with pytest.raises(TelemetrySettingError) as refused:
        read_switches()
    message = str(refused.value)
    assert message.startswith(f"{name}: ")
    assert "secret" not in message


def test_all_malformed_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "x")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "x")
    with pytest.raises(TelemetrySettingError, match=r"OTEL_TRACES_SAMPLER: .*; OTEL_BSP_SCHEDULE_DELAY: "):
        read_switches()


def test_what_is_not_used_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert not read_switches().has_traces


def test_good_values_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://[::1]:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,tenant=a",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.1",
        "OTEL_RESOURCE_ATTRIBUTES": "zone=a,rack=3",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }.items():
        monkeypatch.setenv(name, value)
    assert read_switches().has_traces
