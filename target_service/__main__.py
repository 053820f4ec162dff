"""`python -m target_service`: the target service as a process."""

import os
import sys

# Before the import of gRPC, which reads it then: its C core writes lines of its own to standard error, past the chosen
# format, for each connection that fails.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from specdec.huge_pages import ask_for_huge_pages
from specdec.models.errors import ModelError
from specdec.processors import choose_num_threads, run_on
from specdec.serving.process import run
from specdec.serving.service_security import service_security
from specdec.settings import load_settings
from target_service.settings import TargetSettings


def main() -> int:
    """Read the settings and serve until told to stop; returns the exit status."""
    settings = load_settings(TargetSettings, program="specdec target")
    run_on(settings.cpu_affinity)
    ask_for_huge_pages()

    # Only now: what imports PyTorch.
    import torch

    from specdec.models.loading import load_model
    from target_service.service import TargetService

    torch.set_num_threads(choose_num_threads(settings.num_threads, torch.get_num_threads()))

    def make_service() -> TargetService:
        return TargetService(
            settings,
            lambda: load_model(
                settings.model,
                dtype=settings.dtype,
                device=settings.device,
                max_context_length=settings.max_context_length,
                linear_kernel=settings.linear_kernel,
            ),
        )

    return run(
        make_service,
        settings,
        name="target",
        expected_errors=(ModelError,),
        make_security=lambda: service_security(settings),
    )


if __name__ == "__main__":
    sys.exit(main())
