"""The recipe of `tiny-far`, which draws videos in blocks, and of the smaller model that drafts for it."""
