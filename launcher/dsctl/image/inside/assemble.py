"""Puts together the parts of an image, the same bytes every time; runs in the build, offline.

assemble.py system   CONTEXT ROOT OUT   Debian's files, less what no image needs
assemble.py packages CONTEXT OUT        the engine's environment from the context's wheels
assemble.py runtime  CONTEXT OUT        our runtime, built from the context's source

CONTEXT is the part of the build context of that name; what it has in `files` goes to the root.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

#: Below /usr/share/doc only the licences stay.
UNUSED = (
    *("etc/apt", "etc/cron.daily", "etc/default", "etc/init.d", "etc/logrotate.d", "etc/pam.d"),
    *(
        "etc/nginx",
        "etc/ufw",
        "etc/systemd",
        "etc/update-motd.d",
        "usr/lib/systemd",
        "var/lib/nginx",
    ),
    *("usr/lib/x86_64-linux-gnu/perl", "usr/share/apport", "usr/share/bash-completion"),
    *("usr/share/bug", "usr/share/debconf", "usr/share/doc-base", "usr/share/info"),
    *("usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/menu"),
    *("usr/share/nginx", "usr/share/vim", "usr/share/python3"),
)
#: Of these packages only the named programs stay; base-files and the like bring none.
PROGRAMS = {"cpu": ("lscpu", "dash", "python3.11"), "gateway": ("nginx",)}
#: Name, uid and group of the accounts that images have.
ACCOUNTS = (
    ("root", 0, 0, "/root"),
    ("dsctl", 10001, 10001, "/cache"),
    ("gateway", 10002, 10001, "/tmp"),
    ("nobody", 65534, 65534, "/nonexistent"),
)
#: Where models and packs are mounted and other parts of the image go.
EMPTY = ("model", "packs", "opt/engine", "opt/dsruntime", "usr/lib/dsctl", "usr/share/dsctl")
#: What belongs to the engine: an empty volume mounted there takes the owner from here.
OWNED = ("cache", "run/engine")
#: A number that does not depend on the machine: which files a compiling process sees decides, in
#: rare cases, how the bytecode is written.
COMPILERS = 4
#: For programs that are run: no order that depends on chance, no bytecode by the way.
_SAME = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def system(context: Path, root: Path, out: Path) -> None:
    """Debian's files without documents, services and unused programs; accounts; our own files."""
    target = os.environ["TARGET"]
    shutil.copytree(root, out, symlinks=True)
    for name in UNUSED:
        shutil.rmtree(out / name, ignore_errors=True)
    _keep_licences(out / "usr/share/doc")
    if target in PROGRAMS:
        _keep_programs(out, PROGRAMS[target])
    if (out / "usr/bin/dash").exists():
        _link(out / "usr/bin/sh", "dash")
    if target == "cuda":
        _name_compilers(out / "usr/bin")
    _write_accounts(out / "etc")
    if target == "gateway":
        shutil.copytree(context / "files", out, dirs_exist_ok=True)
    else:
        for name in (*EMPTY, *OWNED):
            (out / name).mkdir(parents=True, exist_ok=True)
        _compile(out / "usr/lib/python3.11")
    _settle(out)
    (out / "tmp").chmod(0o1777)
    for name in OWNED:
        if (out / name).exists():
            os.chown(out / name, 10001, 10001)


