"""The explorer's server: a run, looked into from a browser on this machine."""
