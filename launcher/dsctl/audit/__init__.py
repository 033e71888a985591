"""Tries to break what a deployment in containers promises, and says what held."""
