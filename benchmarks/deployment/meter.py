"""Between an engine and its model: logs every forward pass and, in a simulation, makes it last as long as it should."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.deployment.device_turns import DeviceTurns
from benchmarks.deployment.pass_log import Pass, PassLog
from benchmarks.simulation.acceptance_dial import AcceptanceDial
from benchmarks.simulation.clock import wait_until
from benchmarks.simulation.profile import DeviceModel, PassShape
from specdec.models.loading import LoadedModel
from specdec.runner.runner import ModelRunner, Work
from specdec.runner.visibility import row_depths

Forward = Callable[[Sequence[Work]], list[torch.Tensor]]


class PassMeter:
    """Measures the passes of one model.

    Args:
        log: where they are noted.
        turns: of the device that the model is on.
        device: what takes the time of a pass; None: the pass itself.
        time_scale: a simulated pass lasts so many times as long.
        dial: changes the logits of a drafter; None: as they are.
    """

    def __init__(
        self,
        log: PassLog,
        turns: DeviceTurns,
        *,
        device: DeviceModel | None = None,
        time_scale: float = 1.0,
        dial: AcceptanceDial | None = None,
    ) -> None:
        self._log = log
        self._turns = turns
        self._device = device
        self._time_scale = time_scale
        self._dial = dial
        self._model_began = 0.0
        self._model_cpu_seconds = 0.0
        self._meter_cpu_seconds = 0.0

    def watch(self, model: PreTrainedModel) -> None:
        """Time the model itself within the passes."""
        model.register_forward_pre_hook(self._enter_model)
        model.register_forward_hook(self._leave_model)

    def run(self, batch: Sequence[Work], forward: Forward) -> list[torch.Tensor]:
        """Run one pass in its turn; see `ModelRunner.forward`."""
        run_began = time.thread_time()
        shape = PassShape.of((len(work.token_ids), work.cache.length) for work in batch)
        planned = self._time_scale * self._device.seconds(shape) if self._device is not None else 0.0
        positions = [_positions(work) for work in batch] if self._dial is not None else []
        with self._turns:
            started, cpu_began = time.perf_counter(), time.thread_time()
            self._model_cpu_seconds = 0.0
            logits = forward(batch)
            forward_cpu_seconds = time.thread_time() - cpu_began
            if logits and logits[0].is_cuda:
                torch.cuda.synchronize()
            if self._dial is not None:
                self._dial.turn(logits, positions)
            computing = time.perf_counter() - started
            wait_until(started + planned)
            ended = time.perf_counter()
        self._log.add(
            Pass(
                started,
                ended,
                computing_seconds=computing,
                planned_seconds=planned,
                forward_cpu_seconds=forward_cpu_seconds,
                model_cpu_seconds=self._model_cpu_seconds,
                meter_cpu_seconds=self._meter_cpu_seconds,
                num_sequences=shape.num_sequences,
                num_rows=shape.num_rows,
            )
        )
        self._meter_cpu_seconds = time.thread_time() - run_began - forward_cpu_seconds
        return logits

    def _enter_model(self, model: torch.nn.Module, inputs: Any) -> None:
        self._model_began = time.thread_time()

    def _leave_model(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._model_cpu_seconds = time.thread_time() - self._model_began


def _positions(work: Work) -> list[int]:
    """Of the tokens that follow the rows whose logits are wanted, before they are run."""
    num_rows = len(work.token_ids)
    depths = row_depths(num_rows, work.parents)
    return [work.cache.length + depth + 1 for depth in depths[num_rows - work.num_logits :]]


def metered_runner(meter: PassMeter) -> type[ModelRunner]:
    """A `ModelRunner` whose passes go through a meter."""

    class MeteredRunner(ModelRunner):
        def __init__(self, model: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
            meter.watch(model)
            super().__init__(model, *args, **kwargs)

        def forward(self, batch: Sequence[Work]) -> list[torch.Tensor]:
            return meter.run(batch, super().forward)

    return MeteredRunner


def metered_making(
    meter: PassMeter, make: Callable[[LoadedModel], ModelRunner]
) -> Callable[[LoadedModel], ModelRunner]:
    """`make`, with the passes of the runners that it gives going through a meter, whatever their class."""

    def make_metered(loaded: LoadedModel) -> ModelRunner:
        meter.watch(loaded.model)
        runner = make(loaded)
        runner.forward = functools.partial(meter.run, forward=runner.forward)  # type: ignore[method-assign]
        return runner

    return make_metered
