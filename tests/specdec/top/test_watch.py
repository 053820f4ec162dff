from contextlib import aclosing

from specdec.top.endpoint import Endpoint
from specdec.top.watch import watch
from tests.specdec.top.serving import Emitting, served


async def test_one_that_is_lost_and_comes_back() -> None:
    target, orchestrator = Emitting("specdec-target"), Emitting("specdec-orchestrator")
    target.target.open_sequences(1)
    orchestrator.orchestrator.active_requests(1)
    with served(orchestrator) as front:
        with served(target) as back:
            endpoints = [Endpoint.parse(front), Endpoint.parse(back)]
            watched = watch(endpoints, 0.05)
            first = await anext(watched)
            orchestrator.round(4, 2)
            second = await anext(watched)
        async with aclosing(watched):
            third = await anext(watched)
            fourth = await anext(watched)
    assert [each.service for each in first] == ["orchestrator", "target"]
    assert [each.interval_seconds for each in first] == [None, None]
    assert second[0].acceptance_rate == 0.5
    assert second[1].interval_seconds is not None
    # The other one is still shown, and what was lost is still known by what it was.
    assert third[0].interval_seconds is not None
    assert (third[1].service, third[1].problem) == ("target", "connection refused")
    assert fourth[1].problem == "connection refused"
