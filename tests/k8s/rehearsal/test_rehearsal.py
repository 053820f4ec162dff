"""What the manifests say, done by processes on this machine: start, scale up and down under load, end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from specdec.client import GenerationClient
from specdec.serving.certificates import CertificateFiles
from specdec.serving.channel_security import ChannelSecurity
from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_name
from specdec.v1 import generation_pb2
from tests.certificate_authority import CertificateAuthority
from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES, of_kind
from tests.k8s.rehearsal.cluster import Cluster
from tests.k8s.rehearsal.kubelet import RehearsedPod
from tests.k8s.rehearsal.load import Load
from tests.k8s.rehearsal.scraping import NAMED, OF_RARE_EVENTS, num_passes, scrape
from tests.k8s.rendering import Combination, Document

START_SECONDS = 90.0
TAKES_WORK_SECONDS = 5.0
NUM_CLIENTS = 6


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
        async with Load(_address(orchestrators[0]), NUM_CLIENTS) as load:
            await load.finished(NUM_CLIENTS, 60)

            new = await cluster.scale("target", 3)
            await asyncio.gather(*(_takes_work(pod) for pod in new))
            targets = [first[0], *new]
            before = await asyncio.to_thread(lambda: [num_passes(pod) for pod in targets])
            await load.finished(6 * NUM_CLIENTS, 60)
            after = await asyncio.to_thread(lambda: [num_passes(pod) for pod in targets])
            passes = [end - start for start, end in zip(before, after, strict=True)]
            assert min(passes) > 0.15 * sum(passes), passes

            await cluster.scale("target", 1)
            await load.finished(NUM_CLIENTS, 60)
            cluster.check()
        assert load.failures == []
        served: set[str] = set()
        for pod in (*first, *orchestrators):
            served |= (await asyncio.to_thread(scrape, pod)).keys()
        assert NAMED - served <= OF_RARE_EVENTS
        assert prometheus_name(names.FAILOVERS) in served
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
    secrets["specdec-clients-authority"] = {"ca.crt": clients.path.read_bytes()}
    (tmp_path / "pods").mkdir()
    async with Cluster(documents, tmp_path / "pods", changes, secrets) as cluster:
        pods = [pod for component in SERVICES for pod in await cluster.scale(component, 1)]
        # The orchestrator is ready when it has shaken hands with the target, over mTLS.
        await asyncio.gather(*(pod.ready(START_SECONDS) for pod in pods))
        address = _address(pods[-1])
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


def _address(pod: RehearsedPod) -> str:
    return f"{pod.address}:{pod.port('grpc')}"


async def _takes_work(pod: RehearsedPod) -> None:
    await pod.ready(START_SECONDS)
    before = await asyncio.to_thread(num_passes, pod)
    await until(lambda: num_passes(pod) > before, TAKES_WORK_SECONDS)
