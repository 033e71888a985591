"""dsctl: launch, check, supervise and measure DeepSeek-V4-Flash at home or in a lab."""

__version__ = "0.1.0"
