from benchmarks.measuring.closed_loop import RequestRecord
from benchmarks.measuring.output_check import OutputCheck


def output(prompt: int, *token_ids: int) -> RequestRecord:
    return RequestRecord(prompt, 0.0, token_ids=list(token_ids))


def test_outputs_of_a_prompt_are_compared_as_far_as_both_go() -> None:
    check = OutputCheck()
    check.add([output(0, 5, 6), output(1, 7), output(0, 5, 6, 8), output(0, 5), output(2)])
    assert (check.num_compared, check.num_differing) == (2, 0)
    # Against the longest one: two of these differ, one only where nothing else goes.
    check.add([output(0, 5, 9), output(0, 5, 6, 9), output(0, 5, 6, 8, 9), output(1)])
    assert (check.num_compared, check.num_differing) == (5, 2)
