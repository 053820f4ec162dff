import errno
import functools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch

from specdec.models import hub
from specdec.models.errors import ModelError
from specdec.models.loading import load_model
from specdec.models.progress import log_report
from tests.specdec.models.fake_hub import COMMIT, FakeHub, running_hub
from tests.specdec.models.saved_models import save_tiny_model

ID = "owner/tiny"


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one model and files that nobody needs; the hub's cache is empty."""
    source = save_tiny_model(tmp_path / "source")
    with running_hub() as running:
        use_hub(running.endpoint, tmp_path, monkeypatch)
        files = {path.name: path.read_bytes() for path in source.iterdir()}
        running.repositories[ID] = files | {
            "README.md": b"words",
            "pytorch_model.bin": b"pickle",
            "consolidated.safetensors": b"the same again",
            "onnx/model.safetensors": b"for others",
            "modeling_tiny.py": b"raise SystemExit",
        }
        yield running


def use_hub(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = functools.partial(
        huggingface_hub.snapshot_download, endpoint=endpoint, cache_dir=tmp_path / "hub", token=False
    )
    monkeypatch.setattr(hub, "snapshot_download", download)


def test_model_is_fetched_once(
    fake_hub: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert hub.cached_hub_directory(ID) is None
    capfd.readouterr()
    with caplog.at_level(logging.INFO, "specdec"):
        directory = hub.hub_directory(ID, log_report)
    assert directory == tmp_path / "hub" / "models--owner--tiny" / "snapshots" / COMMIT
    needed = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(path.name for path in directory.iterdir()) == needed
    assert sorted(fake_hub.fetched) == needed
    assert [message for message in caplog.messages if "owner/tiny" in message] == [
        "fetching owner/tiny (0 MB) from the hub"
    ]
    assert capfd.readouterr() == ("", "")
    assert hub.cached_hub_directory(ID) == directory
    assert hub.hub_directory(ID, log_report) == directory
    assert sorted(fake_hub.fetched) == needed


@pytest.mark.usefixtures("fake_hub")
def test_model_of_the_hub_is_served() -> None:
    assert load_model(ID, device="cpu").info.model_id == ID


def test_weights_in_parts(fake_hub: FakeHub) -> None:
    files = fake_hub.repositories[ID]
    tensors = safetensors.torch.load(files.pop("model.safetensors"))
    parts: dict[str, dict[str, torch.Tensor]] = {
        "model-00001-of-00002.safetensors": {},
        "model-00002-of-00002.safetensors": {},
    }
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
        parts[sorted(parts)[number % 2]][name] = tensor
    weight_map = {name: part for part, names in parts.items() for name in names}
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    second = sorted(parts)[1]
    for part, content in parts.items():
        files[part] = safetensors.torch.save(content, metadata={"format": "pt"})
    directory = hub.hub_directory(ID, log_report)
    assert load_model(ID, device="cpu").info.vocab_size == 320
    (directory / second).unlink()
    assert hub.cached_hub_directory(ID) is None
    hub.hub_directory(ID, log_report)
    assert (directory / second).exists()


@pytest.mark.usefixtures("fake_hub")
def test_cached_model_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = hub.hub_directory(ID, log_report)
    use_hub("http://127.0.0.1:9", tmp_path, monkeypatch)
    assert hub.hub_directory(ID, log_report) == directory


def test_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub("http://127.0.0.1:9", tmp_path, monkeypatch)
    with pytest.raises(
        ModelError, match=r"owner/tiny is not in the hub's cache and the hub cannot be reached \(.*\); conn"
    ):
        hub.hub_directory(ID, log_report)


def test_gated_model(fake_hub: FakeHub) -> None:
    fake_hub.refusals["owner/gated"] = (403, "GatedRepo")
    with pytest.raises(ModelError, match=r"owner/gated is gated; accept its terms on http.*/owner/gated and log in"):
        hub.hub_directory("owner/gated", log_report)


@pytest.mark.parametrize("refusal", [(404, "RepoNotFound"), (401, "RepoNotFound")])
def test_missing_or_private_model(fake_hub: FakeHub, refusal: tuple[int, str]) -> None:
    fake_hub.refusals["owner/missing"] = refusal
    with pytest.raises(ModelError, match="the hub has no model owner/missing, or it is private; check the name"):
        hub.hub_directory("owner/missing", log_report)


def test_model_that_cannot_be_served_is_refused_before_its_weights(fake_hub: FakeHub) -> None:
    config = json.loads(fake_hub.repositories[ID]["config.json"]) | {"model_type": "mamba"}
    fake_hub.repositories[ID]["config.json"] = json.dumps(config).encode()
    with pytest.raises(ModelError, match="running state"):
        hub.hub_directory(ID, log_report)
    assert "model.safetensors" not in fake_hub.fetched


def test_pickled_weights_are_not_fetched(fake_hub: FakeHub) -> None:
    del fake_hub.repositories[ID]["model.safetensors"]
    with pytest.raises(ModelError, match="owner/tiny has pickled weights only"):
        hub.hub_directory(ID, log_report)
    assert "pytorch_model.bin" not in fake_hub.fetched


def test_no_weights(fake_hub: FakeHub) -> None:
    del fake_hub.repositories[ID]["model.safetensors"]
    del fake_hub.repositories[ID]["pytorch_model.bin"]
    with pytest.raises(ModelError, match="owner/tiny has no weights; choose a repository with safetensors"):
        hub.hub_directory(ID, log_report)


def test_interrupted_fetch_goes_on(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(directory: Path, needed_bytes: int, variable: str) -> None:
        raise ModelError(f"{needed_bytes} {variable}")

    size = len(fake_hub.repositories[ID]["model.safetensors"])
    with monkeypatch.context() as patched:
        patched.setattr("specdec.models.cache.check_room", no_room)
        with pytest.raises(ModelError, match=f"{size} HF_HOME"):
            hub.hub_directory(ID, log_report)
    assert "model.safetensors" not in fake_hub.fetched
    assert hub.cached_hub_directory(ID) is None
    hub.hub_directory(ID, log_report)
    assert fake_hub.fetched.count("model.safetensors") == fake_hub.fetched.count("config.json") == 1


def test_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"no room is left on disk .* set HF_HOME"):
        hub.hub_directory(ID, log_report)


@pytest.mark.parametrize("name", ["owner/", "a..b/c", "owner/name.git", "x" * 200])
def test_name_that_no_hub_has(name: str) -> None:
    with pytest.raises(ModelError, match="is no hub id; give an id such as owner/name"):
        hub.hub_directory(name, log_report)
    assert hub.cached_hub_directory(name) is None
