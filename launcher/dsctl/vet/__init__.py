"""Vetting somebody else's image: what is in it, what it does when started, and a verdict.

`scan` and `layers` read the image without running it, `observe` and `trap` run it where nothing
can leave, `judge` decides from the two and the policy (pure), `vetfile` keeps the verdict sealed,
`accept` says whether a profile's image may be started.
"""
