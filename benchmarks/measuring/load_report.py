"""What the windows of `benchmarks.load` add up to: medians, ratios within a repeat, the claim against its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.deployment.services import Side
from benchmarks.measuring.load_figures import Figures, median, medians

NumDraftTokens = int | None
"""K; None: auto."""


@dataclass(frozen=True)
class Point:
    """A place of the grid."""

    side: Side
    num_clients: int
    num_draft_tokens: NumDraftTokens

    @property
    def k(self) -> str:
        """K in a word."""
        return "auto" if self.num_draft_tokens is None else str(self.num_draft_tokens)


Measured = Mapping[Point, Sequence[Figures]]
"""Figures of each repeat; all points have as many."""


def rate_ratio(measured: Measured, point: Point, base: Point) -> float | None:
    """Median over repeats of the ratio of tokens/s within a repeat; None if the base was not measured."""
    return median(
        _ratio(own["tokens_per_second"], other["tokens_per_second"])
        for own, other in zip(measured[point], measured.get(base, ()), strict=False)
    )


def cells(measured: Measured) -> list[dict[str, Any]]:
    """One for each point: medians of its figures, ratios, and what each repeat gave."""
    fewest = min(point.num_clients for point in measured)
    found = []
    for point, repeats in measured.items():
        ratios = {
            "over_k0": rate_ratio(measured, point, Point(point.side, point.num_clients, 0)),
            "over_one_client": (
                rate_ratio(measured, point, Point(point.side, 1, point.num_draft_tokens)) if fewest == 1 else None
            ),
        }
        found.append({**_place(point), **medians(repeats), **ratios, "repeats": list(repeats)})
    return found


def auto_choices(measured: Measured) -> list[dict[str, Any]]:
    """Auto K against the fixed K with the best median, at each number of clients."""
    found = []
    for point in measured:
        fixed = [
            other
            for other in measured
            if other.num_draft_tokens is not None and (other.side, other.num_clients) == (point.side, point.num_clients)
        ]
        if point.num_draft_tokens is None and fixed:
            best = max(fixed, key=lambda other: _rate(measured, other))
            found.append(
                {
                    **_place(point),
                    "best_fixed_num_draft_tokens": best.k,
                    "over_best_fixed": rate_ratio(measured, point, best),
                    "over_k0": rate_ratio(measured, point, Point(point.side, point.num_clients, 0)),
                }
            )
    return found


def comparisons(measured: Measured) -> list[dict[str, Any]]:
    """Split against co-located, at each point that was measured on both sides.

    The claim (DESIGN section 1): on a saturated target, 1 + K * t_draft / t_verify as much. It is computed in two ways:

    - by round: device time spent on drafting over device time spent on verifying, on the co-located side, where both
      share one device. Batches of different sizes and prefills are in it as they were.
    - by pass: K = draft tokens a round, t_draft and t_verify = mean forward pass of each, on the split side.
    """
    found = []
    for point in measured:
        other = Point("colocated", point.num_clients, point.num_draft_tokens)
        if point.side == "split" and other in measured:
            ratio = rate_ratio(measured, point, other)
            by_round = median(map(gain_by_round, measured[other]))
            by_pass = median(map(gain_by_pass, measured[point]))
            found.append(
                {
                    "num_clients": point.num_clients,
                    "num_draft_tokens": point.k,
                    "split_over_colocated": ratio,
                    "formula_by_round": by_round,
                    "formula_by_pass": by_pass,
                    "share_of_formula_by_round": _ratio(ratio, by_round),
                    "share_of_formula_by_pass": _ratio(ratio, by_pass),
                    "target_busy_share": median(each["target_busy_share"] for each in measured[point]),
                }
            )
    return found


def gain_by_round(figures: Figures) -> float | None:
    """1 + device time of drafting / device time of verifying."""
    draft, target = (_device_seconds(figures, name) for name in ("draft", "target"))
    ratio = _ratio(draft, target)
    return 1 + ratio if ratio is not None else None


def gain_by_pass(figures: Figures) -> float | None:
    """1 + K * t_draft / t_verify with the means of single passes."""
    ratio = _ratio(figures["draft_pass_seconds_mean"], figures["target_pass_seconds_mean"])
    drafted = figures["draft_tokens_per_round"]
    return 1 + drafted * ratio if ratio is not None and drafted is not None else None


def renamed(values: Any, prefix: str) -> Any:
    """JSON values with `prefix` before the name of every figure; what says where it was measured keeps its name."""
    if isinstance(values, dict):
        return {name if name in _PLACE else f"{prefix}{name}": renamed(value, prefix) for name, value in values.items()}
    return [renamed(value, prefix) for value in values] if isinstance(values, list) else values


def by_clients(
    found: Iterable[Mapping[str, Any]], side: Side, value: Callable[[Mapping[str, Any]], float | None]
) -> dict[str, list[tuple[int, float]]]:
    """A curve over the number of clients for each K, of one side; what does not apply is left out."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for cell in found:
        number = value(cell)
        if cell["side"] == side and number is not None:
            curves.setdefault(cell["num_draft_tokens"], []).append((cell["num_clients"], number))
    return {k: sorted(curve) for k, curve in curves.items()}


_PLACE = frozenset({"side", "num_clients", "num_draft_tokens", "repeats"})


def _place(point: Point) -> dict[str, Any]:
    return {"side": point.side, "num_clients": point.num_clients, "num_draft_tokens": point.k}


def _rate(measured: Measured, point: Point) -> float:
    return median(each["tokens_per_second"] for each in measured[point]) or 0.0


def _device_seconds(figures: Figures, name: str) -> float | None:
    mean, count = figures[f"{name}_pass_seconds_mean"], figures[f"{name}_num_passes"]
    return mean * count if mean is not None and count is not None else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
