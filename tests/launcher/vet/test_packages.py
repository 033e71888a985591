"""Packages are read from what package managers leave behind."""

from __future__ import annotations

from dsctl.vet.packages import apk, cuda, dpkg, packages_of, plugins_of, python

SITE = "opt/venv/lib/python3.12/site-packages"


def told(packages: object) -> list[str]:
    return [f"{p.name} {p.version}" for p in packages]  # type: ignore[attr-defined]


def test_dpkg_lists_what_is_installed_and_not_what_was_removed() -> None:
    status = (
        "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n"
        "Description: C\n Version: no\n"
        "\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
        "\nPackage: distroless\nVersion: 3\n"
    )
    assert told(dpkg(status)) == ["libc6 2.36-9", "distroless 3"]


def test_python_names_are_normal_and_the_description_is_not_read() -> None:
    metadata = "Metadata-Version: 2.1\nName: NVIDIA_nccl.cu12\nVersion: 2.27.5\n\nName: other\n"
    assert told(python(metadata)) == ["nvidia-nccl-cu12 2.27.5"]
    assert told(python("no header")) == []


def test_alpine_and_cuda() -> None:
    assert told(apk("C:Q1\nP:musl\nV:1.2.5-r0\n\nP:zlib\nV:1.3\n")) == ["musl 1.2.5-r0", "zlib 1.3"]
    assert told(cuda('{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}')) == ["cuda 13.0.2"]
    assert told(cuda("[]")) == told(cuda("{")) == []


def test_all_of_an_image_together() -> None:
    texts = {
        "var/lib/dpkg/status": "Package: a\nVersion: 1\n",
        f"{SITE}/vllm-0.32.0.dist-info/METADATA": "Name: vllm\nVersion: 0.32.0\n",
        "usr/local/cuda-13.0/version.json": '{"cuda": {"version": "13.0.2"}}',
    }
    found = packages_of(texts, [("libnccl", "2.28.3")])
    assert told(found) == ["a 1", "cuda 13.0.2", "libnccl 2.28.3", "vllm 0.32.0"]


def test_plugins_of_the_engine_are_named_with_what_they_load() -> None:
    texts = {
        f"{SITE}/b12x-1.5.1.dist-info/entry_points.txt": (
            "[console_scripts]\nx = y:z\n\n[vllm.general_plugins]\nb12x_loader = b12x.vllm:load\n"
        ),
        f"{SITE}/odd-1.dist-info/entry_points.txt": "not an ini file",
    }
    assert plugins_of(texts) == ("vllm.general_plugins: b12x_loader = b12x.vllm:load",)
