"""The canary: a DeepSeek-V4 of a few million parameters that answers a few questions exactly."""
