"""The programs inside images: the entrypoint's decisions, and what makes a tree the same twice."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from dsctl.image.inside import assemble
from dsctl.image.inside.serve import CACHES, cache_environment, device_key, driver_environment


def gpu(driver: Path, bdf: str, model: str) -> None:
    (driver / "gpus" / bdf).mkdir(parents=True)
    (driver / "gpus" / bdf / "information").write_text(f"Model: \t {model}\nIRQ: 7\n")


def test_without_a_driver_the_device_is_the_cpu(tmp_path: Path) -> None:
    assert device_key(tmp_path / "none") == "cpu"


def test_the_device_is_the_set_of_models(tmp_path: Path) -> None:
    gpu(tmp_path / "one", "0000:01:00.0", "NVIDIA RTX PRO 6000")
    gpu(tmp_path / "two", "0000:01:00.0", "NVIDIA RTX PRO 6000")
    gpu(tmp_path / "two", "0000:02:00.0", "NVIDIA RTX PRO 6000")
    gpu(tmp_path / "other", "0000:01:00.0", "NVIDIA GeForce RTX 5090")
    assert device_key(tmp_path / "one").startswith("nvidia-rtx-pro-6000-")
    assert device_key(tmp_path / "one") == device_key(tmp_path / "two")
    assert device_key(tmp_path / "one") != device_key(tmp_path / "other")


def test_triton_is_told_where_the_driver_s_library_lies(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    library = tmp_path / "driver" / "libcuda.so.1"
    build = ["gcc", "-shared", "-x", "c", "-o", str(library), "/dev/null"]
    subprocess.run(build, check=True)
    program = (
        "import os; from pathlib import Path\n"
        "from dsctl.image.inside.serve import driver_environment as found\n"
        "print(found(os.environ, Path('/proc/self/maps')))\n"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == repr({"TRITON_LIBCUDA_PATH": str(library.parent)})
    assert driver_environment({"TRITON_LIBCUDA_PATH": "/mine"}, tmp_path) == {}


def test_pips_cuda_is_completed_to_what_compilers_look_for(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcudart.so.13").write_text("library")
    for _ in range(2):  # again does no harm
        assemble.complete_toolkit(tmp_path, "/usr/lib64/libcuda.so.1")
    assert (tmp_path / "lib64" / "libcudart.so").read_text() == "library"
    assert (tmp_path / "lib" / "stubs" / "libcuda.so").readlink() == Path("/usr/lib64/libcuda.so.1")


def test_another_image_or_device_has_other_caches() -> None:
    trees = {
        cache_environment({"DSCTL_IMAGE": image}, Path("/cache"), device)["TRITON_CACHE_DIR"]
        for image in ("a", "b")
        for device in ("cpu", "gpu")
    }
    assert len(trees) == 4
    assert "/cache/a-cpu/triton" in trees


def test_every_cache_the_contract_names_has_a_place_and_a_set_one_is_kept() -> None:
    named = [
        "triton",
        "inductor",
        "flashinfer",
        "deepgemm",
        "tilelang",
        "cute",
        "cuda",
        "vllm",
        "hf",
    ]
    assert set(named) <= set(CACHES.values())
    made = cache_environment({"HF_HOME": "/mine", "HOME": "/"}, Path("/cache"), "cpu")
    assert "HF_HOME" not in made
    assert made["HOME"].startswith("/cache/")


def test_a_settled_tree_has_one_time_and_no_special_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "su").write_text("x")
    (tree / "bin" / "su").chmod(0o6777)
    (tree / "bin" / "link").symlink_to("su")
    assemble._settle(tree)
    assert (tree / "bin" / "su").stat().st_mode & 0o7777 == 0o755
    for path in (tree, tree / "bin", tree / "bin" / "su", tree / "bin" / "link"):
        assert path.lstat().st_mtime == 1000000000


def test_bytecode_has_no_time_in_it_and_is_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for when in (1, 2):
        tree = tmp_path / f"tree{when}" / "tree"
        tree.mkdir(parents=True)
        (tree / "good.py").write_text("def f(x):\n    return x in {'a', 'b', 'c'}\n")
        (tree / "template.py").write_text("{% not python %}\n")
        os.utime(tree / "good.py", (when, when))
        monkeypatch.chdir(tree.parent)
        assemble._compile(Path("tree"))
        (cached,) = (tree / "__pycache__").iterdir()
        found.append(cached.read_bytes())
    assert found[0] == found[1]
    flags = int.from_bytes(found[0][4:8], "little")
    assert flags == 0b01, "hash-based and unchecked"
    assert py_compile.PycInvalidationMode.UNCHECKED_HASH.value == 3


def test_of_documents_only_licences_stay(tmp_path: Path) -> None:
    documents = tmp_path / "doc"
    (documents / "thing").mkdir(parents=True)
    for name in ("copyright", "README", "changelog.gz"):
        (documents / "thing" / name).write_text(name)
    assemble._keep_licences(documents)
    assert [p.name for p in (documents / "thing").iterdir()] == ["copyright"]


def test_a_build_with_a_network_is_refused(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text("Iface\tDestination\tGateway\n")
    assemble.refuse_network(routes)
    with routes.open("a") as file:
        file.write("eth0\t00000000\t010011AC\n")
    with pytest.raises(SystemExit, match="--network none"):
        assemble.refuse_network(routes)