def packages(context: Path, out: Path) -> None:
    """A virtual environment with exactly the lock's wheels, compiled, without pip."""
    _make_environment(out)
    wheels = ["--no-index", "--find-links", f"{context}/wheels", "--require-hashes"]
    _pip(out, context, [*wheels, "--only-binary=:all:", "-r", f"{context}/requirements.txt"])
    site = out / "lib/python3.11/site-packages"
    shutil.copytree(context / "site", site, dirs_exist_ok=True)
    for cuda in (out / "lib/python3.11/site-packages/nvidia").glob("cu1*"):
        complete_toolkit(cuda, "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    _compile(site)
    _settle(out)


def runtime(context: Path, out: Path) -> None:
    """Our runtime, a wheel built from its source and unpacked; and the image's own few files."""
    scratch = Path("/tmp/runtime")
    shutil.copytree(context / "source", scratch / "source")
    flit = next((context / "wheels").glob("flit_core-*.whl"))
    build = [sys.executable, "-m", "flit_core.wheel", f"--outdir={scratch}", f"{scratch}/source"]
    subprocess.run(build, check=True, env={**_SAME, "PYTHONPATH": str(flit)})
    wheel = next(scratch.glob("*.whl"))
    _make_environment(scratch / "venv")
    _pip(scratch / "venv", context, ["--no-index", "--target", str(out), str(wheel)])
    _compile(out)
    _settle(out)
    for place in ("usr/lib/dsctl", "usr/share/dsctl"):
        shutil.copytree(context / "files" / place, Path("/") / place, dirs_exist_ok=True)
        _settle(Path("/") / place)


def _make_environment(directory: Path) -> None:
    command = [sys.executable, "-I", "-B", "-m", "venv", "--without-pip", str(directory)]
    subprocess.run(command, check=True, env=_SAME)


def _pip(environment: Path, context: Path, arguments: list[str]) -> None:
    """Run the locked pip out of its wheel: it is never installed."""
    pip = next((context / "wheels").glob("pip-*.whl")) / "pip"
    command = [f"{environment}/bin/python", str(pip)]
    command += ["--disable-pip-version-check", "--no-input"]
    options = ["--no-deps", "--no-compile", "--no-cache-dir", "--root-user-action=ignore", "-q"]
    subprocess.run([*command, "install", *options, *arguments], check=True, env=_SAME)


def _compile(tree: Path) -> None:
    """Bytecode that is trusted by its name (no timestamps in it), by a fixed number of processes
    that each see a fixed share of the files."""
    for cache in list(tree.rglob("__pycache__")):
        shutil.rmtree(cache)
    files = sorted(str(path) for path in tree.rglob("*.py"))
    program = (
        "import py_compile, sys\n"
        "mode = py_compile.PycInvalidationMode.UNCHECKED_HASH\n"
        "for path in sys.stdin.read().splitlines():\n"
        "    try: py_compile.compile(path, dfile=path.removeprefix('/out'), doraise=True,"
        " invalidation_mode=mode)\n"
        "    except (py_compile.PyCompileError, ValueError): pass  # templates, other versions\n"
    )
    running = []
    for share in range(COMPILERS):
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-W", "ignore", "-c", program],
            stdin=subprocess.PIPE,
            text=True,
            env=_SAME,
        )
        assert process.stdin is not None
        process.stdin.write("\n".join(files[share::COMPILERS]))
        process.stdin.close()
        running.append(process)
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"compiling {tree} failed")


def _settle(tree: Path) -> None:
    """One time for everything, nothing writable for others, no set-user-id bits."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for directory, names, files in os.walk(tree, topdown=False):
        for name in [*names, *files]:
            path = Path(directory, name)
            if not path.is_symlink():
                mode = stat.S_IMODE(path.lstat().st_mode)
                path.chmod(mode & 0o755 | (0o111 if path.is_dir() else 0) | 0o444)
            os.utime(path, (epoch, epoch), follow_symlinks=False)
    os.utime(tree, (epoch, epoch))


def _keep_licences(documents: Path) -> None:
    for path in list(documents.rglob("*")):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()


def _keep_programs(out: Path, names: tuple[str, ...]) -> None:
    for directory in ("usr/bin", "usr/sbin"):
        for path in list((out / directory).iterdir()):
            if path.name not in names:
                path.unlink()


def _name_compilers(programs: Path) -> None:
    for name, target in (("cc", "gcc"), ("c++", "g++")):
        _link(programs / name, target)


def complete_toolkit(cuda: Path, driver: str) -> None:
    """pip's CUDA has `lib` and versioned libraries; those that compile look for `lib64`, `-lNAME`
    and a `libcuda` to link with, which the driver brings as `driver` (in a container when that
    starts)."""
    _link(cuda / "lib64", "lib")
    for library in sorted((cuda / "lib").glob("*.so.*")):
        _link(cuda / "lib" / f"{library.name.split('.so.')[0]}.so", library.name)
    (cuda / "lib" / "stubs").mkdir(exist_ok=True)
    _link(cuda / "lib" / "stubs" / "libcuda.so", driver)


def _link(path: Path, target: str) -> None:
    if not path.is_symlink() and not path.exists():
        path.symlink_to(target)


def _write_accounts(etc: Path) -> None:
    shell = "/usr/sbin/nologin"
    (etc / "passwd").write_text(
        "".join(f"{n}:x:{uid}:{gid}:{n}:{home}:{shell}\n" for n, uid, gid, home in ACCOUNTS)
    )
    groups = {gid: name for name, _, gid, _ in reversed(ACCOUNTS)} | {10001: "dsctl"}
    (etc / "group").write_text("".join(f"{n}:x:{gid}:\n" for gid, n in sorted(groups.items())))
    for name in ("hosts", "resolv.conf", "hostname"):  # containers get theirs mounted over these
        (etc / name).touch()
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def refuse_network(routes: Path) -> None:
    """Nothing of an image may come from anywhere but the context."""
    if len(routes.read_text().splitlines()) > 1:
        raise SystemExit("this build has a network; run it with `--network none`")


def main(arguments: list[str]) -> None:
    """Run the part that is named."""
    refuse_network(Path("/proc/net/route"))
    part, *paths = arguments
    parts: dict[str, Callable[..., None]] = {
        "system": system,
        "packages": packages,
        "runtime": runtime,
    }
    parts[part](*map(Path, paths))


if __name__ == "__main__":
    main(sys.argv[1:])
