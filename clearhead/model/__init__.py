"""Models: blocks of attention, feed-forward, norms and residuals; encoder, decoder, and both together."""
