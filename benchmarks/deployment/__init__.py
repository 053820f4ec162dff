"""The services as benchmarks run them: on chosen CPUs, with every forward pass logged, in one process or in several."""
