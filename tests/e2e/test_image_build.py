"""`dsctl image build` on a real Docker engine: offline, the same files twice, nothing superfluous.

What goes wrong on the way is one line with a remedy, and leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker import (
    DockerEngine,
    NoDockerError,
    ensure_base,
    own_daemon,
)
from tests.support.images import Images, run_dsctl

pytestmark = pytest.mark.docker

#: Digest of the engine's environment as it was built when its lock was made.
TREE = Path(__file__).parents[2] / "launcher" / "dsctl" / "data" / "locks" / "cpu.tree"

DIGEST_OF_TREE = """
import hashlib, os, stat, sys
state = hashlib.sha256()
for directory, names, files in os.walk("/opt/engine"):
    names.sort()
    for name in sorted([*files, *names]):
        path = os.path.join(directory, name)
        found = os.lstat(path)
        content = b""
        if stat.S_ISLNK(found.st_mode):
            content = os.readlink(path).encode()
        elif stat.S_ISREG(found.st_mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
        about = (path, found.st_mode, found.st_uid, found.st_gid, size, int(found.st_mtime))
        state.update(repr(about).encode() + content)
print(state.hexdigest())
"""


def layers(docker: DockerEngine, tag: str) -> list[str]:
    """Digests of the layers' files: names, content, modes, owners, times."""
    found: list[str] = json.loads(docker.docker("inspect", "-f", "{{json .RootFS.Layers}}", tag))
    return found


def files_of(docker: DockerEngine, tag: str) -> dict[str, tarfile.TarInfo]:
    """Every file of the image, read out of its layers."""
    found: dict[str, tarfile.TarInfo] = {}
    with tempfile.TemporaryFile() as saved:
        subprocess.run(
            [shutil.which("docker") or "docker", "save", tag],
            env=docker.env,
            stdout=saved,
            check=True,
            timeout=600,
        )
        saved.seek(0)
        with tarfile.open(fileobj=saved) as image:
            manifest = image.extractfile("manifest.json")
            assert manifest is not None
            for name in json.load(manifest)[0]["Layers"]:
                with tarfile.open(fileobj=image.extractfile(name)) as layer:
                    found |= {f"/{m.name.rstrip('/')}": m for m in layer}
    return found


def leftovers(docker: DockerEngine) -> set[str]:
    """What a build of ours could leave: unnamed images with our label, names of held bases."""
    unnamed = ("--filter", "dangling=true", "--filter", "label=dsctl.target")
    containers = docker.docker("ps", "-aq").split()
    used = docker.docker("inspect", "-f", "{{.Image}}", *containers) if containers else ""
    return {
        *(set(docker.docker("images", "-q", "--no-trunc", *unnamed).split()) - set(used.split())),
        *docker.docker("images", "dsctl/base", "--format", "{{.Tag}}").split(),
    }


def build_until(
    words: str, *arguments: str, env: dict[str, str]
) -> tuple[subprocess.Popen[str], str]:
    """Start `dsctl ARGUMENTS` and return when it says these words; also what it said until then."""
    build = subprocess.Popen(
        [str(Path(sys.executable).with_name("dsctl")), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert build.stderr is not None
    said = ""
    for line in build.stderr:
        said += line
        if words in line:
            return build, said
    raise AssertionError(f"it never said {words!r}: {said}")


# The gateway: small, so it is built twice.


def test_two_builds_have_the_same_files(images: Images, docker: DockerEngine) -> None:
    first = images.fetched("gateway")
    before, others = layers(docker, first["tag"]), leftovers(docker)
    docker.docker("tag", first["tag"], "dsctl/base:of-a-killed-build-99999999")
    again = images.build("gateway", "--offline", "--again")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert second["tag"] == first["tag"]
    assert layers(docker, second["tag"]) == before
    assert leftovers(docker) <= others, "what a killed build held is gone, too"


def test_the_gateway_has_nginx_and_no_shell_no_package_manager_no_special_bits(
    images: Images, docker: DockerEngine
) -> None:
    files = files_of(docker, images.ref("gateway")["tag"])
    programs = {name for name, m in files.items() if m.isfile() and "/bin/" in name + "/"}
    programs |= {name for name in files if name.startswith(("/usr/sbin/", "/usr/bin/"))}
    assert programs == {"/usr/sbin/nginx"}
    assert not [name for name, m in files.items() if m.isfile() and m.mode & 0o6000]
    writable = [n for n, m in files.items() if not m.issym() and m.mode & 0o002]
    assert writable == ["/tmp"]
    assert len({m.mtime for m in files.values()}) == 1
    assert "/usr/share/doc/nginx/copyright" in files


def test_what_the_image_says_it_consists_of_is_what_the_command_says(
    images: Images, docker: DockerEngine
) -> None:
    tag = images.ref("gateway")["tag"]
    made = docker.docker("create", tag)
    try:
        packed = subprocess.run(
            ["docker", "cp", f"{made}:/usr/share/dsctl/sbom.cdx.json", "-"],
            env=docker.env,
            capture_output=True,
            check=True,
            timeout=60,
        )
    finally:
        docker.docker("rm", made)
    with tempfile.TemporaryFile() as file:
        file.write(packed.stdout)
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            inside = tar.extractfile("sbom.cdx.json")
            assert inside is not None
            assert (
                inside.read().decode() == run_dsctl("image", "sbom", "--target", "gateway").stdout
            )


# The engine: built once for the whole run.


def test_the_engine_is_the_same_tree_that_its_lock_was_proved_with(
    images: Images, docker: DockerEngine
) -> None:
    tag = images.ref("cpu")["tag"]
    digest = docker.docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/opt/engine/bin/python", tag),
        *("-I", "-c", DIGEST_OF_TREE),
        timeout_s=600,
    )
    if images.own_locks:
        pytest.skip("built from newer Debian packages than those the tree was proved with")
    assert digest == TREE.read_text().split()[0]


def test_every_file_of_the_engine_has_the_one_time(images: Images, docker: DockerEngine) -> None:
    program = (
        "import os\n"
        "mounted = ('/proc', '/sys', '/dev')\n"  # and what Docker puts into every container:
        "given = ('/etc', '/etc/hosts', '/etc/hostname', '/etc/resolv.conf', '/etc/mtab')\n"
        "for directory, names, files in os.walk('/'):\n"
        "    names[:] = [n for n in names if os.path.join(directory, n) not in mounted]\n"
        "    for path in (os.path.join(directory, n) for n in [*names, *files]):\n"
        "        when = int(os.lstat(path).st_mtime)\n"
        "        if when != 1767225600 and path not in (*given, '/.dockerenv'):\n"
        "            print(path, when)\n"
    )
    tag = images.ref("cpu")["tag"]
    command = ("run", "--rm", "--network", "none", "--entrypoint", "python3", tag, "-c", program)
    assert docker.docker(*command) == ""


def test_the_engine_is_an_unprivileged_user_without_pip_or_compiler(
    images: Images, docker: DockerEngine
) -> None:
    tag = images.ref("cpu")["tag"]
    program = (
        "import os, pwd, shutil, importlib.util as u, sys\n"
        "print(os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name)\n"
        "print([p for p in 'pip gcc cc g++ apt dpkg curl bash perl'.split() if shutil.which(p)])\n"
        "print([m for m in ('pip', 'flit_core', 'dsctl') if u.find_spec(m)])\n"
        "print([m for m in ('vllm', 'torch', 'dsruntime') if not u.find_spec(m)])\n"
        "print([d for d in ('/cache', '/run/engine') if not os.access(d, os.W_OK)])\n"
        "print([d for d in ('/', '/opt/engine', '/etc', '/usr') if os.access(d, os.W_OK)])\n"
        "print(sorted(p for p in os.listdir('/usr/bin')), os.listdir('/usr/sbin'))\n"
    )
    told = docker.docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "python3", tag, "-c", program)
    )
    assert told.splitlines() == [
        "10001 10001 dsctl",
        *["[]"] * 5,
        "['dash', 'lscpu', 'python3.11', 'sh'] []",
    ]


