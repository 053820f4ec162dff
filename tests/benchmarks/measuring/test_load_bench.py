from benchmarks.measuring.load_bench import RequestMaker
from benchmarks.measuring.prompts import Prompt

PROMPTS = [Prompt("a", "any", "one"), Prompt("b", "any", "two")]


def maker(*, is_cold: bool) -> RequestMaker:
    return RequestMaker(PROMPTS, max_new_tokens=5, temperature=0.5, seed=3, ignores_stops=True, is_cold=is_cold)


def test_a_prompt_has_the_same_seed_whatever_k() -> None:
    make_request = maker(is_cold=False)
    fixed, auto, other = make_request(1, 4), make_request(1, None), make_request(0, 4)
    assert (fixed.chat.messages[0].content, fixed.sampling.seed, fixed.num_draft_tokens) == ("two", 4, 4)
    assert not auto.HasField("num_draft_tokens")
    assert (other.chat.messages[0].content, other.sampling.seed) == ("one", 3)
    auto.num_draft_tokens = 4
    assert auto == fixed


def test_cold_requests_share_nothing() -> None:
    make_request = maker(is_cold=True)
    tenants = {make_request(0, 4).tenant for _ in range(20)}
    assert len(tenants) == 20
    assert "" not in tenants
    assert {maker(is_cold=False)(0, 4).tenant} == {""}
