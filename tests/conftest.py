"""For every test: one thread a forward pass, and no deadlines that a busy machine would miss."""

import os

import hypothesis

# Read when torch is imported, here and in the processes that tests start; tests without a model never import it.
os.environ["OMP_NUM_THREADS"] = "1"

hypothesis.settings.register_profile("specdec", deadline=None, derandomize=True)
hypothesis.settings.load_profile("specdec")
