"""What the collector's tail rule makes of a trace, as its documentation says.

Of `tail_sampling` (opentelemetry-collector-contrib): a trace is kept if one policy wants it; `latency` is from the
earliest start to the latest end; `status_code` and `ottl_condition` want it for one span, or one event, that fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

_CLAUSES: tuple[tuple[re.Pattern[str], Callable[[Any, re.Match[str]], bool]], ...] = (
    (re.compile(r'name == "([^"]+)"'), lambda each, found: each.name == found[1]),
    (
        re.compile(r"end_time_unix_nano - start_time_unix_nano > (\d+)"),
        lambda each, found: each.end_time - each.start_time > int(found[1]),
    ),
    (re.compile(r'attributes\["([^"]+)"\] != nil'), lambda each, found: found[1] in (each.attributes or {})),
)


def wanted_by(policies: Sequence[dict[str, Any]], trace: Sequence[ReadableSpan]) -> set[str]:
    """Names of the policies that keep a trace, those that draw lots left out.

    Args:
        policies: of `tail_sampling`.
        trace: all its spans, ended.

    Raises:
        ValueError: a policy, or a condition of one, is of a kind that is not known here.
    """
    return {policy["name"] for policy in policies if policy["type"] != "probabilistic" and _wants(policy, trace)}


def _wants(policy: dict[str, Any], trace: Sequence[ReadableSpan]) -> bool:
    kind, rule = policy["type"], policy[policy["type"]]
    if kind == "status_code":
        return any(span.status.status_code.name in rule["status_codes"] for span in trace)
    if kind == "latency":
        seconds = max(span.end_time or 0 for span in trace) - min(span.start_time or 0 for span in trace)
        return seconds / 1e6 > float(rule["threshold_ms"])
    if kind == "ottl_condition":
        events = [event for span in trace for event in span.events]
        return any(_fits(each, condition) for each in trace for condition in rule.get("span", ())) or any(
            _fits(each, condition) for each in events for condition in rule.get("spanevent", ())
        )
    raise ValueError(f"a policy of type {kind}")


def _fits(each: object, condition: str) -> bool:
    return any(all(_holds(each, clause) for clause in part.split(" and ")) for part in condition.split(" or "))


def _holds(each: object, clause: str) -> bool:
    for pattern, check in _CLAUSES:
        if found := pattern.fullmatch(clause.strip()):
            return check(each, found)
    raise ValueError(f"a condition that is not known here: {clause}")
