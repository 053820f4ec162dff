"""Whole runs: the student gets better, a kill costs nothing but time, and what is wrong is refused in one sentence."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from draft_service.training.__main__ import main
from draft_service.training.run import train_draft
from draft_service.training.workplace import exclusive
from specdec.models.errors import ModelError
from tests.draft_service.conftest import Trained
from tests.draft_service.training.running import DRAFT_VOCAB_SIZE, save_target, tiny_settings

MARGIN = 0.025
"""By which training must raise the overlap on held-out text over that of the untrained student."""
FILES = {"config.json", "draft.json", "model.safetensors", "README.md", "report.json"}


def test_training_beats_the_untrained_student(either: Trained) -> None:
    history = either.report["training"]["history"]
    assert history[0]["visited_tokens"] == 0
    assert history[-1]["visited_tokens"] >= either.settings.visits
    assert history[-1]["agreement"] > history[0]["agreement"]
    assert history[-1]["overlap"] > history[0]["overlap"] + MARGIN
    assert history[-1]["loss"] < history[0]["loss"] - 0.15
    assert history[-1]["mean_acceptance_length"] > history[0]["mean_acceptance_length"]


def test_what_a_run_leaves(trained: Trained) -> None:
    assert {path.name for path in trained.out.iterdir() if path.is_file()} == FILES
    assert not list(trained.out.rglob("*.partial"))
    training = trained.report["training"]
    assert training["draft_vocab_size"] == DRAFT_VOCAB_SIZE
    assert trained.settings.tokens <= training["tokens_written"] <= trained.settings.tokens + 8192 + 64
    assert 0.5 < training["vocab_mass"] < 1.0
    card = (trained.out / "README.md").read_text()
    assert f"seed {trained.settings.seed}" in card
    assert str(trained.target) in card


def test_a_finished_run_is_not_begun_again(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained.out, out)
    before = json.loads((out / "report.json").read_text())
    train_draft(tiny_settings(trained.target, out, visits=trained.settings.visits))
    after = json.loads((out / "report.json").read_text())
    assert after["training"] == before["training"]
    assert after["acceptance"] == before["acceptance"] or _only_speed_differs(after, before)


def _only_speed_differs(after: dict[str, list[dict[str, object]]], before: dict[str, list[dict[str, object]]]) -> bool:
    def without(report: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
        return [
            {name: value for name, value in entry.items() if name != "predicted_speedup"}
            for entry in report["acceptance"]
        ]

    return without(after) == without(before)


def test_a_killed_run_goes_on_to_the_same_result(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained.out / "work" / "data", out / "work" / "data")
    # The same text and vocabulary as in the whole run; only the training is killed.
    settings = trained.settings.model_copy(update={"out": out})
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings.model_dump(exclude_none=True).items()
        if value != ""
    ]
    program = (
        "import sys, draft_service.training.run as run; run._CHECKPOINT_SECONDS = 0.0; "
        "from draft_service.training.__main__ import main; sys.exit(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program, *flags], stderr=subprocess.PIPE, text=True) as process:
        checkpoint = out / "work" / "checkpoint.safetensors"
        deadline = time.monotonic() + 60
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    assert process.returncode == -signal.SIGKILL, "it was to be killed before it had ended"
    assert not (out / "draft.json").exists()
    train_draft(settings)
    whole, resumed = load_file(trained.out / "model.safetensors"), load_file(out / "model.safetensors")
    assert whole.keys() == resumed.keys()
    assert all((whole[name].float() - resumed[name].float()).abs().max() < 0.01 for name in whole)
    history = json.loads((out / "report.json").read_text())["training"]["history"]
    assert abs(history[-1]["agreement"] - trained.report["training"]["history"][-1]["agreement"]) < 0.01


def test_a_full_disk_is_said_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(save_target(tmp_path / "target"), tmp_path / "out", tokens=1_000, visits=2_000)
    sync = os.fsync
    room = 3

    def fill_up(descriptor: int) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fill_up)
        with pytest.raises(
            ModelError, match=r"no room is left on disk in .*; free some and run the same command again"
        ):
            train_draft(settings)
    assert not list(settings.out.rglob("*.partial"))
    shards = list((settings.out / "work" / "data").glob("shard-*"))
    assert shards
    train_draft(settings)
    assert {path.name for path in settings.out.iterdir() if path.is_file()} == FILES


def test_room_is_checked_before_the_work(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    with pytest.raises(ModelError, match=r"has room for .* are needed"):
        train_draft(tiny_settings(target, tmp_path / "out", tokens=10**13))
    assert not (tmp_path / "out" / "work" / "data").exists()


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"seed": 1}, "seed"),
        ({"draft_vocab_size": 99}, "draft_vocab_size"),
        ({"upper_layers": 0}, "layers"),
    ],
)
def test_other_settings_in_the_same_directory_are_refused(
    trained: Trained, changes: dict[str, object], fact: str
) -> None:
    with pytest.raises(ModelError, match=f"was begun with {fact} .* give another --out"):
        train_draft(tiny_settings(trained.target, trained.out, **changes))


def test_another_target_in_the_same_directory_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="was begun with embeddings_sha256"):
        train_draft(tiny_settings(save_target(tmp_path / "other", seed=5), trained.out))


def test_a_second_process_in_the_same_directory_is_refused(trained: Trained) -> None:
    with (
        exclusive(trained.out / "work"),
        pytest.raises(ModelError, match=r"another process is training in .*; wait for it, or give another --out"),
    ):
        train_draft(trained.settings)


def test_hours_end_a_run(tmp_path: Path) -> None:
    settings = tiny_settings(save_target(tmp_path / "target"), tmp_path / "out", hours=1e-6, visits=0, tokens=1_000)
    train_draft(settings)
    training = json.loads((settings.out / "report.json").read_text())["training"]
    # The untrained student: there was no time for more than the first text.
    assert training["tokens_visited"] == 0
    assert len(training["history"]) == 1


def test_prompts_are_answered(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"question_id": str(number), "category": f"c{number % 2}", "turns": [f"tell me {number}"]})
            + "\n"
            for number in range(4)
        )
    )
    target = save_target(tmp_path / "target")
    settings = tiny_settings(
        target, tmp_path / "out", tokens=1_000, visits=1_000, prompts=prompts, report_prompts=prompts
    )
    train_draft(settings)
    report = json.loads((settings.out / "report.json").read_text())
    assert report["training"]["num_prompts"] == 4
    assert {entry["category"] for entry in report["acceptance"]} == {"c0", "c1", "held-out", "overall"}


def test_the_draft_writes_from_half_of_the_run_on(tmp_path: Path) -> None:
    settings = tiny_settings(
        save_target(tmp_path / "target"),
        tmp_path / "out",
        tokens=2_000,
        visits=40_000,
        own_samples=0.2,
        upper_layers=0,
    )
    train_draft(settings)
    training = json.loads((settings.out / "report.json").read_text())["training"]
    assert 0.2 * training["tokens_written"] <= training["own_tokens"] <= 0.2 * training["tokens_written"] + 64 * 48
    # A later process counts them as it found them.
    train_draft(settings)
    assert json.loads((settings.out / "report.json").read_text())["training"] == training


def test_the_command(tmp_path: Path) -> None:
    """As a user calls it, with a target that is not there, then with one that is."""
    base = [sys.executable, "-m", "specdec.cli.main", "train-draft", f"--out={tmp_path / 'out'}", "--device=cpu"]
    ended = subprocess.run([*base, "--target=no/such model"], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert re.search(r"error   train-draft cannot train: 'no/such model' is neither", ended.stderr)
    target = save_target(tmp_path / "target")
    short = ["--tokens=500", "--visits=500", "--max-answer-tokens=16", "--num-sequences=64", "--draft-vocab-size=64"]
    ended = subprocess.run(
        [*base, f"--target={target}", *short], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} >= FILES


def test_a_draft_with_features_writes_no_text_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="leave --own-samples out, or give --upper-layers 0"):
        train_draft(tiny_settings(save_target(tmp_path / "target"), tmp_path / "out", own_samples=0.2))


def test_a_missing_directory_is_bad_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["draft_service.training"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err
