import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.running import check_usage, run_benchmark
from tests.specdec.models.saved_models import save_tiny_model

PROFILE = {
    "name": "constant",
    "target": {"fixed_seconds": 0.02},
    "draft": {"fixed_seconds": 0.004},
    "draft_on_target_device": {"fixed_seconds": 0.003},
    "acceptance": 0.8,
}
WINDOWS = ("--repeats", "1", "--duration-seconds", "2", "--warm-up-seconds", "0.2")
TIMEOUT_SECONDS = 900
"""Services that import torch start one after the other, on a machine that may be busy."""

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


async def test_a_simulation_of_both_sides_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    ended = await run_benchmark(
        "load",
        tmp_path,
        *("--profile", "profile.json", "--time-scale", "1", "--vs", "colocated"),
        *("--clients", "1,3", "-k", "0,3,auto", *WINDOWS),
        *("--json-out", "new/result.json", "--plot", "new/load.png", "--max-new-tokens", "24"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.status == 0, ended.err
    *table, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert json.loads((tmp_path / "new" / "result.json").read_text()) == result
    assert (tmp_path / "new" / "load.png").read_bytes().startswith(b"\x89PNG")
    assert result["simulated"]["profile"]["name"] == "constant"
    assert result["simulated"]["time_scale"] == 1
    assert any("SIMULATED: Load, split" in line for line in table)
    assert any("x slower than life" in line for line in table)
    cells = {(cell["side"], cell["num_clients"], cell["num_draft_tokens"]): cell for cell in result["cells"]}
    assert set(cells) == {(side, n, k) for side in ("split", "colocated") for n in (1, 3) for k in ("0", "3", "auto")}
    places = {"side", "num_clients", "num_draft_tokens", "repeats"}
    for (side, _, k), cell in cells.items():
        assert all(name.startswith("simulated_") for name in cell if name not in places)
        assert cell["simulated_tokens_per_second"] > 0
        # Never less than what is simulated; how much more depends on who else uses the machine.
        assert cell["simulated_target_pass_seconds_mean"] >= 0.02
        if k == "3":
            assert cell["simulated_draft_pass_seconds_mean"] >= (0.004 if side == "split" else 0.003)
    drafting = [cell for cell in cells.values() if cell["num_draft_tokens"] == "3"]
    num_rounds = sum(cell["simulated_num_rounds"] for cell in drafting)
    lengths = sum(cell["simulated_num_rounds"] * cell["simulated_mean_acceptance_length"] for cell in drafting)
    assert lengths / num_rounds == pytest.approx(1 + 0.8 + 0.8**2 + 0.8**3, abs=0.8)
    assert {row["num_draft_tokens"] for row in result["split_against_colocated"]} == {"0", "3", "auto"}
    for row in result["split_against_colocated"]:
        if row["num_draft_tokens"] == "3":
            assert row["simulated_formula_by_round"] > 1
            assert row["simulated_share_of_formula_by_round"] > 0
    assert {choice["side"] for choice in result["auto"]} == {"split", "colocated"}
    assert result["outputs"]["num_compared"] > 0
    assert result["outputs"]["num_differing"] == 0, "the text depends on the target alone"


async def test_a_real_pair_is_measured_in_place(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        "load",
        tmp_path,
        *("--model", str(model), "--drafter", "ngram", "--device", "cpu", "--clients", "2", "-k", "auto", *WINDOWS),
        *("--max-new-tokens", "16", "--limit", "3"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.status == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    (cell,) = result["cells"]
    assert result["simulated"] is None
    assert cell["tokens_per_second"] > 0
    assert 0 < cell["target_busy_share"] <= 1
    assert cell["target_sequences_max"] <= 2
    assert cell["target_late_share"] is None
    assert cell["draft_busy_share"] is None, "prompt lookup runs no model"
    if len(os.sched_getaffinity(0)) > 1:
        assert len(result["cpus"]["target"]) == 1
        assert not set(result["cpus"]["target"]) & set(result["cpus"]["orchestrator_and_clients"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--prompts", "absent.jsonl"], "absent.jsonl"),
        (["--profile", "absent.json"], "absent.json"),
        (["--clients", "0,1"], "--clients"),
        (["--clients", "1,1"], "--clients"),
        (["-k", "0,some"], "-k"),
        (["--time-scale", "2"], "--profile"),
        (["--acceptance", "0.5"], "--profile"),
        (["--profile", "profile.json", "--drafter", "ngram"], "stand-in"),
        (["--profile", "without.json"], "--acceptance"),
        (["--vs", "colocated", "--no-pin"], "--pin"),
        (["--drafter", "none", "-k", "0,4"], "-k 0"),
        (["--drafter", "ngram", "--draft-model", "d"], "--draft-model"),
    ],
)
def test_bad_usage_is_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    (tmp_path / "without.json").write_text(json.dumps({**PROFILE, "acceptance": None}))
    ended = check_usage("load", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert complaint in ended.err.replace("\n", " ")
