"""Bench: speed of prefill and decode measured honestly, two arms compared, charts."""
