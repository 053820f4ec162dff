"""The comparison at the heart of benchmarks.exactness."""

from benchmarks.exactness import Difference, compare
from benchmarks.measuring.greedy_reference import GreedyReference
from benchmarks.measuring.prompts import Prompt

PROMPTS = [Prompt(str(number), "any", "text") for number in range(4)]
REFERENCES = [GreedyReference([1], [5, 6, 7], [1.0, 0.5, 0.25]) for _ in PROMPTS]


def test_differences_name_the_first_position_and_its_gap() -> None:
    comparison = compare(PROMPTS, REFERENCES, [[5, 6, 7], [5, 9, 7], [5, 6], [5, 6, 7, 8]])
    assert comparison.num_prompts == 4
    assert comparison.num_equal == 1
    assert comparison.differences == (Difference("1", 1, 0.5), Difference("2", 2, None), Difference("3", 3, None))
