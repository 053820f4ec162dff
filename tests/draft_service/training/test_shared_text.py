"""Several students learn from the text of one run: nothing is written twice, and each run knows what it stands on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from draft_service.training.run import train_draft
from draft_service.training.samples import SampleStore
from draft_service.training.shared_text import SharedText
from draft_service.training.workplace import exclusive
from draft_service.training.writer import Writer
from specdec.models.errors import ModelError
from specdec.models.hashes import file_sha256
from tests.draft_service.conftest import Trained
from tests.draft_service.training.running import save_target, tiny_settings


def report_of(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def run_facts(out: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((out / "work" / "run.json").read_text())
    return facts


def hashes(directory: Path) -> dict[str, str]:
    return {str(path): file_sha256(path) for path in directory.rglob("*") if path.is_file()}


def test_another_student_learns_from_the_same_text(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashes(trained.out)
    monkeypatch.delattr(Writer, "samples")
    settings = tiny_settings(
        trained.target,
        tmp_path / "out",
        data=trained.out,
        tokens=10**13,  # Nothing is written, so no room is needed.
        visits=20_000,
        draft_vocab_size=64,
        seed=7,
    )
    # The run that wrote it may be going on.
    with exclusive(trained.out / "work"):
        train_draft(settings)
    assert hashes(trained.out) == before
    assert not (tmp_path / "out" / "work" / "data").exists()
    report, shared = report_of(settings.out), trained.report
    assert report["training"]["tokens_written"] == shared["training"]["tokens_written"]
    assert report["training"]["draft_vocab_size"] == 64
    assert (report["training"]["seed"], report["training"]["text_seed"]) == (7, trained.settings.seed)
    store = SampleStore(trained.out / "work" / "data")
    store.load()
    assert report["training"]["text_hours"] == pytest.approx(store.seconds / 3600, abs=1e-4)
    assert shared["training"]["text_hours"] is None
    history = report["training"]["history"]
    assert history[-1]["loss"] < history[0]["loss"]
    card = (settings.out / "README.md").read_text()
    assert f"that of another run (seed {trained.settings.seed})" in card
    # A later process goes on where it was.
    train_draft(settings)
    assert report_of(settings.out)["training"] == report["training"]


def test_no_more_is_taken_than_asked_for_and_none_of_a_students_own(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    first = tiny_settings(target, tmp_path / "first", tokens=4_000, visits=9_000, own_samples=0.3, upper_layers=0)
    train_draft(first)
    facts = {name: run_facts(first.out)[name] for name in ("tokenizer_hash", "embeddings_sha256")}
    whole = SharedText.load(first.out, facts, 10**9)
    training = report_of(first.out)["training"]
    assert training["own_tokens"] > 0
    assert sum(len(sample.law_positions) for sample in whole.samples) == training["tokens_written"]
    store = SampleStore(first.out / "work" / "data")
    num_all = len(store.load())
    assert len(whole.samples) < num_all
    assert whole.seconds == store.seconds
    part = SharedText.load(first.out, facts, 7_000)
    counts = [len(sample.law_positions) for sample in part.samples]
    assert sum(counts) - counts[-1] < 7_000 <= sum(counts)
    assert part.facts["text_tokens"] == sum(counts)
    assert [sample.index for sample in part.samples] == [sample.index for sample in whole.samples[: len(counts)]]


@pytest.mark.parametrize("is_shared_first", [True, False])
def test_a_directory_is_not_taken_from_shared_text_to_own_or_back(
    trained: Trained, tmp_path: Path, is_shared_first: bool
) -> None:
    own = tiny_settings(trained.target, tmp_path / "out", visits=500)
    shared = own.model_copy(update={"data": trained.out})
    first, second = (shared, own) if is_shared_first else (own, shared)
    train_draft(first)
    with pytest.raises(ModelError, match=r"was begun with text_seed .* give another --out"):
        train_draft(second)


def test_another_amount_of_text_is_another_run(trained: Trained, tmp_path: Path) -> None:
    settings = tiny_settings(trained.target, tmp_path / "out", data=trained.out, tokens=7_000, visits=500)
    train_draft(settings)
    with pytest.raises(ModelError, match="was begun with text_tokens"):
        train_draft(settings.model_copy(update={"tokens": 7_500}))


def test_text_without_the_features_that_are_wanted_is_refused(
    trained: Trained, trained_on_tokens: Trained, tmp_path: Path
) -> None:
    settings = tiny_settings(trained_on_tokens.target, tmp_path / "out", data=trained_on_tokens.out)
    with pytest.raises(ModelError, match=re.escape("was written with hidden states [], and the draft is to read [1]")):
        train_draft(settings)
    # Who reads tokens alone takes any.
    settings = tiny_settings(trained.target, tmp_path / "out", data=trained.out, upper_layers=0, visits=500)
    train_draft(settings)
    assert json.loads((settings.out / "draft.json").read_text())["features"] == []


def test_text_of_another_target_is_refused(trained: Trained, tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", seed=5)
    with pytest.raises(ModelError, match=r"was written by another target .*; leave --data out"):
        train_draft(tiny_settings(other, tmp_path / "out", data=trained.out))
    assert not (tmp_path / "out" / "work" / "run.json").exists()


def test_a_run_without_text_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be used"):
        train_draft(tiny_settings(trained.target, tmp_path / "out", data=tmp_path / "absent"))
    begun = tmp_path / "begun" / "work"
    begun.mkdir(parents=True)
    (begun / "run.json").write_text((trained.out / "work" / "run.json").read_text())
    with pytest.raises(ModelError, match="has no text of its own to share"):
        train_draft(tiny_settings(trained.target, tmp_path / "out", data=tmp_path / "begun"))
    (begun / "run.json").write_text("{}")
    with pytest.raises(ModelError, match=r"run\.json is damaged"):
        train_draft(tiny_settings(trained.target, tmp_path / "out", data=tmp_path / "begun"))


def test_a_run_that_was_begun_by_an_older_version_is_refused(trained: Trained, tmp_path: Path) -> None:
    """It wrote other texts, without features, so neither can it go on nor can another take them."""
    settings = tiny_settings(trained.target, tmp_path / "out", tokens=1_000, visits=500)
    train_draft(settings)
    note = settings.out / "work" / "run.json"
    facts = json.loads(note.read_text())
    note.write_text(json.dumps({name: value for name, value in facts.items() if "features" not in name}))
    with pytest.raises(ModelError, match=r"was begun with features None .* give another --out"):
        train_draft(settings)
    with pytest.raises(ModelError, match=r"run\.json is damaged; give another run with --data"):
        train_draft(tiny_settings(trained.target, tmp_path / "other", data=settings.out))
