"""`specdec plan`: what a split system will do, and whether it is worth it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, TypeVar

import typer

from specdec.cli.server_access import InsecureToken, Tls, TlsCa, TlsCert, TlsKey, Token, TokenFrom, server_security

if TYPE_CHECKING:
    from specdec.cli.running_system import Figures
    from specdec.planning.costs import Costs
    from specdec.planning.pass_costs import PassCosts
    from specdec.serving.channel_security import ChannelSecurity

_Value = TypeVar("_Value")

_COSTS = "One number, or points ROWS:MS,... or ROWSxSEQUENCES:MS,..., interpolated."


def plan(
    draft_ms: Annotated[
        str | None, typer.Option(metavar="MS", help=f"t_draft: a drafting step, one row a sequence. {_COSTS}")
    ] = None,
    verify_ms: Annotated[
        str | None, typer.Option(metavar="MS", help=f"t_verify: a pass of the target, K + 1 rows a sequence. {_COSTS}")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(metavar="A,...", help="Acceptance by position; the last one holds for all beyond.")
    ] = None,
    rtt_ms: Annotated[
        float | None, typer.Option(min=0, help="Round trip between orchestrator and target; default: 0.")
    ] = None,
    draft_rtt_ms: Annotated[
        float | None, typer.Option(min=0, help="Round trip between orchestrator and drafter; default: 0.")
    ] = None,
    overhead_ms: Annotated[float | None, typer.Option(min=0, help="What a round takes besides; default: 0.")] = None,
    colocated_draft_ms: Annotated[
        str | None, typer.Option(metavar="MS", help="As --draft-ms, on the target's device; default: the same.")
    ] = None,
    from_server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Read what was not given from a running target, draft service or orchestrator; may be repeated. An "
            "orchestrator is sent a few short generations.",
        ),
    ] = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token: Token = None,
    token_from: TokenFrom = None,
    insecure_token: InsecureToken = False,
    acceptance_from: Annotated[
        Path | None, typer.Option(help="JSON of benchmarks.acceptance or benchmarks.speedup.")
    ] = None,
    acceptance_drafter: Annotated[str | None, typer.Option(help="Which drafter of that file.")] = None,
    acceptance_temperature: Annotated[float | None, typer.Option(help="Which temperature of that file.")] = None,
    pipeline: Annotated[
        Literal["auto", "off", "ahead", "candidates"],
        typer.Option(help="What is compared with the other ways: drafting in turn, ahead, or candidate windows."),
    ] = "auto",
    hit_probability: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How often an outcome was drafted for; default: acceptance of position 1."),
    ] = None,
    rounds_ahead: Annotated[int, typer.Option(min=1, help="How far candidate windows run ahead.")] = 1,
    target_price: Annotated[float | None, typer.Option(help="Dollars an hour of the target's device.")] = None,
    draft_price: Annotated[float | None, typer.Option(help="Dollars an hour of a draft device.")] = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(metavar="PROMPT:OUTPUT[:WEIGHT]", help="Tokens of a request; may be repeated. Default: 512:256."),
    ] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Latency goal: mean time a token; default: 50.")] = None,
    request_seconds: Annotated[float | None, typer.Option(help="Latency goal: time of a whole request.")] = None,
    max_draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Largest K.")] = 16,
    max_sequences: Annotated[int, typer.Option(min=1, help="Most clients of one target.")] = 256,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the target's key-value memory holds; default: enough.")
    ] = None,
    num_targets: Annotated[
        int, typer.Option("--targets", min=1, help="Targets that share the draft devices; figures are for one of them.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG for curves; needs matplotlib.")] = None,
) -> None:
    """Predict the rate of one client, the capacity of a target and the price of tokens; say what to buy.

    Measured or given times go in, arithmetic comes out: docs/planning.md has the formulas.
    """
    from rich.console import Console

    from specdec.cli.acceptance_file import AcceptanceFileError, read_acceptance
    from specdec.cli.plan_input import parse_acceptance, parse_mix, parse_pass_costs
    from specdec.cli.plan_output import show_plan
    from specdec.cli.plan_plot import PlotError, check_plotting, save_plan_plot
    from specdec.cli.running_system import Figures
    from specdec.planning.latency_goal import LatencyGoal
    from specdec.planning.offer import Prices
    from specdec.planning.plan import plan as make_plan

    if (target_price is None) != (draft_price is None):
        raise typer.BadParameter("--target-price and --draft-price go together")
    if tpot_ms is not None and request_seconds is not None:
        raise typer.BadParameter("there is one latency goal: --tpot-ms or --request-seconds")
    if acceptance is not None and acceptance_from is not None:
        raise typer.BadParameter("--acceptance and --acceptance-from exclude each other")
    if acceptance_from is None and (acceptance_drafter is not None or acceptance_temperature is not None):
        raise typer.BadParameter("--acceptance-drafter and --acceptance-temperature belong to --acceptance-from")
    try:
        if plot is not None:
            check_plotting()
        given_acceptance = _parsed(parse_acceptance, acceptance)
        if acceptance_from is not None:
            given_acceptance = read_acceptance(acceptance_from, acceptance_drafter, acceptance_temperature)
        figures = Figures(
            verify=_parsed(parse_pass_costs, verify_ms),
            draft=_parsed(parse_pass_costs, draft_ms),
            rtt_seconds=_seconds(rtt_ms),
            draft_rtt_seconds=_seconds(draft_rtt_ms),
            overhead_seconds=_seconds(overhead_ms),
            acceptance=given_acceptance,
        )
        beside_target = _parsed(parse_pass_costs, colocated_draft_ms)
        mix = parse_mix(requests) if requests else None
        goal = (
            LatencyGoal(request_seconds=request_seconds)
            if request_seconds is not None
            else LatencyGoal(tpot_seconds=50e-3 if tpot_ms is None else tpot_ms / 1e3)
        )
        prices = None if target_price is None or draft_price is None else Prices(target_price, draft_price)
    except (ValueError, AcceptanceFileError, PlotError) as error:
        raise typer.BadParameter(str(error)) from error
    if from_server:
        security = server_security(
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            token=token,
            token_from=token_from,
            insecure_token=insecure_token,
        )
        figures = figures.filled_from(_read(from_server, security))
    if figures.acceptance is None:
        raise typer.BadParameter(f"{_missing('--acceptance or --acceptance-from', from_server)}")
    made = make_plan(
        _costs(figures, beside_target, from_server),
        figures.acceptance,
        pipeline=None if pipeline == "auto" else pipeline,
        hit_probability=hit_probability,
        rounds_ahead=rounds_ahead,
        prices=prices,
        mix=mix,
        goal=goal,
        max_draft_tokens=max_draft_tokens,
        max_sequences=max_sequences,
        kv_tokens=kv_tokens,
        num_targets=num_targets,
    )
    if as_json:
        typer.echo(json.dumps(made.to_json() | {"notes": list(figures.notes)}, indent=2))
    else:
        show_plan(Console(highlight=False, soft_wrap=True), made, figures.notes)
    if plot is not None:
        save_plan_plot(plot, made, max_draft_tokens)


def _costs(figures: Figures, beside_target: PassCosts | None, from_server: list[str] | None) -> Costs:
    """
    Raises:
        typer.BadParameter: a time that a plan cannot do without is neither given nor read.
    """
    from specdec.planning.costs import Costs

    if figures.draft is None:
        raise typer.BadParameter(_missing("--draft-ms", from_server))
    if figures.verify is None:
        raise typer.BadParameter(_missing("--verify-ms", from_server))
    return Costs(
        draft=figures.draft,
        verify=figures.verify,
        rtt_seconds=figures.rtt_seconds or 0.0,
        draft_rtt_seconds=figures.draft_rtt_seconds or 0.0,
        overhead_seconds=figures.overhead_seconds or 0.0,
        colocated_draft=beside_target,
    )


def _read(addresses: list[str], security: ChannelSecurity | None) -> Figures:
    """Of the running services; a failure becomes one message and status 1."""
    from specdec.cli.running_system import ServiceUnreadableError, read_figures
    from specdec.client import IncompleteGenerationError
    from specdec.serving.security_error import SecurityError

    try:
        return asyncio.run(read_figures(addresses, security))
    except (SecurityError, ServiceUnreadableError, IncompleteGenerationError) as error:
        _fail(str(error))


def _missing(flags: str, from_server: list[str] | None) -> str:
    return f"{flags} is missing" + (", and no server said it" if from_server else "")


def _parsed(parse: Callable[[str], _Value], text: str | None) -> _Value | None:
    return None if text is None else parse(text)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _fail(message: str) -> NoReturn:
    typer.echo(f"specdec plan: {message}", err=True)
    raise typer.Exit(1)
