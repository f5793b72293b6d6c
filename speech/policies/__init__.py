"""Policies: which words of a hypothesis stay while the speaker goes on."""