def test_arguments_are_those_of_vllm_serve_and_caches_belong_to_image_and_device(
    images: Images, docker: DockerEngine
) -> None:
    image = images.ref("cpu")
    refused = subprocess.run(
        [
            *("docker", "run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp"),
            *("--tmpfs", "/cache:uid=10001", image["tag"], "/model", "--no-such-flag-as-this"),
        ],
        env=docker.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert refused.returncode == 2
    assert "--no-such-flag-as-this" in refused.stderr
    program = (
        "import runpy, os, sys\n"
        "sys.argv = ['serve']\n"
        "os.execve = lambda program, command, env: print(env['TRITON_CACHE_DIR'], os.umask(0))\n"
        "runpy.run_path('/usr/lib/dsctl/serve.py', run_name='__main__')\n"
    )
    told = docker.docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "python3"),
        *(image["tag"], "-c", program),
    )
    assert (
        told == f"/cache/{image['labels']['org.opencontainers.image.version']}-cpu/triton {0o007}"
    )


def test_the_list_says_what_is_inside_and_what_is_current(images: Images) -> None:
    images.ref("gateway")
    images.ref("cpu")
    listed = json.loads(run_dsctl("image", "list", "--format", "json").stdout)["images"]
    current = {image["target"]: image for image in listed if image["current"]}
    assert {"cpu", "gateway"} <= set(current)
    own = current["cpu"]["labels"]
    assert own["dsctl.vllm"] == "0.32.0"
    assert own["dsctl.torch"] == "2.13.0+cpu"
    for key in ("runtime", "kernels", "digest.lock", "digest.runtime", "base"):
        assert own[f"dsctl.{key}"]
    text = run_dsctl("image", "list")
    assert text.returncode == 0
    assert "0.32.0" in text.stdout


