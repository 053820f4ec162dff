import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specdec.cli.models import app
from specdec.models.errors import ModelError
from tests.specdec.models.saved_models import save_tiny_model, write_tiny_gguf
from tests.tiny_models import tiny_llama

MODEL = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of entries in an empty cache; no hub to be reached."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("specdec.models.hub.cached_hub_directory", lambda repo_id: None)
    return tmp_path / "cache" / "models"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def put_into_cache(models: Path) -> Path:
    entry = models / f"{MODEL}-b179c9523d0e6a0f-v1"
    entry.mkdir(parents=True)
    (entry / "model.safetensors").write_bytes(bytes(3_000_000))
    return entry


def test_list_says_what_is_to_be_fetched() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{MODEL}  (not fetched: 93 MB to fetch, 540 MB then)  SmolLM2-135M-Instruct")


def test_list_says_what_is_in_the_cache(models: Path) -> None:
    put_into_cache(models)
    assert f"{MODEL}  (in the cache: 3 MB)" in run("list").stdout


def test_where_an_embedded_model_is(models: Path) -> None:
    entry = put_into_cache(models)
    result = run("where", MODEL)
    assert result.exit_code == 0
    assert result.stdout == f"{entry}\n"


@pytest.mark.parametrize("name", [MODEL, "owner/name"])
def test_where_a_model_is_not(name: str) -> None:
    result = run("where", name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"specdec: {name} is not in the cache; fetch it with `specdec models pull {name}`\n"


def test_where_a_directory_is(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "own")
    assert run("where", str(tmp_path / "own")).stdout == f"{tmp_path / 'own'}\n"


def test_pull_prints_the_directory(tmp_path: Path, models: Path) -> None:
    gguf = str(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama()))
    assert run("where", gguf).exit_code == 1
    result = run("pull", gguf)
    assert result.exit_code == 0
    directory = Path(result.stdout.strip())
    assert directory.parent == models
    assert (directory / "model.safetensors").exists()
    assert run("where", gguf).stdout == result.stdout


def test_pull_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise ModelError("no network; connect")

    monkeypatch.setattr("specdec.cli.models.provide_model", fail)
    result = run("pull", MODEL)
    assert result.exit_code == 1
    assert result.stderr == "specdec: no network; connect\n"


def test_pull_without_the_libraries_for_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("specdec.cli.models.provide_model", fail)
    result = run("pull", MODEL)
    assert result.exit_code == 1
    assert result.stderr == "specdec: torch is not installed; run `pip install 'specdec[models]'`\n"


@pytest.mark.parametrize("command", ["where", "pull"])
def test_name_that_can_mean_nothing(command: str) -> None:
    result = run(command, "../nothing")
    assert result.exit_code == 1
    assert result.stderr.startswith("specdec: '../nothing' is neither a directory nor a hub id;")


def test_neither_torch_nor_transformers_before_they_are_needed() -> None:
    code = (
        "import sys\n"
        "from specdec.cli.models import app\n"
        "app(['list'], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
