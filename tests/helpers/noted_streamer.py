"""A streamer for `generate` that notes what it is given."""

from transformers.generation.streamers import BaseStreamer


class NotedStreamer(BaseStreamer):
    """Its tokens, and how often a text ended."""

    def __init__(self):
        self.tokens, self.ended = [], 0

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended += 1
