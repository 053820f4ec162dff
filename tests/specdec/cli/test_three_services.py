import socket
import sys
from pathlib import Path
from typing import get_args

import pytest

from draft_service.settings import DraftSettings
from orchestrator.settings import OrchestratorSettings
from specdec.cli import three_services
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.service_group import ServiceSpec
from specdec.cli.three_services import FOR_THIS_MACHINE_ALONE, ThreeServices, reachable
from specdec.settings import DEFAULT_MODEL, Settings, load_settings
from target_service.settings import TargetSettings

EVERYWHERE = "0.0.0.0"  # noqa: S104


def read(spec: ServiceSpec, settings_class: type[Settings]) -> Settings:
    """What the service will make of its flags."""
    program, dash_m, _, *flags = spec.command
    assert (program, dash_m) == (sys.executable, "-m")
    return load_settings(settings_class, flags, program=spec.name)


def test_the_services_understand_their_flags_and_find_each_other() -> None:
    services = ThreeServices(
        model="some-model",
        draft_model="small-model",
        num_draft_tokens=6,
        pipeline="candidates",
        device="cuda",
        draft_device="cpu",
        dtype="float32",
        num_threads=2,
        log_level="warning",
        drain_seconds=3,
        target_arguments=("--max-batch-rows=64",),
        environment={"NAME": "value"},
    )
    target_spec, draft_spec, orchestrator_spec = services.specs()
    target, draft = read(target_spec, TargetSettings), read(draft_spec, DraftSettings)
    orchestrator = read(orchestrator_spec, OrchestratorSettings)
    assert (target.model, target.device, target.dtype, target.num_threads) == ("some-model", "cuda", "float32", 2)
    assert (target.max_batch_rows, target.log_level, target.drain_seconds) == (64, "warning", 3)
    assert (draft.drafter, draft.model, draft.device, draft.num_threads) == ("model", "small-model", "cpu", 2)
    assert (orchestrator.target, orchestrator.draft) == (target_spec.address, draft_spec.address)
    assert (orchestrator.num_draft_tokens, orchestrator.pipeline) == (6, "candidates")
    for spec, settings in ((target_spec, target), (draft_spec, draft), (orchestrator_spec, orchestrator)):
        assert spec.address == f"{settings.host}:{settings.port}"
        assert spec.environment == {"NAME": "value"}


def test_a_target_on_several_gpus_shares_the_first_with_its_draft() -> None:
    target, draft, _ = ThreeServices(device="cuda:0,cuda:1").specs()
    assert read(target, TargetSettings).device == "cuda:0,cuda:1"
    assert read(draft, DraftSettings).device == "cuda:0"
    assert _draft(ThreeServices(device="cuda:0,cuda:1", draft_device="cuda:2")).device == "cuda:2"


def test_a_draft_beside_a_target_of_4_bits_is_bfloat16() -> None:
    target, draft, _ = ThreeServices(dtype="int4").specs()
    assert read(target, TargetSettings).dtype == "int4"
    assert read(draft, DraftSettings).dtype == "bfloat16"


def test_what_is_not_said_is_left_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_TARGET_MODEL", "from-environment")
    monkeypatch.setenv("SPECDEC_DRAFT_DRAFTER", "model")
    monkeypatch.setenv("SPECDEC_ORCHESTRATOR_NUM_DRAFT_TOKENS", "9")
    target_spec, draft_spec, orchestrator_spec = ThreeServices().specs()
    assert read(target_spec, TargetSettings).model == "from-environment"
    assert read(draft_spec, DraftSettings).drafter == "model"
    assert read(orchestrator_spec, OrchestratorSettings).num_draft_tokens == 9


