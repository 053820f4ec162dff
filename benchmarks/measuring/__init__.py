"""What the benchmarks share: prompts, measurements, the sides that are compared."""
