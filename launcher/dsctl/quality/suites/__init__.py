"""The suites that ship, as YAML; `FROZEN` holds their digests."""
