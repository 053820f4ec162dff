"""`python -m draft_service`: the draft service as a process."""

import os
import sys

# Before the import of gRPC, which reads it then: its C core writes lines of its own to standard error, past the chosen
# format, for each connection that fails.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from draft_service.settings import DraftSettings
from specdec.huge_pages import ask_for_huge_pages
from specdec.models.errors import ModelError
from specdec.processors import choose_num_threads, run_on
from specdec.serving.process import run
from specdec.serving.service_security import service_security
from specdec.settings import load_settings


def main() -> int:
    """Read the settings and serve until told to stop; returns the exit status."""
    settings = load_settings(DraftSettings, program="specdec draft")
    run_on(settings.cpu_affinity)
    ask_for_huge_pages()

    # Only now: what imports PyTorch.
    import torch

    from draft_service.drafters.making import make_drafter
    from draft_service.service import DraftService

    torch.set_num_threads(choose_num_threads(settings.num_threads, torch.get_num_threads()))

    def make_service() -> DraftService:
        return DraftService(settings, lambda: make_drafter(settings))

    return run(
        make_service,
        settings,
        name="draft",
        expected_errors=(ModelError,),
        make_security=lambda: service_security(settings),
    )


if __name__ == "__main__":
    sys.exit(main())
