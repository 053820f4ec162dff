from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.message import Message

from specdec.cli.running_system import Figures, ProbedRound, ServiceUnreadableError, figures_of_rounds, read_figures
from specdec.planning.pass_costs import PassCosts
from specdec.v1 import draft_pb2, generation_pb2, model_pb2, target_pb2
from tests.specdec.cli.conftest import Server


def info(*costs: tuple[int, int]) -> model_pb2.ModelInfo:
    return model_pb2.ModelInfo(
        model_id="tiny",
        forward_costs=[model_pb2.ForwardCost(rows=rows, microseconds=microseconds) for rows, microseconds in costs],
    )


@dataclass(frozen=True)
class Target:
    """A service that knows one method."""

    costs: tuple[tuple[int, int], ...] = ((1, 20_000), (5, 24_000))
    of_eight: int = 0
    """Microseconds of a pass with a row of each of eight sequences; 0: not measured."""

    def handler(self) -> grpc.GenericRpcHandler:
        response = target_pb2.TargetServiceGetModelInfoResponse(model_info=info(*self.costs))
        if self.of_eight:
            response.model_info.forward_costs.add(rows=8, sequences=8, microseconds=self.of_eight)
        return answering("TargetService", response, target_pb2.TargetServiceGetModelInfoRequest)


@dataclass(frozen=True)
class Draft:
    """The same."""

    costs: tuple[tuple[int, int], ...] = ()

    def handler(self) -> grpc.GenericRpcHandler:
        response = draft_pb2.DraftServiceGetModelInfoResponse(model_info=info(*self.costs))
        return answering("DraftService", response, draft_pb2.DraftServiceGetModelInfoRequest)


def answering(service: str, response: Message, request: type[Message]) -> grpc.GenericRpcHandler:
    async def answer(_: Message, __: object) -> Message:
        return response

    method = grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=type(response).SerializeToString
    )
    return grpc.method_handlers_generic_handler(f"specdec.v1.{service}", {"GetModelInfo": method})


