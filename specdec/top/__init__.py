"""A running system at a glance, from what its processes serve to Prometheus."""
