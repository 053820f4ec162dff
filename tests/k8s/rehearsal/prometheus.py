"""Debian's Prometheus beside rehearsed pods: it finds them as in a cluster, and answers by its HTTP API."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from typing_extensions import Self

from specdec.cli.child_process import ChildProcess
from specdec.cli.ports import choose_ports
from tests.k8s.documents import of_kind, pod_of
from tests.k8s.rehearsal.kubelet import RehearsedPod
from tests.k8s.rendering import Document

NAMESPACE = "rehearsal"
_INTERVAL = "1s"
_CALL_SECONDS = 10
_META = "__meta_kubernetes"


def found_in_cluster(documents: list[Document], pods: Sequence[RehearsedPod]) -> list[Document]:
    """What a Prometheus in a cluster would find: a target for each port of a pod, with what is known of it."""
    found = []
    for pod in pods:
        component = pod.name.rpartition("-")[0]
        template = pod_of(documents, component).workload["spec"]["template"]["metadata"]
        known = {
            f"{_META}_namespace": NAMESPACE,
            f"{_META}_pod_name": pod.name,
            f"{_META}_pod_ip": pod.address,
            **{
                f"{_META}_pod_{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}": value
                for kind, values in (("label", template["labels"]), ("annotation", template["annotations"]))
                for key, value in values.items()
            },
        }
        ports = pod_of(documents, component).ports.values()
        found.append({"targets": [f"{pod.address}:{port}" for port in ports], "labels": known})
    return found


class Prometheus:
    """Runs the rules and the scrape job of rendered manifests; an asynchronous context manager.

    Args:
        documents: rendered manifests, with the component `monitoring`.
        directory: empty.
    """

    def __init__(self, documents: list[Document], directory: Path) -> None:
        program = shutil.which("prometheus")
        assert program is not None, "prometheus is missing; run `apt-get install prometheus`, or put it on the PATH"
        data = {each["metadata"]["name"]: each["data"] for each in of_kind(documents, "ConfigMap")}
        self._documents = documents
        self._found = directory / "found.json"
        self._found.write_text("[]", encoding="utf-8")
        (directory / "alerts.yaml").write_text(data["specdec-alerts"]["alerts.yaml"], encoding="utf-8")
        (job,) = yaml.safe_load(data["specdec-scrape-job"]["scrape.yaml"])["scrape_configs"]
        # The one thing that is not as in a cluster: who says which pods there are.
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        job["file_sd_configs"] = [{"files": [str(self._found)]}]
        config = {
            "global": {"scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL, "evaluation_interval": _INTERVAL},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [job],
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (port,) = choose_ports([("127.0.0.1", 0)])
        self._address = f"127.0.0.1:{port}"
        flags = [f"--config.file={directory / 'prometheus.yaml'}", f"--storage.tsdb.path={directory / 'series'}"]
        flags.append("--enable-feature=exemplar-storage")
        self._child = ChildProcess("prometheus", [program, *flags, f"--web.listen-address={self._address}"])

    async def __aenter__(self) -> Self:
        await self._child.start()
        await self.until(lambda: self._fetch("-/ready") is not None, 30)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._child.stop(10)

    def find(self, pods: Sequence[RehearsedPod]) -> None:
        """Tell it which pods there are."""
        draft = self._found.with_suffix(".new")
        draft.write_text(json.dumps(found_in_cluster(self._documents, pods)), encoding="utf-8")
        draft.replace(self._found)

    def targets(self) -> dict[str, str]:
        """Health of what it scrapes, by address. Blocks."""
        return {each["scrapeUrl"]: each["health"] for each in self._ask("targets")["activeTargets"]}

    def alerts(self) -> dict[str, tuple[str, str]]:
        """State and health of each rule, by its name. Blocks."""
        groups = self._ask("rules")["groups"]
        return {rule["name"]: (rule["state"], rule["health"]) for group in groups for rule in group["rules"]}

    def series(self) -> set[str]:
        """Names of all time series. Blocks."""
        return set(self._ask("label/__name__/values"))

    def query(self, expression: str) -> list[Any]:
        """Result of a query, a list of series. Blocks.

        Raises:
            AssertionError: it cannot be answered.
        """
        result: list[Any] = self._ask("query", query=expression)["result"]
        return result

    def exemplars(self, name: str) -> list[dict[str, str]]:
        """Labels of the exemplars of a series in the last minute. Blocks."""
        now = time.time()
        found = self._ask("query_exemplars", query=name, start=str(now - 60), end=str(now))
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for something that blocks.

        Raises:
            AssertionError: it takes longer than `seconds`, or Prometheus ends.
        """
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(condition):
            assert self._child.is_running, "\n".join(self._child.lines)
            assert time.monotonic() < deadline, "\n".join([f"not within {seconds:g} s", *self._child.lines])
            await asyncio.sleep(0.2)

    def _ask(self, path: str, **parameters: str) -> Any:
        answer = self._fetch(f"api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert answer is not None, parameters or path
        said = json.loads(answer)
        assert said["status"] == "success", said
        return said["data"]

    def _fetch(self, path: str) -> bytes | None:
        """None: no answer, or an error."""
        try:
            with urllib.request.urlopen(f"http://{self._address}/{path}", timeout=_CALL_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except OSError:
            return None
