"""Long measurements of language and vision-language models."""
