import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.draft_sizes import compare, size_table
from draft_service.training.report import HELD_OUT, OVERALL
from tests.benchmarks.running import check_usage
from tests.draft_service.training.running import save_untrained_draft
from tests.specdec.cli.conftest import ROOT
from tests.specdec.models.saved_models import save_tiny_model
from tests.tiny_models import tiny_llama

SECONDS = {("small", 1): 0.01, ("large", 1): 0.05, ("target", 1): 0.1, ("target", 3): 0.12, ("target", 5): 0.15}


def report(lengths: dict[int, float], category: str = OVERALL, temperature: float = 0.0) -> dict[str, Any]:
    """What `compare` reads of one; another temperature and held-out text are there too."""
    rows = [(temperature, category, lengths), (0.8, category, dict.fromkeys(lengths, 9.0))]
    if category != HELD_OUT:
        rows.append((temperature, HELD_OUT, dict.fromkeys(lengths, 8.0)))
    return {
        "size_bytes": 12_345_678,
        "training": {"layers": [0, 29], "draft_vocab_size": 8192, "tokens_visited": 1000},
        "acceptance": [
            {"temperature": at, "category": name, "num_draft_tokens": count, "mean_acceptance_length": length}
            for at, name, of_count in rows
            for count, length in of_count.items()
        ],
    }


def test_the_best_is_that_with_the_most_tokens_a_second_not_the_most_accepted() -> None:
    reports = {"large": report({2: 2.4, 4: 3.0}), "small": report({2: 2.0, 4: 2.2})}
    small, large = compare(reports, SECONDS, 0.0)
    assert (small.name, large.name) == ("small", "large")
    assert small.predicted_tokens_per_second == pytest.approx({"2": 2.0 / 0.14, "4": 2.2 / 0.19})
    assert large.predicted_tokens_per_second == pytest.approx({"2": 2.4 / 0.22, "4": 3.0 / 0.35})
    assert (small.best, large.best) == ("2", "2")
    assert small.step_ratio == pytest.approx(0.1)
    assert small.measured_with == OVERALL


def test_held_out_text_stands_in_for_prompts_and_the_temperature_is_chosen() -> None:
    (size,) = compare({"small": report({2: 1.5}, HELD_OUT)}, SECONDS, 0.0)
    assert (size.measured_with, size.mean_acceptance_length) == (HELD_OUT, {"2": 1.5})
    (size,) = compare({"small": report({2: 1.5})}, SECONDS, 0.8)
    assert size.mean_acceptance_length == {"2": 9.0}


def test_the_table_can_be_put_into_the_docs() -> None:
    table = size_table(compare({"small": report({2: 2.0})}, SECONDS, 0.0), plain_tokens_per_second=10.0)
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["small", "0, 29", "8,192", "12.3", "0.100", OVERALL, "2", "2.00", "14.3", "1.43"]


def test_the_command(tmp_path: Path) -> None:
    target = save_tiny_model(tmp_path / "target")
    draft = save_untrained_draft(target, tiny_llama())
    command = [sys.executable, "-m", "benchmarks.draft_sizes", str(draft), f"--model={target}", "--device=cpu"]
    refused = check_usage("draft_sizes", *command[3:])
    assert refused.status == 1
    assert "name the directory of a finished run" in refused.err
    (draft / "report.json").write_text(json.dumps(report({2: 2.0, 4: 3.0})))
    out = tmp_path / "new" / "sizes.json"
    ended = subprocess.run(
        [*command, f"--json-out={out}"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (size,) = json.loads(out.read_text())["drafts"]
    # It has both layers of the target and a shorter head.
    assert 0.2 < size["step_ratio"] < 2
    assert size["name"] == str(draft)
    assert str(draft) in ended.stdout