# What goes wrong.


def test_a_corrupted_wheel_is_named_with_both_hashes(images: Images, tmp_path: Path) -> None:
    images.fetched("gateway")
    shutil.copytree(images.wheelhouse / "debs", tmp_path / "debs")
    for wheel in [*images.wheelhouse.glob("pip-*"), *images.wheelhouse.glob("flit_core-*")]:
        shutil.copy(wheel, tmp_path)
    shutil.copy(images.wheelhouse / "SHA256SUMS", tmp_path)
    (wheel,) = tmp_path.glob("pip-*.whl")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with wheel.open("r+b") as file:
        file.seek(1000)
        file.write(b"\0\0\0\0")
    wrong = hashlib.sha256(wheel.read_bytes()).hexdigest()
    done = run_dsctl(
        *("image", "build", "--target", "gateway", "--offline", "--again"),
        *("--wheelhouse", str(tmp_path)),
    )
    assert done.returncode == 2
    assert f"{wheel} has the sha256 {wrong} and not {right}" in done.stderr
    assert "what to do:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_base_that_is_missing_or_another_is_said(images: Images, base_image: str) -> None:
    images.fetched("gateway")
    wrong = f"{base_image}@sha256:{'0' * 64}"
    for base, says in (("nobody/has:this", "is not on this machine"), (wrong, "is not sha256:000")):
        done = images.build("gateway", "--offline", "--again", "--base", base)
        assert done.returncode == 2, done.stderr
        assert says in done.stderr


def test_without_a_docker_engine_it_says_so_before_it_fetches(tmp_path: Path) -> None:
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    house = tmp_path / "house"
    done = run_dsctl(
        *("image", "build", "--target", "gateway", "--wheelhouse", str(house)), env=env
    )
    assert done.returncode == 1
    assert "Docker engine" in done.stderr
    assert "what to do:" in done.stderr
    assert not house.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build_leaves_nothing(
    images: Images, docker: DockerEngine, number: signal.Signals
) -> None:
    images.fetched("gateway")
    before = leftovers(docker)
    build, said = build_until(
        "unpacking",
        *("image", "build", "--target", "gateway", "--offline", "--again"),
        *("--wheelhouse", str(images.wheelhouse)),
        env=docker.env,
    )
    build.send_signal(number)
    assert build.wait(timeout=120) == 130, said
    assert leftovers(docker) <= before


@pytest.fixture
def fragile(images: Images) -> Iterator[DockerEngine]:
    """A Docker engine of our own with little room for layers, which may be ended."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a Docker engine, and dockerd must be installed")

    options = ("--bridge=none", "--iptables=false", "--storage-driver=overlay2")
    try:
        with own_daemon(*options) as engine:
            room = layers_of(engine)  # mounted now: a daemon unmounts what it finds when it starts
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", room], check=True)
            (room / "l").mkdir()
            ensure_base(engine)
            yield engine
    except NoDockerError as reason:
        pytest.skip(str(reason))


def layers_of(engine: DockerEngine) -> Path:
    """Where a daemon of our own keeps its layers."""
    return Path(engine.host.removeprefix("unix://")).parent / "data" / "overlay2"


def test_a_full_disk_and_an_engine_that_stops_half_way_leave_nothing(
    images: Images, fragile: DockerEngine
) -> None:
    images.fetched("gateway")
    command = ["image", "build", "--target", "gateway", "--offline"]
    command += ["--wheelhouse", str(images.wheelhouse)]
    before = leftovers(fragile)
    room = layers_of(fragile)
    used = shutil.disk_usage(room).used
    resize = ["mount", "-o", f"remount,size={used + (8 << 20)}", str(room)]
    subprocess.run(resize, check=True)

    full = run_dsctl(*command, env=fragile.env)
    assert full.returncode == 2, full.stderr
    assert "filled up while building" in full.stderr
    assert "docker builder prune" in full.stderr
    assert leftovers(fragile) == before
    assert not fragile.has_image("dsctl/gateway")

    subprocess.run(["mount", "-o", "remount,size=2g", str(room)], check=True)
    build, said = build_until("unpacking", *command, env=fragile.env)
    assert fragile.process is not None
    assert build.stderr is not None
    fragile.process.kill()  # at once: asked politely, it may still finish the build
    said += build.stderr.read()
    assert build.wait(timeout=120) == 1, said
    assert "engine stopped while building" in said
    assert "Traceback" not in said
