"""The repository is what it says it is: stubs, protos, import contracts, version and files."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from specdec.settings import DEFAULT_DRAFT_PORT, DEFAULT_ORCHESTRATOR_PORT, DEFAULT_TARGET_PORT

ROOT = Path(__file__).parents[1]
STUBS = ROOT / "specdec" / "v1"
CHECKPOINTS = ROOT / "draft_service" / "checkpoints"
DASHBOARDS = ROOT / "k8s" / "components" / "monitoring"
MAX_LINES = 350


def make(target: str, **variables: str | Path) -> subprocess.CompletedProcess[str]:
    """A target of the Makefile, with the tools of this environment and nothing installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    assignments = [f"{name}={value}" for name, value in {"VENV": sys.prefix, **variables}.items()]
    return subprocess.run(
        ["make", f"--old-file={sys.prefix}/.installed", target, *assignments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def tracked_files() -> list[Path]:
    """Files under version control that are still there."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_stubs_are_what_the_protos_give(tmp_path: Path) -> None:
    done = make("proto", OUT=tmp_path)
    assert done.returncode == 0, done.stderr
    fresh = {path.name: path.read_text() for path in (tmp_path / "specdec" / "v1").iterdir()}
    committed = {path.name: path.read_text() for path in STUBS.glob("*_pb2*.py*")}
    assert len(fresh) == 4 * len(list((ROOT / "protos" / "specdec" / "v1").glob("*.proto")))
    assert committed.keys() == fresh.keys()
    changed = [name for name in fresh if fresh[name] != committed[name]]
    assert changed == [], "run `make proto` and commit what it writes"


def test_protos_pass_lint(tmp_path: Path) -> None:
    done = make("lint-protos", BUILD=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("uint32 protocol_version = 1;", "uint32 protocolVersion = 1;", "snake_case"),
        ("// Facts a peer checks", "\n\nmessage Bare {}\n\n// Facts a peer checks", "non-empty comment"),
    ],
)
def test_lint_notices_a_slip_in_a_proto(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    proto = tmp_path / "protos" / "specdec" / "v1" / "model.proto"
    text = proto.read_text()
    assert before in text
    proto.write_text(text.replace(before, after))
    done = make("lint-protos", PROTOS=tmp_path / "protos", BUILD=tmp_path / "build")
    assert done.returncode != 0
    assert complaint in done.stdout + done.stderr


def test_import_contracts_hold() -> None:
    done = make("lint-imports")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout)


@pytest.mark.parametrize("failing", [None, "ruff", "lint-imports", "buf", "hadolint", "mypy", "pytest"])
def test_all_checks_are_made_and_the_summary_of_the_tests_comes_last(tmp_path: Path, failing: str | None) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    # Types are checked beside all else, and take longer than lint and less than the tests.
    before = {"pytest": f"while [ ! -e {tmp_path}/typed ]; do sleep 0.05; done"}
    after = {"mypy": f"touch {tmp_path}/typed", "hadolint": f"touch {tmp_path}/linted"}
    if failing in (None, "mypy", "pytest"):
        before["mypy"] = f"while [ ! -e {tmp_path}/linted ]; do sleep 0.05; done"
    for name in ("ruff", "lint-imports", "buf", "hadolint", "mypy", "pytest", "python"):
        lines = ("#!/bin/sh", before.get(name, ""), f"echo {name} was run", after.get(name, ""))
        (tools / name).write_text("\n".join((*lines, f"exit {int(name == failing)}\n")))
        (tools / name).chmod(0o755)
    (tmp_path / ".installed").touch()
    done = make("test", VENV=tmp_path, BUILD=tmp_path / "build")
    assert (done.returncode == 0) == (failing is None), done.stderr
    said = done.stdout.splitlines()
    if failing in (None, "mypy", "pytest"):
        assert {f"{name} was run" for name in ("ruff", "lint-imports", "buf", "hadolint", "mypy")} <= set(said)
        assert said[-1] == "pytest was run"
    else:
        assert "pytest was run" not in said


def test_installed_version_is_that_of_pyproject() -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert importlib.metadata.version("specdec") == declared[1]


@pytest.mark.parametrize(
    ("image", "module", "port"),
    [
        ("draft", "draft_service", DEFAULT_DRAFT_PORT),
        ("target", "target_service", DEFAULT_TARGET_PORT),
        ("orchestrator", "orchestrator", DEFAULT_ORCHESTRATOR_PORT),
    ],
)
def test_an_image_holds_the_code_and_starts_its_service(image: str, module: str, port: int) -> None:
    stages = re.split(r"^FROM .+ AS (.+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stage = dict(zip(stages[1::2], stages[2::2], strict=True))
    assert f"EXPOSE {port}\n" in stage[image]
    assert f'ENTRYPOINT ["python", "-m", "{module}"]' in stage[image]
    assert (ROOT / module / "__main__.py").is_file()
    assert {f"COPY {name} {name}" for name in (module, "specdec")} <= set(stage["wheel"].splitlines())


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_distribution_holds_the_shipped_drafts(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    for name in ("specdec", "draft_service", "target_service", "orchestrator"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "checkpoints"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    draft = source / "draft_service" / "checkpoints" / "some-draft"
    draft.mkdir(parents=True)
    for name in ("config.json", "draft.json", "model.safetensors", "report.json", "README.md"):
        (draft / name).write_text("{}")
    program = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, timeout=120, check=True)
    (archive,) = (path for path in tmp_path.iterdir() if path.is_file())
    if kind == "wheel":
        names = zipfile.ZipFile(archive).namelist()
    else:
        with tarfile.open(archive) as tar:
            names = [name.partition("/")[2] for name in tar.getnames()]
    assert "specdec/waterfall/page.html" in names
    held = {name for name in names if "checkpoints/" in name and not name.endswith("some-draft")}
    assert held == {f"draft_service/checkpoints/some-draft/{path.name}" for path in draft.iterdir()}


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    # Put together here, so that this file is not one of them. Homes of nobody are fine.
    roots = "|".join(("work", "root", "Users", r"home/(?!(?:specdec|someone)\b)\w+", r"tmp/\w+"))
    machine_path = re.compile(rf"(?<![\w.$)}}/-])/({roots})\b")
    found = []
    for path in tracked_files():
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), start=1):
            if machine_path.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


def is_written_by_a_program(path: Path) -> bool:
    """Stubs, trained drafts, and dashboards, which Grafana reads as one JSON object each."""
    is_dashboard = path.parent == DASHBOARDS and path.suffix == ".json"
    return path.parent == STUBS or CHECKPOINTS in path.parents or is_dashboard


def test_no_file_is_too_long_to_read_at_once() -> None:
    long = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if not is_written_by_a_program(path) and path.read_bytes().count(b"\n") > MAX_LINES
    ]
    assert long == [], f"a file over {MAX_LINES} lines holds more than one thing"
