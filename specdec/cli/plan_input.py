"""What the flags of `specdec plan` mean."""

from __future__ import annotations

import re

from specdec.planning.acceptance import Acceptance
from specdec.planning.pass_costs import PassCosts, PassPoint
from specdec.planning.request_mix import RequestKind, RequestMix

_POINT = re.compile(r"(?P<rows>\d+)(x(?P<sequences>\d+))?:(?P<ms>[^:]+)")


def parse_pass_costs(text: str) -> PassCosts:
    """Milliseconds of a pass: one number, or points such as `1:30,9:31.5`, or with their sequences `5x1:30,40x8:42`.

    Raises:
        ValueError: it is none of these.
    """
    if ":" not in text:
        return PassCosts.constant(float(text) / 1e3)
    points = []
    for part in text.split(","):
        match = _POINT.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is not ROWS:MS or ROWSxSEQUENCES:MS")
        sequences = match["sequences"]
        points.append(PassPoint(int(match["rows"]), float(match["ms"]) / 1e3, int(sequences) if sequences else None))
    return PassCosts(points)


def parse_acceptance(text: str) -> Acceptance:
    """One rate, or a list by position.

    Raises:
        ValueError: it is neither.
    """
    return Acceptance(tuple(float(part) for part in text.split(",")))


def parse_mix(kinds: list[str]) -> RequestMix:
    """Kinds of requests, each PROMPT:OUTPUT or PROMPT:OUTPUT:WEIGHT.

    Raises:
        ValueError: one is neither.
    """
    parsed = []
    for kind in kinds:
        prompt, *rest = kind.split(":")
        if not 1 <= len(rest) <= 2:
            raise ValueError(f"{kind!r} is not PROMPT:OUTPUT or PROMPT:OUTPUT:WEIGHT")
        parsed.append(RequestKind(int(prompt), int(rest[0]), float(rest[1]) if rest[1:] else 1.0))
    return RequestMix(tuple(parsed))
