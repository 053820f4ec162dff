"""A toy whose thread computes on after everything else has stopped, as a model that is being loaded would."""

import asyncio
import sys
import time

from specdec.serving.health import Health
from specdec.serving.process import run
from specdec.settings import ServiceSettings, load_settings
from tests.specdec.serving.toy_service import ToyService


class BusyToy(ToyService):
    async def start(self, health: Health) -> None:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 120)
        health.set_serving(True)


if __name__ == "__main__":
    sys.exit(run(BusyToy, load_settings(ServiceSettings, program="toy"), name="toy"))
