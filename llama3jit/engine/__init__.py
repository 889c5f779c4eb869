"""Sequences, their KV blocks, and the loop that turns logits into tokens. Knows no text."""
