"""`python -m dsctl` is `dsctl`."""

from dsctl.cli import main

main()
