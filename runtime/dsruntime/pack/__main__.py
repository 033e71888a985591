"""`python -m dsruntime.pack build|verify|inspect|prune`.

The report is one JSON object on stdout (with `--format text`, lines for people). Progress and
errors go to stderr; with `--progress json` each is a JSON object on a line of its own:
`{"progress": {...}}`, `{"error": {"kind", "message", "remedy"}}`. Exit codes: 0 good, 1 the pack or
disk is not good, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from dsruntime.codec.layout import Correction
from dsruntime.pack import build as builder
from dsruntime.pack import generations, verify
from dsruntime.pack.checkpoint import open_checkpoint
from dsruntime.pack.errors import PackError, UnusableError
from dsruntime.pack.identity import DigestCache, checkpoint_digests, default_cache, require_same
from dsruntime.pack.manifest import Manifest, read_manifest
from dsruntime.pack.progress import Reporter, TextLines, human, json_lines


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # wind down, keep the journal
    report: Reporter = json_lines if options.progress == "json" else TextLines()
    try:
        code, result, lines = options.run(options, report)
    except PackError as error:
        _say_error(options, error)
        return 2 if error.usage else 1
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return 130
    if options.format == "json":
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(lines))
    return int(code)


_Result = tuple[int, dict[str, Any], list[str]]


def _build(options: argparse.Namespace, report: Reporter) -> _Result:
    built = builder.build(
        options.checkpoint,
        options.out,
        tensor_parallel=options.tp,
        correction=Correction(options.correction),
        draft=options.draft,
        threads=options.threads,
        cache=DigestCache(options.digest_cache),
        report=report,
    )
    result = {
        "pack": str(built.directory),
        "already_there": built.already_there,
        "identity": built.manifest.source.identity,
        "size_bytes": built.manifest.geometry.size_bytes,
    }
    done = "is there already" if built.already_there else "built"
    size = human(built.manifest.geometry.size_bytes)
    return 0, result, [f"{built.directory} {done}: {size}"]


def _verify(options: argparse.Namespace, report: Reporter) -> _Result:
    if options.repair and options.checkpoint is None:
        raise UnusableError("--repair needs --checkpoint", remedy="add --checkpoint DIR")
    found = verify.verify(
        options.pack,
        sample=options.sample,
        seed=options.seed,
        repair_from=options.checkpoint if options.repair else None,
        threads=options.threads,
        report=report,
    )
    if options.checkpoint is not None:
        checkpoint = open_checkpoint(options.checkpoint)
        cache = DigestCache(options.digest_cache)
        digests = checkpoint_digests(checkpoint, cache, known=found.manifest, report=report)
        require_same(found.manifest, checkpoint, digests)
    result = {
        "pack": str(options.pack),
        "good": found.good,
        "checked": found.checked,
        "rows": found.of,
        "bad": list(found.bad),
        "repaired": list(found.repaired),
    }
    lines = [f"bad: {name}" for name in found.bad]
    lines += [f"made again: {name}" for name in found.repaired]
    state = "good" if found.good else "NOT good"
    lines.append(f"{options.pack}: {state}; {found.checked} of {found.of} rows checked")
    return 0 if found.good else 1, result, lines


def _inspect(options: argparse.Namespace, report: Reporter) -> _Result:
    manifest = read_manifest(options.pack)
    result = summary(manifest) | {"pack": str(options.pack)}
    lines = [f"{key:<20} {_shown(key, value)}" for key, value in result.items() if key != "files"]
    for file in result["files"]:
        slot = human(file["slot_bytes"])
        lines.append(f"  {file['name']:<22} {human(file['size_bytes'])} ({slot} a row)")
    return 0, result, lines


def _prune(options: argparse.Namespace, report: Reporter) -> _Result:
    if not options.out.is_dir():
        raise UnusableError(f"{options.out} is no directory", remedy="name where the packs lie")
    entries = generations.list_entries(options.out)
    old = [entry for entry in entries if entry.old]
    agreed = bool(old) and (options.yes or (not options.dry_run and _asked(old)))
    try:
        freed = generations.remove(old) if agreed else 0
    except OSError as error:
        raise UnusableError(
            f"{error.filename} cannot be removed: {error.strerror}", remedy="remove it by hand"
        ) from None
    rows = [
        {
            "path": str(e.path),
            "size_bytes": e.size_bytes,
            "in_use": e.in_use,
            "old": e.old,
            "problem": e.problem,
            "built_at": e.manifest.built_at if e.manifest else None,
        }
        for e in entries
    ]
    result = {"entries": rows, "removed": agreed, "freed_bytes": freed}
    lines = [f"{'old ' if e.old else 'keep'} {e.path} {human(e.size_bytes)}" for e in entries]
    lines.append(f"freed {human(freed)}" if agreed else "nothing was removed")
    return 0, result, lines


def summary(manifest: Manifest) -> dict[str, Any]:
    """The sidecar without its long lists."""
    document = manifest.model_dump(mode="json", exclude={"digest", "files", "source"})
    document["identity"] = manifest.source.identity
    document["source_formats"] = manifest.source.formats
    document["shards"] = len(manifest.source.shards)
    document["size_bytes"] = manifest.geometry.size_bytes
    document["rows"] = manifest.geometry.rows
    document["files"] = [f.model_dump(mode="json", exclude={"rows"}) for f in manifest.files]
    return document


def _shown(key: str, value: Any) -> str:
    if key == "size_bytes":
        return human(value)
    if key == "model":
        layers = value["layers"]
        return (
            f"{len(layers)} layers ({layers[0]} … {layers[-1]}) of {value['experts']} experts, "
            f"hidden {value['hidden']}, intermediate {value['intermediate']}"
        )
    return str(value)


def _asked(old: list[generations.Entry]) -> bool:
    for entry in old:
        print(f"{entry.path}: {human(entry.size_bytes)}, {entry.old}", file=sys.stderr)
    print("remove these? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say_error(options: argparse.Namespace, error: PackError) -> None:
    if options.progress == "json":
        body = {"kind": error.kind, "message": error.message, "remedy": error.remedy}
        print(json.dumps({"error": body}), file=sys.stderr)
    else:
        print(f"{error.message}\n  what to do: {error.remedy}", file=sys.stderr)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--format", choices=("text", "json"), default="text")
    common.add_argument("--progress", choices=("text", "json"), default="text")
    common.add_argument("--threads", type=_positive, default=None)
    common.add_argument("--digest-cache", type=Path, default=default_cache())
    parser = argparse.ArgumentParser(prog="python -m dsruntime.pack", description=__doc__)
    commands = parser.add_subparsers(required=True)

    build = commands.add_parser("build", parents=[common], help="make a pack of a checkpoint")
    build.add_argument("--checkpoint", type=Path, required=True)
    build.add_argument("--out", type=Path, required=True)
    build.add_argument("--tp", type=_positive, default=1, help="ranks to split for")
    build.add_argument("--correction", choices=[*Correction], default=Correction.SPLIT)
    build.add_argument("--draft", action="store_true", help="also the experts of mtp.N")
    build.set_defaults(run=_build)

    check = commands.add_parser("verify", parents=[common], help="check rows against checksums")
    check.add_argument("pack", type=Path)
    check.add_argument("--sample", type=_positive, help="check that many rows instead of all")
    check.add_argument("--seed", type=int, default=0)
    check.add_argument("--checkpoint", type=Path, help="also check that the pack is of this one")
    check.add_argument("--repair", action="store_true", help="make bad rows again")
    check.set_defaults(run=_verify)

    inspect = commands.add_parser("inspect", parents=[common], help="what a pack is")
    inspect.add_argument("pack", type=Path)
    inspect.set_defaults(run=_inspect)

    prune = commands.add_parser("prune", parents=[common], help="remove old generations; asks")
    prune.add_argument("out", type=Path)
    prune.add_argument("--yes", action="store_true", help="do not ask")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.set_defaults(run=_prune)
    return parser


if __name__ == "__main__":
    sys.exit(main())
