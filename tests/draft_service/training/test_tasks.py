"""What is asked about earlier texts: it carries them, and follows from its key."""

from __future__ import annotations

import pytest

from draft_service.training.tasks import _ABOUT_A_TEXT, _ABOUT_TWO_TEXTS, task_about

TURN, FIRST, SECOND = "the {turn}", "the {first} answer", "the second answer"


@pytest.mark.parametrize(
    ("answers", "forms"), [([FIRST], _ABOUT_A_TEXT), ([FIRST, SECOND], _ABOUT_TWO_TEXTS)], ids=["one", "two"]
)
def test_every_task_comes_up_and_carries_what_it_is_about(answers: list[str], forms: tuple[str, ...]) -> None:
    expected = {
        form.replace("{answer}", answers[-1]).replace("{other}", FIRST) if "{turn}" not in form else None
        for form in forms
    }
    tasks = [task_about(TURN, answers, key) for key in range(400)]
    assert len(set(tasks)) == len(forms)
    assert all(task in set(tasks) for task in expected if task is not None)
    # Nothing but the task's own places is filled in.
    assert all(task.replace(TURN, "").replace(FIRST, "").count("{") == 0 for task in tasks)
    counts = sorted(tasks.count(task) for task in set(tasks))
    assert counts[0] > 400 / len(forms) / 3


def test_a_task_follows_from_its_key_and_what_it_is_about() -> None:
    assert [task_about(TURN, [FIRST], key) for key in range(9)] == [task_about(TURN, [FIRST], key) for key in range(9)]


def test_the_second_task_is_about_the_second_answer() -> None:
    tasks = {task_about(TURN, [FIRST, SECOND], key) for key in range(400)}
    assert all(SECOND in task for task in tasks)
    assert any(FIRST in task for task in tasks)
    assert SECOND in tasks, "what an earlier answer asked is answered as it is"
