from __future__ import annotations

from specdec.kernels.choosing import DEFAULT, ONE_COPY, PLAIN, TWO_COPIES, choose_kernels
from specdec.kernels.kernel import KernelName
from specdec.kernels.linear import ROW_COUNTS
from specdec.kernels.measuring import Seconds


def timed(**milliseconds: str) -> Seconds:
    """Times by number of rows, in the order of `ROW_COUNTS`; a dash where a kernel was not tried."""
    seconds: Seconds = {}
    names: list[KernelName] = ["default", "transposed", "batched", "packed", "convolution"]
    for name in names:
        if name in milliseconds:
            times = zip(ROW_COUNTS, milliseconds[name].split(), strict=True)
            seconds[name] = {count: float(time) / 1e3 for count, time in times if time != "-"}
    return seconds


# As on a Zen 4, one thread, 1536 x 576 in float32.
REAL = timed(
    default="9.7 15.2 12.3 14.3 17.8 44.7",
    transposed="9.9 5.3 7.1 - - -",
    batched="4.5 5.5 7.4 - - -",
    packed="6.4 6.8 7.7 9.3 11.8 35.7",
    convolution="7.5 6.8 6.6 7.4 11.2 35.8",
)


def test_the_fastest_for_each_number_of_rows() -> None:
    expected = ("batched", "transposed", *("convolution",) * 4)
    assert choose_kernels(REAL, TWO_COPIES).kernels == expected


def test_beyond_two_rows_packed_weights_come_before_what_seems_as_fast() -> None:
    seconds = timed(
        default="9.7 15.2 12.3 14.3 17.8 44.7",
        transposed="9.9 5.3 6.1 - - -",
        batched="4.5 5.5 6.0 - - -",
        packed="6.4 6.8 6.3 7.3 11.8 35.7",
    )
    assert choose_kernels(seconds, TWO_COPIES).kernels == ("batched", "transposed", *("packed",) * 4)
    assert choose_kernels(seconds, PLAIN).kernels[2] == "batched"


def test_with_one_copy() -> None:
    assert choose_kernels(REAL, ONE_COPY).kernels == ("convolution",) * 6


def test_with_a_weight_that_stays_as_it_is() -> None:
    assert choose_kernels(REAL, PLAIN).kernels == ("batched", "transposed", "transposed", *("default",) * 3)


def test_a_single_copy_that_is_best_everywhere_is_not_doubled() -> None:
    # As in bfloat16.
    seconds = timed(
        default="14.6 15.5 16.7 18.6 23.2 45", batched="22 23 23 - - -", packed="10.1 10.5 8.8 11.3 14.3 36"
    )
    assert choose_kernels(seconds, TWO_COPIES).kernels == ("packed",) * 6


def test_what_is_hardly_faster_is_not_worth_it() -> None:
    seconds = timed(default="10 10 10 10 10 10", transposed="9.8 9.8 9.8 - - -", packed="9.9 9.9 9.9 9.9 9.9 9.9")
    assert choose_kernels(seconds, TWO_COPIES) == DEFAULT
    seconds["packed"][8] = 0.001
    assert choose_kernels(seconds, TWO_COPIES).layouts != {"plain"}


def test_pytorch_alone() -> None:
    assert choose_kernels(timed(default="1 1 1 1 1 1"), TWO_COPIES) == DEFAULT


def test_in_words() -> None:
    assert str(choose_kernels(REAL, PLAIN)) == "batched 1, transposed 2 4, default 8 16 64"
