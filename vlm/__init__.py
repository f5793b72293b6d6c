"""Faster language models and vision-language models: sparse prefill, selected and compressed caches."""
