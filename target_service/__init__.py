"""The target service: verifies windows of draft tokens in one forward pass."""