@asynccontextmanager
async def serving(service: Target | Draft | None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    if service is not None:
        server.add_generic_rpc_handlers((service.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_target_says_what_its_passes_cost_and_is_pinged() -> None:
    async with serving(Target()) as address:
        figures = await read_figures([address])
    assert figures.verify is not None
    assert figures.verify.seconds(3) == pytest.approx(0.022)
    assert figures.rtt_seconds is not None
    assert 0 < figures.rtt_seconds < 0.5
    assert figures.draft is None
    assert "2 times of passes" in figures.notes[0]


async def test_a_draft_service_without_times() -> None:
    async with serving(Draft()) as address:
        figures = await read_figures([address])
    assert figures.draft is None
    assert figures.draft_rtt_seconds is not None
    assert "no times of steps" in figures.notes[0]


async def test_several_services_complete_each_other() -> None:
    async with serving(Target()) as target, serving(Draft(((1, 3_000),))) as draft:
        figures = await read_figures([target, draft])
    assert figures.verify is not None
    assert figures.draft is not None
    assert figures.draft.seconds(1) == pytest.approx(0.003)
    assert len(figures.notes) == 2


async def test_an_orchestrator_is_sent_generations_whose_rounds_are_read(server: Server) -> None:
    figures = await read_figures([server.address])
    sizes = [request.num_draft_tokens for request in server.generation.requests[1:]]
    assert sizes == [0, 1, 2, 4, 8] * 3
    assert all(request.sampling.temperature == 0 for request in server.generation.requests)
    # The stand-in's rounds with drafts: 2 of 2 and 0 of 3 accepted, 1.5 ms of drafting. And one without.
    assert figures.draft is not None
    assert figures.draft.seconds(1) == pytest.approx((0.0015 / 2 + 0.0015 / 3) / 2)
    assert figures.acceptance is not None
    # Position 2 was wanted too rarely.
    assert figures.acceptance.rates == pytest.approx((1 / 3,))
    assert figures.draft_rtt_seconds == pytest.approx(0.001)
    # Its verdicts name no rows: nothing was computed.
    assert figures.verify is None


def probed(
    k: int, accepted: int, rows: int, compute: int, network: int = 2_000, drafted: int | None = None
) -> ProbedRound:
    """K were wanted, and as many drafted if nothing else is said."""
    num_drafted = k if drafted is None else drafted
    report = generation_pb2.RoundReport(
        num_draft_tokens=num_drafted,
        num_accepted_tokens=accepted,
        wall_microseconds=(4_000 if num_drafted else 0) + 500 + compute + network + 300,
        draft_wait_microseconds=4_000 if num_drafted else 0,
        verify_wait_microseconds=500 + compute + network,
        draft=model_pb2.Timings(queue_microseconds=100, compute_microseconds=1_000 * k) if num_drafted else None,
        verify=model_pb2.Timings(queue_microseconds=500, compute_microseconds=compute, batch_rows=rows),
    )
    return ProbedRound(k, report)


def test_rounds_are_taken_apart() -> None:
    rounds = [
        *(probed(0, 0, 1, compute) for compute in [5_000, *[20_000] * 24, *[21_000] * 24, 900_000]),
        *(probed(3, accepted, 4, 30_000) for accepted in (0, 1, 2, 3) for _ in range(30)),
    ]
    figures = figures_of_rounds(rounds, "here")
    assert figures.verify is not None
    assert figures.verify.seconds(1) == pytest.approx(0.0205)
    assert figures.verify.seconds(4) == pytest.approx(0.03)
    assert figures.draft is not None
    assert figures.draft.seconds(7) == pytest.approx(0.001)
    assert figures.rtt_seconds == pytest.approx(0.002)
    assert figures.draft_rtt_seconds == pytest.approx(0.0009)
    assert figures.overhead_seconds == pytest.approx(0.0003)
    assert figures.acceptance is not None
    # Of 120 windows 90 got past the first, 60 past the second, 30 past the third token.
    assert figures.acceptance.rates == pytest.approx((90 / 120, 60 / 90, 30 / 60))
    assert len(figures.notes) == 1


def test_what_was_wanted_and_not_drafted_was_not_accepted() -> None:
    """A lookup that finds nothing costs a round its drafts as a wrong one does."""
    rounds = [*(probed(2, 2, 3, 1_000) for _ in range(30)), *(probed(2, 0, 1, 1_000, drafted=0) for _ in range(90))]
    figures = figures_of_rounds(rounds, "here")
    assert figures.acceptance is not None
    assert figures.acceptance.rates == pytest.approx((0.25, 1.0))
    assert "something in 25% of the rounds" in figures.notes[1]


def test_a_position_judged_too_rarely_is_left_out() -> None:
    figures = figures_of_rounds([*(probed(2, 0, 3, 1_000) for _ in range(39)), probed(2, 2, 3, 1_000)], "here")
    assert figures.acceptance is not None
    assert figures.acceptance.rates == pytest.approx((0.025,))
    assert figures_of_rounds([probed(2, 2, 3, 1_000)], "here").acceptance is None


def test_without_rounds_nothing_is_known() -> None:
    assert figures_of_rounds([], "here") == Figures(notes=figures_of_rounds([], "here").notes)


def test_what_is_given_stays() -> None:
    given = Figures(verify=PassCosts.constant(1.0), notes=("a",))
    both = given.filled_from(Figures(verify=PassCosts.constant(2.0), rtt_seconds=0.5, notes=("b",)))
    assert both.verify is given.verify
    assert both.rtt_seconds == 0.5
    assert both.notes == ("a", "b")


async def test_nobody_there() -> None:
    async with serving(None) as address:
        pass
    with pytest.raises(ServiceUnreadableError, match=rf"{address}: UNAVAILABLE"):
        await read_figures([address])


async def test_a_server_of_something_else() -> None:
    async with serving(None) as address:
        with pytest.raises(ServiceUnreadableError, match="UNIMPLEMENTED"):
            await read_figures([address])


async def test_what_sequences_cost_comes_on_top_of_rows() -> None:
    target = Target(((1, 20_000), (9, 28_000), (17, 36_000)), of_eight=62_000)
    async with serving(target) as address:
        figures = await read_figures([address])
    assert figures.verify is not None
    assert figures.verify.seconds(17, 1) == pytest.approx(0.036)
    assert figures.verify.seconds(8, 8) == pytest.approx(0.062)
    assert figures.verify.seconds(17, 8) == pytest.approx(0.071)
