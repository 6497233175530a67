"""Decoding: caches, and greedy, sampled and beam search on them."""
