import json
from pathlib import Path

import pytest

from benchmarks.simulation.profile import DeviceModel, PassShape, ProfileError, read_profile
from tests.specdec.cli.conftest import ROOT

H100_L4 = ROOT / "benchmarks" / "profiles" / "h100-8b-l4.json"


def one_row(context: int) -> PassShape:
    return PassShape.of([(1, context)])


def test_a_shape_counts_what_is_read_and_what_is_attended_to() -> None:
    # The second sequence's rows see 10, 11 and 12 tokens: its context of 9, and themselves.
    assert PassShape.of([(1, 4), (3, 9)]) == PassShape(
        num_sequences=2, num_rows=4, num_read_tokens=17, num_pairs=5 + 10 + 11 + 12
    )


def test_the_slower_of_reading_and_computing_decides() -> None:
    device = DeviceModel(
        fixed_seconds=0.5,
        seconds_per_sequence=0.25,
        num_parameters=100,
        bytes_per_parameter=2,
        kv_bytes_per_token=4,
        attention_flops_per_pair=8,
        bytes_per_second=200,
        flops_per_second=1000,
        reading_efficiency=0.5,
        computing_efficiency=0.4,
    )
    # 2 s to read the weights, 0.5 s a row to compute; 0.04 s a token to read, 0.02 s a pair to compute.
    assert device.seconds(one_row(4)) == pytest.approx(0.5 + 0.25 + 2 + 5 * 0.04)
    assert device.seconds(PassShape.of([(8, 0)])) == pytest.approx(0.5 + 0.25 + 4 + 36 * 0.02)
    assert device.seconds(PassShape.of([(1, 4)] * 3)) == pytest.approx(0.5 + 0.75 + 2 + 15 * 0.04)


def test_a_fixed_time_alone_is_a_constant() -> None:
    device = DeviceModel(fixed_seconds=0.03)
    assert device.seconds(one_row(0)) == device.seconds(PassShape.of([(512, 4000)] * 64)) == 0.03


def test_the_shipped_profile_gives_the_times_that_its_notes_name() -> None:
    profile = read_profile(H100_L4)
    assert profile.target.seconds(one_row(0)) == pytest.approx(5.9e-3, abs=5e-5)
    assert profile.draft.seconds(one_row(0)) == pytest.approx(2.4e-3, abs=5e-5)
    assert profile.colocated_draft.seconds(one_row(0)) == pytest.approx(0.5e-3, abs=5e-5)
    rows = [profile.target.seconds(PassShape.of([(5, 0)] * count)) for count in (1, 51, 52, 104)]
    assert rows[1] == pytest.approx(rows[0], rel=0.01), "below 258 rows the weights' reading decides"
    assert rows[3] - profile.target.fixed_seconds == pytest.approx(
        2 * (rows[2] - profile.target.fixed_seconds), rel=0.01
    )
    # 131,072 bytes a token: 256 sequences of 1,000 tokens are 33.6 GB, which take 12.5 ms at 2.68 TB/s.
    long = profile.target.seconds(PassShape.of([(1, 999)] * 256))
    assert long - profile.target.seconds(PassShape.of([(1, 0)] * 256)) == pytest.approx(12.5e-3, abs=1e-4)
    assert any("assum" in note for note in profile.notes)


def test_a_drafter_without_a_time_on_the_targets_device_takes_as_long_there(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"name": "n", "target": {"fixed_seconds": 0.03}, "draft": {"fixed_seconds": 0.003}}))
    profile = read_profile(path)
    assert profile.colocated_draft == profile.draft == DeviceModel(fixed_seconds=0.003)
    assert profile.acceptance is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file"),
        ("not json", "the file"),
        ('{"name": "n", "target": {}}', "draft"),
        ('{"name": "n", "target": {"speed": 1}, "draft": {}}', "target.speed"),
        ('{"name": "n", "target": {"fixed_seconds": -1}, "draft": {}}', "target.fixed_seconds"),
        ('{"name": "n", "target": {"reading_efficiency": 1.5}, "draft": {}}', "target.reading_efficiency"),
        ('{"name": "n", "target": {}, "draft": {}, "acceptance": 2}', "acceptance"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProfileError, match=complaint) as raised:
        read_profile(path)
    assert str(path) in str(raised.value)
