"""How the EAGLE-3 head of SmolLM2-135M-Instruct is trained."""
