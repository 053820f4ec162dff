"""Models: finding them, converting GGUF files once, refusing what cannot be served, loading."""
