"""dsctl's runtime inside the engine. Importing it imports neither torch nor vLLM."""

__version__ = "0.1.0"
