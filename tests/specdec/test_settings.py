from __future__ import annotations

import os

import pytest
from pydantic_settings import BaseSettings

from draft_service.settings import DraftSettings
from orchestrator.settings import OrchestratorSettings
from specdec.settings import ServiceSettings, load_settings
from target_service.settings import TargetSettings

ALL = pytest.mark.parametrize("settings_class", [DraftSettings, TargetSettings, OrchestratorSettings])


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFT", "TARGET", "ORCHESTRATOR"):
        for variable in ("PORT", "LOG_LEVEL", "MAX_BATCH_ROWS", "NGRAM_MIN"):
            monkeypatch.delenv(f"SPECDEC_{name}_{variable}", raising=False)


def refused(
    capsys: pytest.CaptureFixture[str], settings_class: type[BaseSettings], *arguments: str, program: str = "specdec x"
) -> str:
    with pytest.raises(SystemExit) as stopped:
        load_settings(settings_class, arguments, program=program)
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


@ALL
def test_defaults_listen_on_this_machine_only(settings_class: type[ServiceSettings]) -> None:
    settings = load_settings(settings_class, [], program="specdec x")
    assert type(settings).__name__ == settings_class.__name__
    assert isinstance(settings, settings_class)
    assert settings.host == "127.0.0.1"
    assert settings.model_dump() == {name: field.default for name, field in settings_class.model_fields.items()}


def test_services_have_ports_of_their_own() -> None:
    classes = (DraftSettings, TargetSettings, OrchestratorSettings)
    assert len({load_settings(each, [], program="x").port for each in classes}) == 3


def test_flag_wins_over_environment_and_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(TargetSettings, [], program="x").max_batch_rows == 512
    monkeypatch.setenv("SPECDEC_TARGET_MAX_BATCH_ROWS", "100")
    monkeypatch.setenv("SPECDEC_DRAFT_MAX_BATCH_ROWS", "200")
    assert load_settings(TargetSettings, [], program="x").max_batch_rows == 100
    assert load_settings(TargetSettings, ["--max-batch-rows", "300"], program="x").max_batch_rows == 300
    assert load_settings(DraftSettings, [], program="x").max_batch_rows == 200


def test_arguments_default_to_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["specdec target", "--port", "1234"])
    assert load_settings(TargetSettings, program="specdec target").port == 1234


def test_a_malformed_flag_is_named_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, DraftSettings, "--ngram-min", "few", "--port", "65536")
    assert "specdec x: --ngram-min / SPECDEC_DRAFT_NGRAM_MIN: Input should be a valid integer" in message
    assert "specdec x: --port / SPECDEC_DRAFT_PORT: Input should be less than or equal to 65535" in message
    assert "few" not in message
    assert "Traceback" not in message


def test_a_malformed_variable_is_named_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_TARGET_LOG_LEVEL", "loud")
    assert "--log-level / SPECDEC_TARGET_LOG_LEVEL: " in refused(capsys, TargetSettings)


@ALL
def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str], settings_class: type[BaseSettings]) -> None:
    assert "--modle" in refused(capsys, settings_class, "--modle", "x")


@ALL
def test_help_names_the_program_and_documents_every_setting(
    capsys: pytest.CaptureFixture[str], settings_class: type[BaseSettings]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_settings(settings_class, ["--help"], program="specdec service")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: specdec service")
    assert " ".join((settings_class.__doc__ or "").split()) in " ".join(text.split())
    for name, field in settings_class.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description, f"{name} has no description"


def test_a_target_pass_must_hold_the_largest_window(capsys: pytest.CaptureFixture[str]) -> None:
    # A window is never split, so one that does not fit would wait for ever.
    sizes = ("--max-num-draft-tokens", "16", "--max-batch-rows")
    assert load_settings(TargetSettings, [*sizes, "17"], program="x").max_batch_rows == 17
    assert refused(capsys, TargetSettings, *sizes, "16").startswith(
        "specdec x: --max-batch-rows must be above --max-num-draft-tokens"
    )
    assert load_settings(DraftSettings, [*sizes, "1"], program="x").max_batch_rows == 1


def test_a_cpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    cpus = os.sched_getaffinity(0)
    assert load_settings(TargetSettings, ["--cpu-affinity", str(min(cpus))], program="x").cpu_affinity
    message = refused(capsys, TargetSettings, "--cpu-affinity", "4000")
    assert message.startswith("specdec x: --cpu-affinity / SPECDEC_TARGET_CPU_AFFINITY: CPU 4000 is not among those")


def test_ngram_lengths_must_be_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_settings(DraftSettings, ["--ngram-min", "4", "--ngram-max", "4"], program="x").ngram_min == 4
    assert "--ngram-min must not be above --ngram-max" in refused(capsys, DraftSettings, "--ngram-min", "5")


@ALL
def test_half_of_a_tls_configuration_is_refused(
    capsys: pytest.CaptureFixture[str], settings_class: type[ServiceSettings]
) -> None:
    for flag in ("--tls-cert", "--tls-key"):
        assert "--tls-cert and --tls-key go together" in refused(capsys, settings_class, flag, "some.pem")
    flag = "--client-ca" if settings_class is OrchestratorSettings else "--tls-ca"
    message = refused(capsys, settings_class, flag, "some.pem")
    assert f"{flag} checks certificates of callers, which needs --tls-cert and --tls-key" in message


def test_allowed_peers_are_names_in_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs --tls-ca" in refused(capsys, TargetSettings, "--allowed-peers", "orchestrator.example")


@ALL
def test_a_file_that_is_named_by_an_empty_variable_is_none(
    settings_class: type[ServiceSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = settings_class.model_config["env_prefix"]
    for name in ("TLS_CERT", "TLS_KEY", "TLS_CA"):
        monkeypatch.setenv(f"{prefix}{name}", "")
    monkeypatch.setenv(f"{prefix}INSECURE_BIND", "true")
    settings = load_settings(settings_class, [], program="x")
    assert (settings.tls_cert, settings.tls_key, settings.tls_ca) == (None, None, None)
    assert settings.insecure_bind
    assert not load_settings(settings_class, ["--no-insecure-bind"], program="x").insecure_bind
