from dataclasses import replace

from benchmarks.measuring.speedup_sides import Side, SpeedupSettings, rotated

SETTINGS = SpeedupSettings(
    model="m",
    drafters=("model", "ngram", "suffix", "combined"),
    draft_model="d",
    num_draft_tokens=4,
    max_new_tokens=8,
    temperature=0,
    seed=0,
    num_threads=1,
    device="cpu",
    dtype="auto",
)


def test_every_side_comes_first_in_turn() -> None:
    assert ["".join(rotated(("a", "b", "c"), first)) for first in range(4)] == ["abc", "bca", "cab", "abc"]


def test_each_drafter_is_compared_with_transformers_of_its_kind_and_no_side_runs_twice() -> None:
    assert SETTINGS.sides == (
        Side("model", 4),
        Side("ngram", 4),
        Side("suffix", 4),
        Side("combined", 4),
        Side("model", 0),
        Side(),
        Side(None, 4, "model"),
        Side(None, 4, "lookup"),
    )
    words = [SETTINGS.assisted_words(drafter) for drafter in SETTINGS.drafters]
    with_model, with_lookup = "transformers with assistant_model", "transformers with prompt lookup"
    assert words == [with_model, with_lookup, with_lookup, with_model]


def test_without_drafts_there_is_nothing_to_compare_them_with() -> None:
    plain = replace(SETTINGS, drafters=("ngram",), num_draft_tokens=0)
    assert plain.sides == (Side("ngram", 0), Side())
    assert plain.k0 is None
    assert plain.assisted_words("ngram") is None
