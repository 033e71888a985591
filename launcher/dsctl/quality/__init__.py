"""Quality: frozen suites as data, runs that resume, loops told from long thought, blind grading."""
