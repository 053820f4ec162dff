"""Drafts that come with the package: known by name, with their own target only; and what is shipped is whole."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from draft_service import shipped_drafts as module
from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.drafters.making import make_drafter
from draft_service.settings import DraftSettings
from draft_service.shipped_drafts import shipped_drafts
from draft_service.trained_draft import is_trained_draft, load_trained_draft
from draft_service.training.settings import TrainingSettings
from specdec.models.catalog import CATALOG
from specdec.models.errors import ModelError
from specdec.settings import DEFAULT_DRAFT_MODEL, DEFAULT_MODEL, load_settings
from tests.draft_service.conftest import Trained
from tests.draft_service.training.running import save_target
from tests.tiny_models import tiny_llama, tiny_tokenizer_files

ROOT = Path(__file__).parents[2]
MAX_BYTES = 40e6
FILES = {"config.json", "draft.json", "model.safetensors", "README.md", "report.json"}
SHIPPED = pytest.mark.parametrize("directory", shipped_drafts().values(), ids=lambda directory: directory.name)


@pytest.fixture
def shipped(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny draft in the place of the default one."""
    monkeypatch.setattr(module, "CHECKPOINTS", tmp_path / "checkpoints")
    directory = tmp_path / "checkpoints" / DEFAULT_DRAFT_MODEL
    shutil.copytree(trained.out, directory, ignore=shutil.ignore_patterns("work"))
    return directory


@pytest.mark.usefixtures("shipped")
def test_it_is_known_by_its_name_and_is_the_default() -> None:
    assert is_trained_draft(DEFAULT_DRAFT_MODEL)
    assert not is_trained_draft("another")
    drafter = make_drafter(DraftSettings(drafter="model", device="cpu"))
    assert isinstance(drafter, CausalLMDrafter)
    assert drafter.info.model_id == DEFAULT_DRAFT_MODEL


def test_its_name_goes_before_a_directory_of_that_name(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT_DRAFT_MODEL).mkdir()
    assert is_trained_draft(DEFAULT_DRAFT_MODEL)
    assert is_trained_draft(str(shipped))


@pytest.mark.usefixtures("shipped")
def test_another_target_is_refused_with_what_to_do(tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", seed=5)
    settings = DraftSettings(drafter="model", device="cpu", target_model=str(other))
    with pytest.raises(ModelError, match=r"the embeddings of .* are not those of") as refused:
        make_drafter(settings)
    assert DEFAULT_DRAFT_MODEL in str(refused.value)
    assert f"name a draft of {other} with --model" in str(refused.value)
    smaller = tmp_path / "smaller"
    tiny_llama(vocab_size=300).save_pretrained(smaller)
    tiny_tokenizer_files(300).save(smaller)
    with pytest.raises(ModelError, match=r"another one .*name a draft of .* with --model"):
        make_drafter(settings.model_copy(update={"target_model": str(smaller)}))


@SHIPPED
def test_what_is_shipped_is_whole_and_small(directory: Path) -> None:
    assert {path.name for path in directory.iterdir()} == FILES
    assert sum(path.stat().st_size for path in directory.iterdir()) <= MAX_BYTES
    origin = json.loads((directory / "draft.json").read_text())
    assert origin["target"] in CATALOG
    assert directory.name == f"{origin['target']}-draft"


@SHIPPED
def test_what_is_shipped_can_be_trained_again(directory: Path) -> None:
    training = json.loads((directory / "report.json").read_text())["training"]
    done = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/.installed", "VENV=.venv", "draft-model"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    command, *flags = done.stdout.split("train-draft", 1)
    assert command.endswith("specdec ")
    settings = load_settings(TrainingSettings, flags[0].split(), program="make draft-model")
    assert settings.target == DEFAULT_MODEL == training["target"]
    assert settings.recorded() == training["settings"]


@SHIPPED
def test_what_is_shipped_loads_with_its_target(directory: Path) -> None:
    loaded = load_trained_draft(directory.name, device="cpu")
    assert loaded.info.model_id == directory.name
    assert loaded.info.max_context_length >= 2048
