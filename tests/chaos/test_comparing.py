from tests.chaos.comparing import Difference, compare

RIGHT = [5, 6, 7, 8, 9]


def differs(actual: list[int]) -> Difference:
    return compare(RIGHT, "text", actual, "text")


def test_equal_outputs_do_not_differ() -> None:
    assert not differs([5, 6, 7, 8, 9])


def test_what_is_missing_is_lost() -> None:
    assert differs([5, 6, 9]) == Difference(num_lost=2)
    assert differs([5, 6, 7]) == Difference(num_lost=2)
    assert differs([]) == Difference(num_lost=5)


def test_what_comes_twice_is_duplicated() -> None:
    assert differs([5, 6, 7, 6, 7, 8, 9]) == Difference(num_duplicated=2)
    assert differs([5, 6, 7, 8, 9, 9]) == Difference(num_duplicated=1)


def test_what_is_another_token_or_one_too_many_is_changed() -> None:
    assert differs([5, 6, 1, 8, 9]) == Difference(num_changed=1)
    assert differs([5, 6, 7, 1, 8, 9]) == Difference(num_changed=1)


def test_wrong_text_of_right_tokens_is_noticed() -> None:
    assert compare(RIGHT, "naïve", RIGHT, "naive") == Difference(num_wrong_characters=1)
    assert compare(RIGHT, "abc", RIGHT, "ab") == Difference(num_wrong_characters=1)


def test_differences_add_up() -> None:
    assert Difference(1, 2, 3, 4) + Difference(10, 20, 30, 40) == Difference(11, 22, 33, 44)
