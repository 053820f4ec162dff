"""Several replicas of a service: where they are, which of them can be used, and which one takes a sequence."""
