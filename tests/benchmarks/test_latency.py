import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.running import check_usage, run_benchmark
from tests.specdec.models.saved_models import save_tiny_model

TIMEOUT_SECONDS = 900
"""Services that import torch start one after the other, on a machine that may be busy."""

RTT_SECONDS = 0.01
ROUND_WITHIN, LENGTH_WITHIN = 0.1, 0.07
"""Of what the planner predicts: the time of a round, and the tokens that it brings."""


@pytest.mark.timeout(TIMEOUT_SECONDS)
async def test_a_simulated_grid_from_end_to_end(tmp_path: Path) -> None:
    ended = await run_benchmark(
        "latency",
        tmp_path,
        *("--simulated", "--rtt-ms", "10", "--acceptance", "0.8", "--time-scale", "4", "--max-new-tokens", "201"),
        *("--json-out", "new/result.json", "--plot", "new/latency.png"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.status == 0, ended.err
    *table, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert json.loads((tmp_path / "new" / "result.json").read_text()) == result
    assert (tmp_path / "new" / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert any("SIMULATED: latency" in line for line in table)
    assert any("x slower than life" in line for line in table)
    assert result["real_cells"] == []
    cells = {cell["pipeline"]: cell for cell in result["cells"]}
    assert set(cells) == {"off", "ahead", "candidates"}
    places = {"pipeline", "rtt_seconds", "acceptance", "num_draft_tokens", "required_tokens_per_second", "is_met"}
    for pipeline, cell in cells.items():
        assert all(name.startswith("simulated_") for name in cell if name not in places)
        assert cell["rtt_seconds"] == RTT_SECONDS
        assert cell["simulated_target_compute_seconds"] >= 0.03
        # The planner is told what a pass takes, the acceptance and the hits, and knows nothing of what is around them.
        planned = cell["simulated_predicted_round_seconds"]
        length = planned * cell["simulated_predicted_tokens_per_second"]
        assert cell["simulated_round_seconds"] == pytest.approx(planned, rel=ROUND_WITHIN)
        assert cell["simulated_mean_acceptance_length"] == pytest.approx(length, rel=LENGTH_WITHIN)
        assert cell["simulated_measured_over_predicted"] == pytest.approx(
            cell["simulated_measured_tokens_per_second"] / cell["simulated_predicted_tokens_per_second"]
        )
        assert cell["simulated_measured_over_predicted"] == pytest.approx(1, abs=ROUND_WITHIN + LENGTH_WITHIN)
        assert (cell["simulated_hit_rate"] is None) == (pipeline == "off")
    plain = cells["off"]
    # Both ways of the relay, whatever else there is; and nothing is quicker than what it is made of.
    assert plain["simulated_network_seconds"] >= RTT_SECONDS
    assert plain["simulated_round_seconds"] >= RTT_SECONDS + 0.03 + 0.003 * (plain["num_draft_tokens"] - 1)


@pytest.mark.timeout(TIMEOUT_SECONDS)
async def test_a_real_pair_is_measured_by_its_own_times(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        "latency",
        tmp_path,
        *("--model", str(model), "--drafter", "model", "--draft-model", str(model), "--pipelines", "off,ahead"),
        *("--rtt-ms", "0.5,10", "-k", "3", "--max-new-tokens", "24", "--time-scale", "1"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.status == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    places = [(pipeline, rtt) for rtt in (0.0005, 0.01) for pipeline in ("off", "ahead")]
    for cells in (result["real_cells"], result["cells"]):
        assert [(cell["pipeline"], cell["rtt_seconds"]) for cell in cells] == places
    for cell in result["real_cells"]:
        assert cell["acceptance"] is None
        assert cell["acceptance_rate"] > 0.9, "it drafts for itself"
        assert cell["round_seconds"] >= cell["rtt_seconds"]
        assert cell["required_tokens_per_second"] is None
    for cell in result["cells"]:
        assert cell["simulated_round_seconds"] >= 0.03
        assert (cell["required_tokens_per_second"] is None) == (cell["rtt_seconds"] != 0.0005)
    required = [cell["is_met"] for cell in result["cells"] if cell["rtt_seconds"] == 0.0005]
    assert result["all_met"] == all(required)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pipelines", "off,sideways"], "--pipelines"),
        (["--pipelines", "off,off"], "--pipelines"),
        (["--rtt-ms", "1,x"], "--rtt-ms"),
        (["--rtt-ms", "-1"], "--rtt-ms"),
        (["--acceptance", "1.5"], "--acceptance"),
        (["-k", "some"], "-k"),
        (["-k", "17"], "-k"),
        (["--simulated", "--drafter", "ngram"], "--simulated"),
    ],
)
def test_bad_usage_is_status_2(arguments: list[str], complaint: str) -> None:
    ended = check_usage("latency", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert complaint in ended.err.replace("\n", " ")
