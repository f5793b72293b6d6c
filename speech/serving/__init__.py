"""Recognisers behind HTTP: recordings, and speech while it is spoken, as clients of OpenAI and Deepgram send them."""
