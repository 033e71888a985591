"""For the engine's environment; without torch, the parts that need it are not collected."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore = ["cpu", "experts", "engine", "support"]
else:
    import torch

    # The models here are so small that a second thread gains little, and where others use the
    # cores too, waiting for it costs tenfold.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on the path from which vLLM discovers our plugin, as an installed wheel would be.

    Also on ``PYTHONPATH``, with the repository's runtime, for the processes that vLLM starts.
    """
    root = tmp_path_factory.mktemp("site")
    info = root / "dsruntime-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dsruntime\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ndsruntime = dsruntime.plugin:register\n"
    )
    runtime = Path(__file__).parents[2] / "runtime"
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(root)
    paths = [str(root), str(runtime), os.environ.get("PYTHONPATH", "")]
    patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    patch.setenv("VLLM_PLUGINS", "dsruntime")
    patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    patch.setenv("VLLM_NO_USAGE_STATS", "1")
    patch.setenv("TORCH_COMPILE_DISABLE", "1")  # compiling vLLM's logprob helper takes 15 s
    patch.setenv("OMP_NUM_THREADS", "1")
    yield root
    patch.undo()
    sys.path_importer_cache.pop(str(root), None)
