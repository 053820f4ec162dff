"""Wrong variants of the production code, as people have written them, each switched on by patching; none may pass."""
