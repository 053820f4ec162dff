"""Several completions of one prompt."""

from google.protobuf.json_format import MessageToDict

from specdec.client import GenerationResult
from specdec.v1 import generation_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import Running, request, running
from tests.orchestrator.serving import until


async def collect(run: Running, asked: generation_pb2.GenerateRequest) -> list[GenerationResult]:
    results = [GenerationResult(completion=index) for index in range(asked.num_completions)]
    async for response in run.stub.Generate(asked, timeout=30):
        for result in results:
            result.add(response)
    return results


async def test_each_completion_is_whole_and_the_first_is_that_of_the_request_alone() -> None:
    target = FakeTarget()
    async with running(target, FakeDraft()) as run:
        alone = await run.generate()
        results = await collect(run, request(num_completions=3))
        answer = await run.stub.GenerateUnary(generation_pb2.GenerateUnaryRequest(request=request(num_completions=3)))
    assert results[0].token_ids == alone.token_ids
    for index, result in enumerate(results):
        assert result.finished is not None
        assert result.finished.completion == index
        assert result.finished.usage.num_generated_tokens == len(result.token_ids) == 24
        assert answer.completions[index].text == result.text
        assert MessageToDict(answer.completions[index].finished.usage) == MessageToDict(result.finished.usage)


async def test_completions_have_seeds_of_their_own_and_open_together() -> None:
    target = FakeTarget()
    async with running(target) as run:
        await collect(run, request(num_completions=4))
        seeds = [command.open.sampling.seed for command in target.commands if command.HasField("open")]
        assert target.batch_sizes[0] == 4
    assert seeds[0] == 1
    assert len(set(seeds)) == 4


async def test_leaving_early_closes_every_completion() -> None:
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        call = run.stub.Generate(request(max_new_tokens=4000, num_completions=4))
        for _ in range(9):
            await call.read()
        call.cancel()
        await until(lambda: not target.sequences and not draft.sequences)
