"""A plan for people."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from specdec.planning.offer import Offer
from specdec.planning.one_client import OneClient
from specdec.planning.plan import Plan

_NONE = "–"


def show_plan(console: Console, plan: Plan, notes: tuple[str, ...] = ()) -> None:
    """Print the tables, what they were computed from, and the verdict."""
    for note in notes:
        console.print(note)
    for line in _given(plan):
        console.print(line)
    console.print(_one_client_table(plan))
    console.print(_one_target_table(plan))
    console.print(
        f"Buy: {plan.verdict.way or 'none of them'}. {plan.verdict.reason[0].upper()}{plan.verdict.reason[1:]}."
    )


def _given(plan: Plan) -> list[str]:
    """What the figures rest on."""
    costs = plan.costs
    rates = ", ".join(f"{rate:.2f}" for rate in plan.acceptance.rates)
    kinds = ", ".join(f"{kind.prompt_tokens} + {kind.output_tokens} tokens" for kind in plan.demand.mix.kinds)
    return [
        f"t_draft {_ms(costs.draft.seconds(1))} ms a token; t_verify {_ms(costs.verify.seconds(1))} ms with one row, "
        f"{_ms(costs.verify.seconds(5))} with five; RTT {_ms(costs.rtt_seconds)} ms to the target, "
        f"{_ms(costs.draft_rtt_seconds)} to the drafter; {_ms(costs.overhead_seconds)} ms besides",
        f"acceptance by position {rates}; hit probability {plan.hit_probability:.2f}; requests of {kinds}",
    ]


def _one_client_table(plan: Plan) -> Table:
    table = _table("one client alone", "best\nK", "tokens\n/s", "ms a\ntoken", "over\ntarget only")
    plain = plan.target_only_one_client
    table.add_row("target only", *_one_client(plain, plain))
    table.add_row("co-located", *_one_client(plan.colocated_one_client, plain), end_section=True)
    for mode in plan.modes:
        table.add_row(f"split, {mode.mode}", *_one_client(mode.one_client, plain))
    return table


def _one_client(rate: OneClient, plain: OneClient) -> tuple[str, ...]:
    return (
        str(rate.num_draft_tokens),
        f"{rate.tokens_per_second:.1f}",
        _ms(1 / rate.tokens_per_second),
        f"{rate.tokens_per_second / plain.tokens_per_second:.2f}",
    )


def _one_target_table(plan: Plan) -> Table:
    goal = plan.demand.goal
    words = (
        f"{_ms(goal.tpot_seconds)} ms a token"
        if goal.tpot_seconds is not None
        else f"{goal.request_seconds:g} s a request"
    )
    columns = ("K", "clients", "drafts", "tokens\n/s", "ms a\ntoken", "target\nbusy", "$\n/hour", "$/1M\ntokens")
    table = _table(f"one target with as many clients as it serves within {words}", *columns)
    table.add_row("target only", *_offer(plan.target_only))
    table.add_row("co-located", *_offer(plan.colocated), end_section=True)
    for mode in plan.modes:
        mark = " *" if mode is plan.split else ""
        table.add_row(f"split, {mode.mode}{mark}", *_offer(mode.offer))
    if plan.demand.limit and any(
        offer is not None and offer.num_clients == plan.demand.limit
        for offer in (plan.target_only, plan.colocated, *(mode.offer for mode in plan.modes))
    ):
        table.caption = (
            f"{plan.demand.limit} clients are the most that were looked at: the limit of sequences or memory"
        )
    return table


def _offer(offer: Offer | None) -> tuple[str, ...]:
    if offer is None:
        return (_NONE,) * 8
    dollars, per_million = offer.dollars_per_hour, offer.dollars_per_million_tokens
    return (
        str(offer.num_draft_tokens),
        str(offer.num_clients),
        f"{offer.drafts_per_target:.3g}",
        f"{offer.tokens_per_second:,.0f}",
        _ms(offer.tpot_seconds),
        f"{offer.busy_share:.0%}",
        _NONE if dollars is None else f"{dollars:.2f}",
        _NONE if per_million is None else f"{per_million:.3g}",
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=title)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
