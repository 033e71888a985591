"""What of the tiers a GPU can do; without torch, for the process that reads the configuration."""

from __future__ import annotations

from dsruntime.tiers.settings import SettingsError, TierSettings


def require_possible(settings: TierSettings) -> None:
    """Refuse what only the CPU path can do yet.

    Raises:
        SettingsError: names the key.
    """
    refused = {
        f"experts: {settings.experts}": settings.experts == "w2-cache",
        "mapped_layers": bool(settings.mapped_layers),
        "gate_threshold": settings.gate_threshold is not None,
        "prefill_policy: ensure": settings.prefill_policy == "ensure",
    }
    for key, asked in refused.items():
        if asked:
            raise SettingsError(
                f"additional-config: dsruntime.{key}: not on a GPU yet, whose steps cannot be "
                "repeated; use w2-resident with a correction pool"
            )
