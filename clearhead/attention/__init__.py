"""The heart: attention from parts. Similarity, weighting, masks, positions, heads; the reference; the kernels."""
