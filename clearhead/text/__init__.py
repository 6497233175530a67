"""Text: the user's files, tokenisers, token ids in memory-mapped files, and batches of them."""
