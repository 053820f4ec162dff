from pathlib import Path

import pytest

from specdec.models import source
from specdec.models.catalog import CATALOG, EmbeddedModel
from specdec.models.errors import ModelError
from specdec.models.progress import Report, log_report
from specdec.settings import DEFAULT_MODEL
from tests.specdec.models.saved_models import write_tiny_gguf
from tests.tiny_models import tiny_llama


def test_default_model_is_embedded() -> None:
    assert DEFAULT_MODEL in CATALOG
    assert all(name == model.name for name, model in CATALOG.items())


def test_embedded_model_is_fetched_and_converted_once(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(model: EmbeddedModel, directory: Path, report: Report) -> Path:
        fetched.append(model.name)
        return write_tiny_gguf(directory / "tiny.gguf", tiny_llama())

    monkeypatch.setattr(source, "fetch_gguf", fetch)
    # Even if something of that name lies in the working directory.
    (tmp_path / DEFAULT_MODEL).mkdir()
    monkeypatch.chdir(tmp_path)
    assert source.find_model(DEFAULT_MODEL) is None
    directory = source.provide_model(DEFAULT_MODEL, log_report)
    assert directory.parent == empty_cache
    assert directory.name == f"{DEFAULT_MODEL}-{CATALOG[DEFAULT_MODEL].gguf_sha256[:16]}-v1"
    assert sorted(path.name for path in directory.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert source.provide_model(DEFAULT_MODEL, log_report) == directory
    assert source.find_model(DEFAULT_MODEL) == directory
    assert fetched == [DEFAULT_MODEL]


def test_failed_fetch_leaves_nothing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(model: EmbeddedModel, directory: Path, report: Report) -> Path:
        (directory / "half").touch()
        raise ModelError("no network")

    monkeypatch.setattr(source, "fetch_gguf", fetch)
    with pytest.raises(ModelError, match="no network"):
        source.provide_model(DEFAULT_MODEL, log_report)
    assert source.find_model(DEFAULT_MODEL) is None
    assert [path.suffix for path in empty_cache.iterdir()] == [".lock"]


def test_directory_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    assert source.provide_model(str(tmp_path / "own"), log_report) == tmp_path / "own"
    assert source.find_model(str(tmp_path / "own")) == tmp_path / "own"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert source.provide_model("~/own", log_report) == tmp_path / "own"


@pytest.mark.usefixtures("empty_cache")
def test_gguf_file_is_converted(tmp_path: Path) -> None:
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama()))
    assert source.find_model(path) is None
    directory = source.provide_model(path, log_report)
    assert source.find_model(path) == directory


def test_everything_else_is_a_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specdec.models.hub.hub_directory", lambda name, report: tmp_path / name)
    monkeypatch.setattr("specdec.models.hub.cached_hub_directory", lambda name: None)
    assert source.provide_model("owner/name", log_report) == tmp_path / "owner/name"
    assert source.provide_model("gpt2", log_report) == tmp_path / "gpt2"
    assert source.find_model("owner/name") is None


@pytest.mark.parametrize(
    "name", ["", "/not/there", "./not", "../not", "~/not", "a/b/c", "https://host/x", "-x", "~nobody"]
)
def test_name_that_can_mean_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for call in (source.find_model, lambda name: source.provide_model(name, log_report)):
        with pytest.raises(ModelError, match="is neither a directory nor a hub id; known by name are smollm2"):
            call(name)
