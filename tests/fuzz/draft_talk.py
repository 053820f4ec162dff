"""What a hostile orchestrator says to a draft service: good commands, spoilt ones, old ones, and any."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from specdec.checksum import prefix_checksum
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import draft_pb2, model_pb2
from tests.fuzz.random_messages import RandomMessages
from tests.fuzz.target_talk import MAX_OPEN, PARAMS
from tests.tiny_models import TINY_VOCAB_SIZE

_REMEMBERED = 300


@dataclass
class Talked:
    """A sequence as the talker knows it."""

    sequence_id: bytes
    token_ids: list[int]
    prompt_length: int
    rule: model_pb2.AcceptanceRule.ValueType
    epoch: int = 1
    round: int = 0
    is_waiting: bool = True
    proposed: list[int] = field(default_factory=list)
    is_tree: bool = False


class DraftTalk:
    """Makes commands, and takes the answers so that it can go on with some sequences.

    Args:
        rng: all randomness comes from it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._random = RandomMessages(rng)
        self._sequences: dict[bytes, Talked] = {}
        self._said: list[draft_pb2.DraftCommand] = []

    def commands(self, count: int) -> list[draft_pb2.DraftCommand]:
        """So many, and some that close what would be too much."""
        commands = [self._command() for _ in range(count)]
        while len(self._sequences) > MAX_OPEN:
            commands.append(self._close(next(iter(self._sequences))))
        return commands

    def sentinel(self) -> draft_pb2.DraftCommand:
        """What is answered by the pass that answers the others."""
        command = draft_pb2.DraftCommand(sequence_id=self._rng.randbytes(16))
        command.open.epoch = command.open.prompt_length = command.open.num_draft_tokens = 1
        command.open.token_ids.append(1)
        command.open.sampling.CopyFrom(PARAMS[0].to_proto())
        command.open.acceptance_rule = ACCEPTANCE_RULES[0]
        return command

    def forget(self) -> None:
        """The stream has ended."""
        self._sequences.clear()

    def take(self, event: draft_pb2.DraftEvent) -> None:
        """An answer."""
        talked = self._sequences.get(event.sequence_id)
        if talked is None or event.epoch != talked.epoch:
            return
        if event.HasField("failed"):
            del self._sequences[event.sequence_id]
        elif event.HasField("proposal") and event.proposal.base_length == len(talked.token_ids):
            talked.proposed = list(event.proposal.token_ids)
            talked.is_tree = bool(event.proposal.parents)
            talked.is_waiting = False

    def _command(self) -> draft_pb2.DraftCommand:
        chance = self._rng.random()
        if chance < 0.55:
            command = self._good()
        elif chance < 0.80:
            is_new = chance < 0.75 or not self._said
            command = self._random.spoilt(self._good() if is_new else self._rng.choice(self._said))
        elif chance < 0.87 and self._said:
            command = self._rng.choice(self._said)
        else:
            command = self._random.message(draft_pb2.DraftCommand)
            if self._sequences and self._rng.random() < 0.3:
                command.sequence_id = self._rng.choice(list(self._sequences))
        self._said = [*self._said[-_REMEMBERED:], command]
        return command

    def _good(self) -> draft_pb2.DraftCommand:
        idle = [talked for talked in self._sequences.values() if not talked.is_waiting]
        chance = self._rng.random()
        if len(self._sequences) < MAX_OPEN and (len(idle) < MAX_OPEN // 4 or chance < 0.15):
            return self._open()
        if not idle and self._rng.random() < 0.9:
            return self._random.message(draft_pb2.DraftCommand)
        talked = self._rng.choice(idle or list(self._sequences.values()))
        return self._close(talked.sequence_id) if chance < 0.2 else self._commit(talked)

    def _open(self) -> draft_pb2.DraftCommand:
        prompt = [self._rng.randrange(TINY_VOCAB_SIZE) for _ in range(self._rng.choice((1, 2, 2, 5, 5, 20, 60, 300)))]
        talked = Talked(self._rng.randbytes(16), prompt, len(prompt), self._rng.choice(ACCEPTANCE_RULES))
        self._sequences[talked.sequence_id] = talked
        return draft_pb2.DraftCommand(
            sequence_id=talked.sequence_id,
            open=draft_pb2.DraftOpen(
                epoch=1,
                token_ids=prompt,
                prompt_length=len(prompt),
                sampling=self._rng.choice(PARAMS).to_proto(),
                acceptance_rule=talked.rule,
                num_draft_tokens=self._rng.choice((1, 2, 8)),
                max_draft_steps=self._rng.choice((0, 0, 1, 2)),
                tenant=self._rng.choice((b"", bytes(32))),
                max_length=self._rng.choice((0, 100)),
            ),
        )

    def _commit(self, talked: Talked) -> draft_pb2.DraftCommand:
        num_accepted = 0 if talked.is_tree else self._rng.randint(0, len(talked.proposed))
        base = len(talked.token_ids)
        talked.token_ids += [*talked.proposed[:num_accepted], self._rng.randrange(TINY_VOCAB_SIZE)]
        talked.proposed, talked.is_waiting = [], True
        talked.round += 1
        is_coupled = talked.rule == model_pb2.ACCEPTANCE_RULE_COUPLED
        return draft_pb2.DraftCommand(
            sequence_id=talked.sequence_id,
            commit=draft_pb2.DraftCommit(
                epoch=talked.epoch,
                round=talked.round,
                base_length=base,
                num_accepted_tokens=num_accepted,
                next_token_id=talked.token_ids[-1],
                committed_length=len(talked.token_ids),
                checksum=prefix_checksum(talked.token_ids),
                num_draft_tokens=self._rng.choice((1, 4, 8)),
                max_draft_steps=self._rng.choice((0, 0, 2)),
                draft_ahead=self._rng.random() < 0.5,
                max_candidates=self._rng.choice((0, 4)) if is_coupled else 0,
            ),
        )

    def _close(self, sequence_id: bytes) -> draft_pb2.DraftCommand:
        self._sequences.pop(sequence_id, None)
        return draft_pb2.DraftCommand(sequence_id=sequence_id, close=draft_pb2.DraftClose())
