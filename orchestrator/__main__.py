"""`python -m orchestrator`: the orchestrator's process."""

import os
import sys

# Before the import of gRPC, which reads it then: its C core writes lines of its own to standard error, past the chosen
# format, for each connection that fails.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from orchestrator.security import front_security
from orchestrator.service import GenerationService
from orchestrator.settings import OrchestratorSettings
from specdec.serving.process import run
from specdec.settings import load_settings


def main() -> int:
    """Run until a signal ends it; returns the exit status."""
    settings = load_settings(OrchestratorSettings, program="specdec orchestrator")
    return run(
        lambda: GenerationService(settings),
        settings,
        name="orchestrator",
        make_security=lambda: front_security(settings),
    )


if __name__ == "__main__":
    sys.exit(main())
