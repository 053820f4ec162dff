"""`python -m draft_service.training`: train a draft, as a process."""

import logging
import sys

import torch

from draft_service.training.run import train_draft
from draft_service.training.settings import TrainingSettings
from specdec.logs import configure_logs
from specdec.models.errors import ModelError
from specdec.settings import load_settings

logger = logging.getLogger(__name__)


def main() -> int:
    """Read the settings and train until the time is over; returns the exit status."""
    settings = load_settings(TrainingSettings, program="specdec train-draft")
    configure_logs("text", "info", service="train-draft")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        train_draft(settings)
    except ModelError as error:
        logger.error("cannot train: %s", error)  # noqa: TRY400
        return 1
    except KeyboardInterrupt:
        logger.info("stopped; the same command goes on from the last checkpoint")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
