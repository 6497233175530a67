"""Plots: pictures of a run as SVG files, drawn by matplotlib, which is imported when the first is drawn."""
