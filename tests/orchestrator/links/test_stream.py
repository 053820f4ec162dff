"""How commands are cut into messages."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.links import stream
from orchestrator.links.stream import batches
from specdec.v1 import target_pb2


@given(st.lists(st.sampled_from([0, 10, 300_000, 2_000_000]), max_size=12))
def test_batches_keep_the_order_and_stay_under_the_limit(sizes: list[int]) -> None:
    commands = [target_pb2.TargetCommand(sequence_id=bytes(size)) for size in sizes]
    cut = batches(commands)
    assert [command for batch in cut for command in batch] == commands
    for batch in cut:
        assert batch
        assert len(batch) == 1 or sum(command.ByteSize() for command in batch) <= stream._MAX_BATCH_BYTES


def test_small_commands_share_a_message() -> None:
    assert len(batches([target_pb2.TargetCommand(sequence_id=bytes(16)) for _ in range(1000)])) == 1
