"""The shape that the draft and the target engine share: one thread that owns the model, fed and drained by streams."""
