"""The two containers of a deployment: one description, printed as Compose, started by `up`."""
