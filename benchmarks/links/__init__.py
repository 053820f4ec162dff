"""Networks between processes of one machine: delay, jitter, bandwidth, cuts, freezes."""
