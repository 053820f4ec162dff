"""Resources that Kubernetes' own schemas do not describe: those of the Prometheus operator, as far as they are used.

A field that is not listed here is a slip, or has to be looked up in the operator's API reference and added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tests.k8s.rendering import Document


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Requirement(_Strict):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class _Selector(_Strict):
    matchLabels: dict[str, str] = {}  # noqa: N815
    matchExpressions: list[_Requirement] = []  # noqa: N815


class _Endpoint(_Strict):
    port: str
    path: str = "/metrics"
    interval: str = Field("30s", pattern=r"^\d+(ms|s|m|h)$")


class _PodMonitor(_Strict):
    selector: _Selector
    podMetricsEndpoints: list[_Endpoint]  # noqa: N815


class _Rule(_Strict):
    alert: str
    expr: str
    # The operator calls it `for`, too.
    for_: str = Field("0s", alias="for", pattern=r"^\d+(ms|s|m|h)$")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Group(_Strict):
    name: str
    rules: list[_Rule]


class _PrometheusRule(_Strict):
    groups: list[_Group]


_SPECS: dict[tuple[str, str], type[BaseModel]] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _PodMonitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): _PrometheusRule,
}
GROUP = "monitoring.coreos.com/"


def custom_problems(document: Document) -> Iterator[str]:
    """What is wrong with a resource of this group; a sentence each."""
    name = f"{document['kind']} {document['metadata']['name']}"
    spec = _SPECS.get((document["apiVersion"], document["kind"]))
    if spec is None or document.keys() != {"apiVersion", "kind", "metadata", "spec"}:
        yield f"{name}: it is no resource of the Prometheus operator that is known here"
        return
    try:
        spec.model_validate(document["spec"])
    except ValidationError as error:
        for each in error.errors():
            place: list[Any] = list(each["loc"])
            yield f"{name}: {'.'.join(map(str, place))}: {each['msg']}"
