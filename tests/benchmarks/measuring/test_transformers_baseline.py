import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from benchmarks.measuring.transformers_baseline import Assistance, BaselineError, TransformersBaseline
from tests.draft_service.training.running import save_untrained_draft
from tests.specdec.models.saved_models import save_tiny_model
from tests.tiny_models import tiny_llama, tiny_tokenizer_files

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["model", "trained draft"])
async def baseline(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[TransformersBaseline]:
    directory = tmp_path_factory.mktemp("models")
    model = save_tiny_model(directory / "model")
    if request.param == "model":
        draft = save_tiny_model(directory / "draft", tiny_llama(seed=1, layers=1))
    else:
        draft = save_untrained_draft(model, tiny_llama())
    async with TransformersBaseline(model=str(model), draft_model=str(draft), num_threads=1, device="cpu") as baseline:
        yield baseline


async def test_a_prompt_is_rendered_by_the_chat_template(baseline: TransformersBaseline) -> None:
    token_ids = await baseline.tokenize("hello there")
    assert tiny_tokenizer_files().tokenizer().decode(token_ids) == "user: hello there\nassistant:"


@pytest.mark.parametrize("assistance", ["model", "lookup"])
async def test_assisted_greedy_generation_is_plain_generation(
    baseline: TransformersBaseline, assistance: Assistance
) -> None:
    plain = await baseline.generate(PROMPT, max_new_tokens=24, temperature=0, seed=0)
    assisted = await baseline.generate(
        PROMPT, max_new_tokens=24, temperature=0, seed=0, assistance=assistance, num_assistant_tokens=3
    )
    assert plain.token_ids == assisted.token_ids
    assert plain.num_first_tokens == 1
    assert 1 <= assisted.num_first_tokens <= 4
    assert plain.num_decoded_tokens == len(plain.token_ids) - 1
    assert plain.first_seconds > 0
    assert plain.decode_seconds > 0


async def test_sampling_follows_temperature_and_seed(baseline: TransformersBaseline) -> None:
    one, same, other = [
        (await baseline.generate(PROMPT, max_new_tokens=16, temperature=1.0, seed=seed)).token_ids for seed in (1, 1, 2)
    ]
    assert one == same != other


async def test_the_length_is_bounded(baseline: TransformersBaseline) -> None:
    measurement = await baseline.generate(PROMPT, max_new_tokens=1, temperature=0, seed=0)
    assert len(measurement.token_ids) == measurement.num_first_tokens == 1
    assert measurement.decode_seconds == 0


async def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="process ended"):
        await TransformersBaseline(model=str(tmp_path / "absent.gguf"), draft_model=None, num_threads=1).__aenter__()


async def test_the_worker_ends_with_its_context(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    before = set(psutil.Process().children())
    async with TransformersBaseline(model=str(model), draft_model=None, num_threads=1, device="cpu"):
        started = set(psutil.Process().children()) - before
        assert len(started) == 1
    await asyncio.sleep(0)
    assert not any(process.is_running() for process in started)
