"""What the manifests say, done by processes on this machine: start, scale up and down under load, end."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdec.client import GenerationClient
from specdec.serving.certificates import CertificateFiles
from specdec.serving.channel_security import ChannelSecurity
from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_name
from specdec.v1 import generation_pb2
from tests.certificate_authority import CertificateAuthority
from tests.chaos.models import save_models
from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES, of_kind
from tests.k8s.rehearsal.cluster import Cluster
from tests.k8s.rehearsal.kubelet import RehearsedPod
from tests.k8s.rehearsal.load import Load
from tests.k8s.rendering import Combination, Document

START_SECONDS = 90.0
TAKES_WORK_SECONDS = 5.0
NUM_CLIENTS = 8


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Tiny models; and a row gives the same bits in any batch, so that texts can be compared."""
    target, draft = save_models(tmp_path_factory.mktemp("models"))
    return {
        "target": {"SPECDEC_TARGET_MODEL": str(target), "SPECDEC_TARGET_LINEAR_KERNEL": "invariant"},
        "draft": {"SPECDEC_DRAFT_MODEL": str(draft)},
    }


def num_passes(cluster: Cluster, pod: RehearsedPod) -> float:
    """Forward passes of a target, as Prometheus would fetch them."""
    url = f"http://{pod.address}:{cluster.port('target', 'metrics')}/metrics"
    text = urllib.request.urlopen(url, timeout=5).read().decode()
    wanted = f"{prometheus_name(names.FORWARD_DURATION)}_count"
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == wanted)


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait for something; gives the seconds that it took."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s"
        await asyncio.sleep(0.1)
    return time.monotonic() - began


async def test_targets_come_and_go_under_load_and_no_request_fails(
    fresh: Fresh, tmp_path: Path, changes: dict[str, dict[str, str]]
) -> None:
    async with Cluster(fresh(Combination("overlays/cpu")), tmp_path, changes) as cluster:
        first = [*await cluster.scale("target", 1), *await cluster.scale("draft", 1)]
        orchestrators = await cluster.scale("orchestrator", 1)
        await asyncio.gather(*(pod.ready(START_SECONDS) for pod in (*first, *orchestrators)))
        async with Load(f"{orchestrators[0].address}:{cluster.port('orchestrator', 'grpc')}", NUM_CLIENTS) as load:
            await load.finished(NUM_CLIENTS, 60)

            new = await cluster.scale("target", 3)
            await asyncio.gather(*(_takes_work(cluster, pod) for pod in new))
            targets = [first[0], *new]
            before = [num_passes(cluster, pod) for pod in targets]
            await load.finished(6 * NUM_CLIENTS, 60)
            passes = [num_passes(cluster, pod) - start for pod, start in zip(targets, before, strict=True)]
            assert min(passes) > 0.15 * sum(passes), passes

            await cluster.scale("target", 1)
            await load.finished(NUM_CLIENTS, 60)
            cluster.check()
        assert load.failures == []
        # Their sequences went elsewhere while they paused, so that no drain had anything to wait for.
        assert all(pod.end_seconds < 10 for pod in cluster.gone)
        await asyncio.gather(*(cluster.scale(component, 0) for component in SERVICES))


@pytest.mark.slow
async def test_with_certificates_everything_starts_and_only_their_holders_are_served(
    fresh: Fresh, tmp_path: Path, changes: dict[str, dict[str, str]]
) -> None:
    services = CertificateAuthority(tmp_path / "services")
    clients = CertificateAuthority(tmp_path / "clients")
    documents = fresh(Combination("overlays/cpu", ("tls",)))
    secrets = {
        certificate["spec"]["secretName"]: _secret(
            clients if certificate["spec"]["issuerRef"]["name"] == "specdec-clients" else services, certificate
        )
        for certificate in of_kind(documents, "Certificate")
        if "dnsNames" in certificate["spec"]
    }
    (tmp_path / "pods").mkdir()
    async with Cluster(documents, tmp_path / "pods", changes, secrets) as cluster:
        pods = [pod for component in SERVICES for pod in await cluster.scale(component, 1)]
        # The orchestrator is ready when it has shaken hands with the target, over mTLS.
        await asyncio.gather(*(pod.ready(START_SECONDS) for pod in pods))
        address = f"{pods[-1].address}:{cluster.port('orchestrator', 'grpc')}"
        request = generation_pb2.GenerateRequest(text="abc", max_new_tokens=4)
        own = clients.issue("client")
        files = CertificateFiles(own.chain, own.key, services.path)
        security = ChannelSecurity(files=files, server_name="specdec-orchestrator")
        async with GenerationClient(address, security=security) as client:
            result = await client.collect(request)
            assert result.text
            assert sum(each.num_draft_tokens for each in result.rounds) > 0
        stranger = ChannelSecurity(
            files=CertificateFiles(authorities=services.path), server_name="specdec-orchestrator"
        )
        for unknown in (stranger, None):
            async with GenerationClient(address, security=unknown, timeout_seconds=10) as client:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await client.collect(request)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.gather(*(cluster.scale(component, 0) for component in SERVICES))


def _secret(authority: CertificateAuthority, certificate: Document) -> dict[str, bytes]:
    """What cert-manager would make of a Certificate."""
    names_of_it = certificate["spec"]["dnsNames"]
    files = authority.issue(names_of_it[0], names_of_it)
    assert files.chain is not None
    assert files.key is not None
    return {
        "tls.crt": files.chain.read_bytes(),
        "tls.key": files.key.read_bytes(),
        "ca.crt": authority.path.read_bytes(),
    }


async def _takes_work(cluster: Cluster, pod: RehearsedPod) -> None:
    await pod.ready(START_SECONDS)
    before = await asyncio.to_thread(num_passes, cluster, pod)
    await until(lambda: num_passes(cluster, pod) > before, TAKES_WORK_SECONDS)
