import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.deployment.device_turns import DeviceTurns
from benchmarks.deployment.meter import PassMeter, metered_making, metered_runner
from benchmarks.deployment.pass_log import PassLog, PassReader
from benchmarks.simulation.acceptance_dial import AcceptanceDial
from benchmarks.simulation.profile import DeviceModel
from specdec.models.loading import LoadedModel
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.tokenizer_files import TokenizerFiles
from specdec.v1 import model_pb2
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama


def run_passes(runner: ModelRunner) -> list[torch.Tensor]:
    """A prefill of two sequences, and a window on one of them."""
    first, second = SequenceCache(), SequenceCache()
    runner.forward([Work(first, [3, 4, 5], 1), Work(second, [6], 1)])
    return runner.forward([Work(first, [7, 8], 2)])


def by_class(meter: PassMeter) -> ModelRunner:
    return metered_runner(meter)(tiny_llama(), TINY_VOCAB_SIZE)


def by_making(meter: PassMeter) -> ModelRunner:
    loaded = LoadedModel(
        tiny_llama(),
        model_pb2.ModelInfo(vocab_size=TINY_VOCAB_SIZE),
        TokenizerFiles(b"", chat_template="", special_tokens={}),
    )
    return metered_making(meter, lambda draft: ModelRunner(draft.model, draft.info.vocab_size))(loaded)


@pytest.mark.parametrize("metered", [by_class, by_making])
def test_a_metered_runner_gives_the_same_logits_and_notes_its_passes(
    tmp_path: Path, metered: Callable[[PassMeter], ModelRunner]
) -> None:
    meter = PassMeter(PassLog(tmp_path / "log"), DeviceTurns())
    began = time.perf_counter()
    found = run_passes(metered(meter))
    ended = time.perf_counter()
    expected = run_passes(ModelRunner(tiny_llama(), TINY_VOCAB_SIZE))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    prefill, window = PassReader(tmp_path / "log").between(began, ended)
    assert (prefill.num_sequences, prefill.num_rows) == (2, 4)
    assert (window.num_sequences, window.num_rows) == (1, 2)
    assert began <= prefill.started < prefill.ended <= window.started < window.ended <= ended
    for entry in (prefill, window):
        assert entry.planned_seconds == 0
        assert 0 < entry.model_cpu_seconds < entry.forward_cpu_seconds
        assert 0 < entry.computing_seconds <= entry.seconds


def test_a_simulated_pass_lasts_as_long_as_its_shape_says(tmp_path: Path) -> None:
    # 10 ms a pass and 1 ms a token read, three times slower than life.
    device = DeviceModel(fixed_seconds=0.01, kv_bytes_per_token=1, bytes_per_second=1000)
    meter = PassMeter(PassLog(tmp_path / "log"), DeviceTurns(), device=device, time_scale=3)
    run_passes(metered_runner(meter)(tiny_llama(), TINY_VOCAB_SIZE))
    prefill, window = PassReader(tmp_path / "log").between(0, time.perf_counter())
    assert prefill.planned_seconds == pytest.approx(3 * 0.014)
    assert window.planned_seconds == pytest.approx(3 * 0.015)
    for entry in (prefill, window):
        assert entry.seconds >= max(entry.planned_seconds, entry.computing_seconds) * 0.999


def test_the_dial_turns_what_the_engine_gets(tmp_path: Path) -> None:
    meter = PassMeter(PassLog(tmp_path / "log"), DeviceTurns(), dial=AcceptanceDial(0.0))
    (found,) = run_passes(metered_runner(meter)(tiny_llama(), TINY_VOCAB_SIZE))
    (expected,) = run_passes(ModelRunner(tiny_llama(), TINY_VOCAB_SIZE))
    for row, untouched in zip(found, expected, strict=True):
        assert int(row.argmax()) == int(untouched.topk(2).indices[1])


def test_nodes_of_a_tree_that_are_of_one_position_have_the_same_luck(tmp_path: Path) -> None:
    dial = AcceptanceDial(0.5)
    right = next(place for place in range(4, 40) if dial.is_right(place) and not dial.is_right(place + 1))
    runs = []
    for used in (dial, None):
        runner = metered_runner(PassMeter(PassLog(tmp_path / "log"), DeviceTurns(), dial=used))(
            tiny_llama(), TINY_VOCAB_SIZE
        )
        cache = SequenceCache()
        runner.forward([Work(cache, list(range(3, 3 + right - 1)), 0)])
        # Both siblings are at position right - 1, so the token behind each is for `right`; the next one is not.
        runs.append(runner.forward([Work(cache, [7, 8, 9], 3, [-1, -1, 1])])[0])
    turned, untouched = runs
    assert torch.equal(turned[:2], untouched[:2])
    assert int(turned[2].argmax()) == int(untouched[2].topk(2).indices[1])


def test_a_pass_that_fails_lets_go_of_the_device(tmp_path: Path) -> None:
    turns = DeviceTurns()
    meter = PassMeter(PassLog(tmp_path / "log"), turns)

    def fail(batch: Sequence[Work]) -> list[torch.Tensor]:
        raise MemoryError

    with pytest.raises(MemoryError):
        meter.run([Work(SequenceCache(), [1], 1)], fail)
    with turns:
        assert PassReader(tmp_path / "log").between(0, time.perf_counter()) == []
