"""The manifests on this machine without Kubernetes: their commands, variables, probes, volumes and shutdown."""
