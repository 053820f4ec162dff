"""What the collector takes: keys and types of the components that its configuration names, as of the image's version.

The collector itself refuses a key that it does not know, and then does not start. Its documentation is the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tests.k8s.rendering import Document

Duration = Annotated[str, Field(pattern=r"^\d+(ms|s|m|h)$")]
Endpoint = Annotated[str, Field(pattern=r"^(\S+:\d+|\$\{env:\w+\})$")]
FromEnvironment = Annotated[str, Field(pattern=r"^\$\{env:\w+\}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Grpc(_Strict):
    endpoint: Endpoint


class _Protocols(_Strict):
    grpc: _Grpc


class _OtlpReceiver(_Strict):
    protocols: _Protocols


class _Receivers(_Strict):
    otlp: _OtlpReceiver


class _MemoryLimiter(_Strict):
    check_interval: Duration
    limit_percentage: Annotated[int, Field(gt=0, le=100)]
    spike_limit_percentage: Annotated[int, Field(gt=0, le=100)]


class _DecisionCache(_Strict):
    sampled_cache_size: int
    non_sampled_cache_size: int


class _StatusCode(_Strict):
    status_codes: list[Literal["OK", "ERROR", "UNSET"]]


class _Latency(_Strict):
    threshold_ms: int


class _OttlCondition(_Strict):
    error_mode: Literal["ignore", "propagate", "silent"]
    span: list[str] = []
    spanevent: list[str] = []


class _Probabilistic(_Strict):
    sampling_percentage: Annotated[float, Field(gt=0, le=100, strict=False)]


class _Policy(_Strict):
    name: str
    type: Literal["status_code", "latency", "ottl_condition", "probabilistic"]
    status_code: _StatusCode | None = None
    latency: _Latency | None = None
    ottl_condition: _OttlCondition | None = None
    probabilistic: _Probabilistic | None = None


class _TailSampling(_Strict):
    decision_wait: Duration
    num_traces: int
    expected_new_traces_per_sec: int
    decision_cache: _DecisionCache
    policies: list[_Policy]


class _Batch(_Strict):
    timeout: Duration


class _Processors(_Strict):
    memory_limiter: _MemoryLimiter
    tail_sampling: _TailSampling
    batch: _Batch


class _Tls(_Strict):
    insecure: FromEnvironment


class _Retry(_Strict):
    max_elapsed_time: Duration


class _OtlpExporter(_Strict):
    endpoint: Endpoint
    tls: _Tls
    retry_on_failure: _Retry


class _Exporters(_Strict):
    otlp: _OtlpExporter


class _Extensions(_Strict):
    health_check: _Grpc


class _Pipeline(_Strict):
    receivers: list[str]
    processors: list[str]
    exporters: list[str]


class _Prometheus(_Strict):
    host: str
    port: int


class _PullExporter(_Strict):
    prometheus: _Prometheus


class _Pull(_Strict):
    exporter: _PullExporter


class _Reader(_Strict):
    pull: _Pull


class _Metrics(_Strict):
    readers: list[_Reader]


class _Telemetry(_Strict):
    metrics: _Metrics


class _Service(_Strict):
    extensions: list[str]
    pipelines: dict[Literal["traces", "metrics", "logs"], _Pipeline]
    telemetry: _Telemetry


class _Config(_Strict):
    receivers: _Receivers
    processors: _Processors
    exporters: _Exporters
    extensions: _Extensions
    service: _Service


def config_problems(config: Document) -> Iterator[str]:
    """What the collector would not take; a sentence each."""
    try:
        read = _Config.model_validate(config)
    except ValidationError as error:
        for each in error.errors():
            yield f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
        return
    for policy in read.processors.tail_sampling.policies:
        given = policy.model_fields_set - {"name", "type"}
        if given != {policy.type}:
            yield f"the policy {policy.name} is of type {policy.type} and has {sorted(given)}"
    for kind, pipeline in read.service.pipelines.items():
        # What limits memory stands first, and batches are made of what is kept.
        if pipeline.processors[0] != "memory_limiter" or pipeline.processors[-1] != "batch":
            yield f"the pipeline {kind} runs {', '.join(pipeline.processors)} in this order"
