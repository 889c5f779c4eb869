"""Runs plans on an NVIDIA GPU: one CUDA graph for each shape of a batch, one launch a step."""
