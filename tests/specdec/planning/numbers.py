"""Costs, acceptance and pipelines for hypothesis to draw from."""

from hypothesis import strategies as st

from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.pass_costs import PassCosts, PassPoint
from specdec.planning.pipeline import PIPELINE_MODES, Pipeline

probabilities = st.floats(0, 1)
milliseconds = st.floats(0.01, 200)
acceptances = st.lists(probabilities, min_size=1, max_size=6).map(lambda rates: Acceptance(tuple(rates)))
pipelines = st.builds(Pipeline, st.sampled_from(PIPELINE_MODES), probabilities, st.integers(1, 4))


@st.composite
def pass_costs(draw: st.DrawFn) -> PassCosts:
    """Points in any order of times; more rows never take less all the same."""
    rows = draw(st.lists(st.integers(1, 600), min_size=1, max_size=4, unique=True))
    return PassCosts(PassPoint(count, draw(milliseconds) / 1e3) for count in rows)


@st.composite
def all_costs(draw: st.DrawFn) -> Costs:
    times = st.floats(0, 0.2)
    return Costs(
        draft=draw(pass_costs()),
        verify=draw(pass_costs()),
        rtt_seconds=draw(times),
        draft_rtt_seconds=draw(times),
        overhead_seconds=draw(times),
    )