@pytest.mark.parametrize(("num_cpus", "expected"), [(0.5, (1, 1)), (2.0, (1, 1)), (4.0, (3, 1)), (16.0, (12, 4))])
def test_the_services_share_the_processors(
    num_cpus: float, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(three_services, "num_processors", lambda: num_cpus)
    target, draft, _ = ThreeServices().specs()
    assert (read(target, TargetSettings).num_threads, read(draft, DraftSettings).num_threads) == expected
    monkeypatch.setenv("SPECDEC_TARGET_NUM_THREADS", "5")
    target, draft, _ = ThreeServices().specs()
    assert (read(target, TargetSettings).num_threads, read(draft, DraftSettings).num_threads) == (5, expected[1])
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    _, draft, _ = ThreeServices().specs()
    assert read(draft, DraftSettings).num_threads == DraftSettings().num_threads


@pytest.mark.parametrize("drafter", [kind for kind in get_args(DrafterKind) if kind != "none"])
def test_every_drafter_is_one_of_the_service(drafter: DrafterKind) -> None:
    _, draft_spec, _ = ThreeServices(drafter=drafter, draft_model="small-model").specs()
    draft = read(draft_spec, DraftSettings)
    assert (draft.drafter, draft.model) == (drafter, "small-model")


def test_a_draft_learns_which_target_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _draft(ThreeServices()).target_model == ""
    assert _draft(ThreeServices(model="some-model")).target_model == "some-model"
    monkeypatch.setenv("SPECDEC_TARGET_MODEL", "from-environment")
    assert _draft(ThreeServices()).target_model == "from-environment"
    monkeypatch.setenv("SPECDEC_DRAFT_TARGET_MODEL", "moved")
    assert _draft(ThreeServices(model="some-model")).target_model == "moved"


def test_a_target_that_no_draft_comes_with_is_served_without_a_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(three_services, "DEFAULT_DRAFTER_WITHOUT_MODEL", "suffix")
    for services, drafter in (
        (ThreeServices(), None),
        (ThreeServices(model=DEFAULT_MODEL), None),
        (ThreeServices(model="some-model"), "suffix"),
        (ThreeServices(environment={"SPECDEC_TARGET_MODEL": "some-model"}), "suffix"),
        (ThreeServices(model="some-model", drafter="combined"), "combined"),
        (ThreeServices(model="some-model", draft_model="small-model"), "model"),
        # What the environment says is left to it.
        (ThreeServices(model="some-model", environment={"SPECDEC_DRAFT_DRAFTER": "model"}), None),
        (ThreeServices(model="some-model", environment={"SPECDEC_DRAFT_MODEL": "small-model"}), None),
    ):
        assert services.drafter_flag == drafter


def _draft(services: ThreeServices) -> DraftSettings:
    return read(services.specs()[1], DraftSettings)


def test_without_a_drafter_there_is_no_draft_service() -> None:
    target, orchestrator = ThreeServices(drafter="none").specs()
    assert (target.name, orchestrator.name) == ("target", "orchestrator")
    assert read(orchestrator, OrchestratorSettings).draft == ""


def test_only_the_orchestrator_listens_elsewhere_than_on_loopback() -> None:
    target, draft, orchestrator = ThreeServices(host=EVERYWHERE).specs()
    assert read(target, TargetSettings).host == read(draft, DraftSettings).host == "127.0.0.1"
    settings = read(orchestrator, OrchestratorSettings)
    assert settings.host == EVERYWHERE
    assert orchestrator.address == f"127.0.0.1:{settings.port}"


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            ThreeServices(draft_port=port).specs()


@pytest.mark.parametrize(
    ("host", "name"),
    [("127.0.0.1", "127.0.0.1"), (EVERYWHERE, "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("node", "node")],
)
def test_a_host_to_listen_on_becomes_one_to_call(host: str, name: str) -> None:
    assert reachable(host) == name


def test_certificates_and_tokens_are_the_orchestrators_and_health_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_TARGET_TLS_CERT", raising=False)
    services = ThreeServices(
        host=EVERYWHERE,
        tls_cert=Path("a.pem"),
        tls_key=Path("a.key"),
        client_ca=Path("ca.pem"),
        token_file=Path("tokens"),
        insecure_bind=True,
    )
    target_spec, draft_spec, orchestrator_spec = services.specs()
    orchestrator = read(orchestrator_spec, OrchestratorSettings)
    assert (orchestrator.tls_cert, orchestrator.tls_key) == (Path("a.pem"), Path("a.key"))
    assert (orchestrator.client_ca, orchestrator.token_file) == (Path("ca.pem"), Path("tokens"))
    assert orchestrator.insecure_bind
    assert orchestrator_spec.health_address == f"127.0.0.1:{orchestrator.health_port}"
    assert read(target_spec, TargetSettings).tls_cert is None
    assert (target_spec.health_address, draft_spec.health_address) == ("", "")


def test_a_service_with_a_certificate_from_the_environment_is_asked_for_its_health_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECDEC_TARGET_TLS_CERT", "a.pem")
    monkeypatch.setenv("SPECDEC_TARGET_TLS_KEY", "a.key")
    target_spec, draft_spec, _ = ThreeServices().specs()
    target = read(target_spec, TargetSettings)
    assert target_spec.health_address == f"127.0.0.1:{target.health_port}"
    assert draft_spec.health_address == ""
    alone = ThreeServices(environment=FOR_THIS_MACHINE_ALONE).specs()[0]
    assert alone.health_address == ""


def test_services_for_this_machine_alone_pass_over_certificates_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix in ("TARGET", "DRAFT", "ORCHESTRATOR"):
        for name in ("TLS_CERT", "TLS_KEY", "TLS_CA"):
            monkeypatch.setenv(f"SPECDEC_{prefix}_{name}", "some.pem")
    monkeypatch.setenv("SPECDEC_ORCHESTRATOR_TOKEN_FILE", "tokens")
    monkeypatch.setenv("SPECDEC_TARGET_ALLOWED_PEERS", "somebody")
    for name, value in FOR_THIS_MACHINE_ALONE.items():
        monkeypatch.setenv(name, value)
    assert load_settings(TargetSettings, [], program="x").tls_cert is None
    assert load_settings(DraftSettings, [], program="x").tls_ca is None
    assert load_settings(OrchestratorSettings, [], program="x").token_file is None


def test_each_service_has_a_port_for_its_metrics_if_asked() -> None:
    target_spec, draft_spec, orchestrator_spec = ThreeServices(has_metrics=True, host=EVERYWHERE).specs()
    ports = []
    for spec, settings_class in (
        (target_spec, TargetSettings),
        (draft_spec, DraftSettings),
        (orchestrator_spec, OrchestratorSettings),
    ):
        settings = read(spec, settings_class)
        assert spec.metrics_address == f"127.0.0.1:{settings.metrics_port}"
        ports.extend([settings.port, settings.metrics_port])
    assert len(set(ports)) == 6
    assert {spec.metrics_address for spec in ThreeServices().specs()} == {""}


def test_ports_for_metrics_and_health_differ(tmp_path: Path) -> None:
    *_, spec = ThreeServices(has_metrics=True, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem").specs()
    settings = read(spec, OrchestratorSettings)
    assert settings.metrics_port is not None
    assert len({settings.port, settings.metrics_port, settings.health_port}) == 3
