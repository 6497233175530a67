"""Estimate what training takes on many GPUs: memory of each by part, bytes that they exchange, the time of a step.

A tool beside the package, for a checkout of this repository: `python -m estimator llama-7b --gpus 64`. It imports
clearhead, and clearhead imports nothing of it. estimator/README.md has examples, and how good the estimates are.
"""
