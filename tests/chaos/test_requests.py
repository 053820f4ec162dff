import pytest

from tests.chaos.requests import make_requests


def test_a_seed_gives_the_same_requests_and_all_are_sampled_with_seeds_of_their_own() -> None:
    first, again, other = (make_requests(40, seed, 80, is_tiny=True) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert all(request.sampling.temperature == pytest.approx(0.8) for request in first)
    assert len({request.sampling.seed for request in first}) == 40


def test_every_kind_is_there() -> None:
    requests = make_requests(40, 1, 80, is_tiny=True)
    assert any(request.num_completions == 2 for request in requests)
    assert any(request.stop_strings for request in requests)
    assert any(request.sampling.frequency_penalty for request in requests)
    assert any(request.sampling.HasField("num_logprobs") for request in requests)
    assert any(request.sampling.allowed_token_ids for request in requests)
    assert {request.HasField("num_draft_tokens") for request in requests} == {True, False}
    assert all(40 <= request.max_new_tokens <= 80 for request in requests)
