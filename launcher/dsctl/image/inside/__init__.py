"""Programs that run inside images or while they are built: standard library only, no dsctl."""
