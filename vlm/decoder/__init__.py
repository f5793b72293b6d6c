"""Methods on text decoders: sparse prefill and smaller caches."""
