"""A plan as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specdec.planning.one_client import best_split, colocated_rate, split_rate
from specdec.planning.pipeline import Pipeline
from specdec.planning.plan import Plan

_RTTS_MS = (0.0, 0.5, 1, 2, 5, 10, 20, 40, 80, 160)


class PlotError(Exception):
    """There is nothing to plot with; the message says what to install."""


def check_plotting() -> None:
    """Find out before anything else is done.

    Raises:
        PlotError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install 'specdec[bench]'") from error


def save_plan_plot(path: Path, plan: Plan, max_draft_tokens: int) -> None:
    """One client's rate over K and over the RTT, and what one target serves.

    Args:
        path: PNG, made or replaced.
        plan: what was computed.
        max_draft_tokens: largest K drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15.0, 4.5), layout="constrained")
    sizes = range(max_draft_tokens + 1)
    by_size, by_rtt, by_offer = (figure.add_subplot(1, 3, index + 1) for index in range(3))
    for mode in plan.modes:
        pipeline = Pipeline(mode.mode, plan.hit_probability, plan.rounds_ahead)
        name = f"split, {mode.mode}"
        rates = [split_rate(plan.costs, plan.acceptance, k, pipeline).tokens_per_second for k in sizes]
        by_size.plot(sizes, rates, "o-", markersize=3, label=name)
        best = [
            best_split(
                replace(plan.costs, rtt_seconds=rtt / 1e3), plan.acceptance, pipeline, max_draft_tokens
            ).tokens_per_second
            for rtt in _RTTS_MS
        ]
        by_rtt.plot(_RTTS_MS, best, "o-", markersize=3, label=f"{name}, best K")
    together = [colocated_rate(plan.costs, plan.acceptance, k).tokens_per_second for k in sizes]
    by_size.plot(sizes, together, "x--", markersize=4, label="co-located")
    by_size.set_xlabel("K")
    by_rtt.axhline(plan.colocated_one_client.tokens_per_second, linestyle="--", color="C3", label="co-located")
    by_rtt.axhline(plan.target_only_one_client.tokens_per_second, linestyle=":", color="C4", label="target only")
    by_rtt.set_xscale("symlog", linthresh=0.5)
    by_rtt.set_xlim(left=0)
    by_rtt.set_xlabel("RTT, ms")
    for axes in (by_size, by_rtt):
        axes.set_ylabel("tokens/s of one client")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    offers = {"target only": plan.target_only, "co-located": plan.colocated}
    offers |= {f"split, {mode.mode}": mode.offer for mode in plan.modes}
    has_prices = plan.prices is not None
    values = {
        name: (offer.dollars_per_million_tokens if has_prices else offer.tokens_per_second) or 0.0
        for name, offer in offers.items()
        if offer is not None
    }
    by_offer.barh(list(values), list(values.values()), color="C0")
    by_offer.invert_yaxis()
    by_offer.set_xlabel("$ per million tokens" if has_prices else "tokens/s of one target within the goal")
    by_offer.grid(alpha=0.3, axis="x")
    figure.savefig(path, format="png", dpi=110)
