"""Experiments: several models at one budget, side by side, and probe tasks that measure what one can do."""
