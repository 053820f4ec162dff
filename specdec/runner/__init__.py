"""The model runner: one forward pass over a ragged batch, shared by the draft and the target service."""
