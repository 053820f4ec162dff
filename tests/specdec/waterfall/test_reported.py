import pytest

from specdec.v1 import draft_pb2, generation_pb2, model_pb2
from specdec.waterfall.reported import ReportedRequest, round_view
from tests.specdec.fake_generation import responses


def test_a_request_as_it_comes() -> None:
    reported = ReportedRequest()
    assert reported.view.rounds == ()
    started, *deltas, finished = responses()
    for response in (started, *deltas):
        reported.add(response)
    running = reported.view
    assert (running.status, running.num_generated_tokens) == ("", 6)
    assert running.ttft_seconds == pytest.approx(0.01)
    assert running.tpot_seconds == pytest.approx(0.03 / 5)
    reported.add(finished)
    ended = reported.view
    assert (ended.request_id, ended.model, ended.acceptance_rule) == ("r1", "fake", "coupled")
    assert (ended.status, ended.finish_reason, ended.num_prompt_tokens) == ("OK", "length", 3)
    assert ended.tpot_seconds == pytest.approx(1 / 166.7)
    assert ended.num_rounds == 3
    assert ended.acceptance_rate == 0.4
    assert ended.mean_acceptance_length == pytest.approx(1 + 2 / 3)
    assert [each.start_seconds for each in ended.rounds] == pytest.approx([0, 0.01, 0.02, 0.03])
    assert [each.next_token_kind for each in ended.rounds] == ["prefill", "bonus", "recovered", "bonus"]


def test_the_parts_of_a_round() -> None:
    view = round_view(responses()[2].delta.round, 1.5)
    assert view.start_seconds == 1.5
    assert view.durations.parts == pytest.approx(
        {
            "draft_queue": 0.0005,
            "draft_compute": 0.0015,
            # Of waits of 3.0 and 6.5 ms the services account for 2.0 and 6.0.
            "network": 0.0015,
            "target_queue": 0.001,
            "target_compute": 0.005,
            "waiting": 0.0005,
        }
    )
    assert (view.draft_source, view.num_draft_tokens, view.num_accepted_tokens) == ("suffix", 2, 2)


def test_what_was_drafted_ahead_is_hidden() -> None:
    report = generation_pb2.RoundReport(
        round=4,
        wall_microseconds=6_000,
        draft_wait_microseconds=1_000,
        verify_wait_microseconds=5_000,
        draft=model_pb2.Timings(compute_microseconds=4_000),
        verify=model_pb2.Timings(compute_microseconds=5_000),
        draft_ahead=draft_pb2.AHEAD_OUTCOME_HIT,
        is_candidate=True,
        num_draft_tokens=2,
    )
    view = round_view(report, 0.0)
    assert view.durations.parts == pytest.approx({"draft_compute": 0.001, "target_compute": 0.005})
    assert view.durations.hidden_seconds == pytest.approx(0.003)
    assert view.notes == ("candidate",)
    assert view.draft_source == "unknown"
