"""What a hostile orchestrator says to a target: good commands, spoilt ones, old ones, and any."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from orchestrator.links.window_batches import single_verdicts
from specdec.checksum import prefix_checksum
from specdec.sampling.params import ACCEPTANCE_RULES, SamplingParams
from specdec.v1 import model_pb2, target_pb2
from tests.columns import in_columns
from tests.fuzz.random_messages import RandomMessages
from tests.fuzz.window_batches import many_of_nobody, spoil_all, spoil_one
from tests.tiny_models import TINY_VOCAB_SIZE

MAX_OPEN = 64
_REMEMBERED = 300
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(seed=7),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, typical_p=0.95, seed=3, num_logprobs=2),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.5),
    SamplingParams(seed=1, no_repeat_ngram_size=2, banned_token_ids=(5, 6), logit_bias={7: 3.0}),
    SamplingParams(seed=2, allowed_token_ids=(5, 6, 7), min_new_tokens=2, stop_token_ids=(5,)),
)


@dataclass
class Talked:
    """A sequence as the talker knows it."""

    sequence_id: bytes
    token_ids: list[int]
    prompt_length: int
    rule: model_pb2.AcceptanceRule.ValueType
    params: SamplingParams
    epoch: int = 1
    round: int = 0
    max_length: int = 0
    is_waiting: bool = True
    windows: dict[int, target_pb2.Window] = field(default_factory=dict)


class TargetTalk:
    """Makes commands, and takes the answers so that it can go on with some sequences.

    Args:
        rng: all randomness comes from it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._random = RandomMessages(rng)
        self._sequences: dict[bytes, Talked] = {}
        self._said: list[target_pb2.TargetCommand] = []

    def commands(self, count: int) -> list[target_pb2.TargetCommand]:
        """So many, and some that close what would be too much."""
        commands = [self._command() for _ in range(count)]
        while len(self._sequences) > MAX_OPEN:
            commands.append(self._close(next(iter(self._sequences))))
        return commands

    def sentinel(self) -> target_pb2.TargetCommand:
        """What is answered by the pass that answers the others."""
        talked = Talked(self._rng.randbytes(16), [1], 1, ACCEPTANCE_RULES[0], PARAMS[0], max_length=2)
        return self._opening(talked)

    def forget(self) -> None:
        """The stream has ended."""
        self._sequences.clear()

    def take(self, event: target_pb2.TargetEvent) -> None:
        """An answer; many in columns are taken one by one."""
        if event.HasField("verdicts"):
            for single in single_verdicts(event.verdicts):
                self.take(single)
            return
        talked = self._sequences.get(event.sequence_id)
        if talked is None or event.epoch != talked.epoch:
            return
        if event.HasField("failed"):
            del self._sequences[event.sequence_id]
            return
        verdict = event.opened.first if event.HasField("opened") else event.verdict
        if verdict.base_length != len(talked.token_ids):
            return
        window = talked.windows.get(event.round, target_pb2.Window())
        if any(node >= len(window.token_ids) for node in verdict.accepted_nodes):
            return  # It was spoilt.
        talked.token_ids += [*(window.token_ids[node] for node in verdict.accepted_nodes), verdict.next_token_id]
        talked.is_waiting = False

    def _command(self) -> target_pb2.TargetCommand:
        chance = self._rng.random()
        if chance < 0.55:
            command = self._good()
        elif chance < 0.80:
            is_new = chance < 0.75 or not self._said
            command = self._random.spoilt(self._good() if is_new else self._rng.choice(self._said))
        elif chance < 0.87 and self._said:
            command = self._rng.choice(self._said)
        else:
            command = self._random.message(target_pb2.TargetCommand)
            if self._sequences and self._rng.random() < 0.3:
                command.sequence_id = self._rng.choice(list(self._sequences))
        self._said = [*self._said[-_REMEMBERED:], command]
        return command

    def _good(self) -> target_pb2.TargetCommand:
        idle = [talked for talked in self._sequences.values() if not talked.is_waiting]
        chance = self._rng.random()
        if len(self._sequences) < MAX_OPEN and (len(idle) < MAX_OPEN // 4 or chance < 0.15):
            return self._open()
        if not idle and self._rng.random() < 0.9:
            return self._random.message(target_pb2.TargetCommand)
        talked = self._rng.choice(idle or list(self._sequences.values()))
        if chance < 0.2:
            return self._close(talked.sequence_id)
        if chance < 0.25:
            talked.epoch += 1
            return self._opening(talked)
        is_near = talked.params.allowed_token_ids and talked.round > 0
        if len(idle) > 1 and chance > 0.7:
            return self._batch(idle)
        return self._candidates(talked) if is_near and chance < 0.5 else self._window(talked)

    def _open(self) -> target_pb2.TargetCommand:
        prompt = [self._rng.randrange(TINY_VOCAB_SIZE) for _ in range(self._rng.choice((1, 2, 2, 5, 5, 20, 60)))]
        rule, params = self._rng.choice((ACCEPTANCE_RULES[0], *ACCEPTANCE_RULES)), self._rng.choice(PARAMS)
        talked = Talked(self._rng.randbytes(16), prompt, len(prompt), rule, params)
        talked.max_length = len(prompt) + self._rng.choice((1, 2, 10, 100))
        self._sequences[talked.sequence_id] = talked
        return self._opening(talked)

    def _opening(self, talked: Talked) -> target_pb2.TargetCommand:
        talked.is_waiting = True
        return target_pb2.TargetCommand(
            sequence_id=talked.sequence_id,
            open=target_pb2.TargetOpen(
                epoch=talked.epoch,
                token_ids=talked.token_ids,
                prompt_length=talked.prompt_length,
                sampling=talked.params.to_proto(),
                acceptance_rule=talked.rule,
                max_length=talked.max_length,
                round=talked.round,
                feature_states=self._rng.choice(((), (), (1,), (1, 2))),
                max_feature_tokens=self._rng.choice((0, 1, 64)),
                tells_features_early=self._rng.random() < 0.5,
            ),
        )

    def _batch(self, idle: list[Talked]) -> target_pb2.TargetCommand:
        """Windows of several sequences, and in half of the cases something wrong with one of them or with all."""
        asked = self._rng.sample(idle, min(len(idle), self._rng.choice((2, 3, 3, 8))))
        command = in_columns([self._window(talked, is_plain=True) for talked in asked])
        chance = self._rng.random()
        if chance < 0.25:
            spoil_one(self._rng, command.windows)
        elif chance < 0.5:
            (many_of_nobody if chance < 0.26 else spoil_all)(self._rng, command.windows)
            # Nobody learns of these: what is refused is all of them, for no sequence.
            for talked in asked:
                talked.is_waiting = False
        return command

    def _window(self, talked: Talked, *, is_plain: bool = False) -> target_pb2.TargetCommand:
        talked.round += 1
        talked.is_waiting = True
        tokens = [self._rng.randrange(TINY_VOCAB_SIZE) for _ in range(self._rng.choice((0, 0, 1, 3, 8)))]
        parents: list[int] = []
        if not is_plain and talked.rule == model_pb2.ACCEPTANCE_RULE_COUPLED and self._rng.random() < 0.5:
            tokens = list(dict.fromkeys(tokens))
            parents = [self._rng.randrange(-1, node) for node in range(len(tokens))]
        window = target_pb2.Window(
            epoch=talked.epoch,
            round=talked.round,
            base_length=len(talked.token_ids),
            checksum=prefix_checksum(talked.token_ids),
            token_ids=tokens,
            parents=parents,
        )
        if not is_plain and talked.rule != model_pb2.ACCEPTANCE_RULE_COUPLED and self._rng.random() < 0.5:
            for token in tokens:
                other = (token + 1) % TINY_VOCAB_SIZE
                window.distributions.add(token_ids=[token, other], weights=[self._rng.randint(1, 1 << 31), 1])
        talked.windows = {talked.round: window}
        return target_pb2.TargetCommand(sequence_id=talked.sequence_id, window=window)

    def _candidates(self, talked: Talked) -> target_pb2.TargetCommand:
        """For all that may come of an empty window, so that the target goes on by itself; that is not followed."""
        self._sequences.pop(talked.sequence_id)
        last = target_pb2.CandidateWindows(
            epoch=talked.epoch,
            round=talked.round + 1,
            base_length=len(talked.token_ids) - (0 if talked.is_waiting else 1),
            checksum=prefix_checksum(talked.token_ids if talked.is_waiting else talked.token_ids[:-1]),
        )
        for token in talked.params.allowed_token_ids:
            drafts = [self._rng.choice(talked.params.allowed_token_ids) for _ in range(self._rng.randrange(4))]
            last.windows.add(num_accepted_tokens=0, next_token_id=token, token_ids=drafts)
        return target_pb2.TargetCommand(sequence_id=talked.sequence_id, candidates=last)

    def _close(self, sequence_id: bytes) -> target_pb2.TargetCommand:
        self._sequences.pop(sequence_id, None)
        return target_pb2.TargetCommand(sequence_id=sequence_id, close=target_pb2.TargetClose())
