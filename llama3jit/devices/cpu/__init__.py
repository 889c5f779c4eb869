"""The CPU device: a plan lowered to rows of addresses, walked by our own threads."""
