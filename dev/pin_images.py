"""Pin third-party images to their digests, for a release: ``python dev/pin_images.py``.

A tag can move to another image, a digest cannot. Only the registry knows the digests, so this program asks it for each
release. With ``--check`` it changes nothing. It then lists the images without a digest and ends with exit code 1.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_IMAGE = r"(?P<image>[a-z][\w./-]*:[\w.-]+)"
_DIGEST = r"(?P<digest>@sha256:[0-9a-f]{64})?"
_LINES = (
    re.compile(rf"^(?P<before>(?:FROM |ARG BASE=)){_IMAGE}{_DIGEST}(?P<after>.*)$", re.MULTILINE),
    re.compile(rf"^(?P<before> +image: ){_IMAGE}{_DIGEST}(?P<after>)$", re.MULTILINE),
)
_KUSTOMIZE = re.compile(
    r"\{name: (?P<name>[\w./-]+), newTag: (?P<tag>[\w.-]+)(?:, digest: (?P<digest>sha256:[0-9a-f]{64}))?\}"
)
_TOPS = (
    "*",
    "compose/**/*",
    "dev/**/*",
    "examples/**/*",
    "extensions/*/*/*",
    "k8s/**/*",
    "migrations/*",
    "services/*/*",
)
OURS = "surelane-"


def files(root: Path) -> Iterator[Path]:
    """Return the files that may name images: Dockerfiles and YAML, also as templates of `surelane new`."""
    for top in _TOPS:
        for file in sorted(root.glob(top)):
            if file.is_file() and (file.name.startswith("Dockerfile") or ".yaml" in file.suffixes):
                yield file


@cache
def digest_of(image: str) -> str:
    """Ask the registry for the digest of a tag, the one of all platforms together."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - names from our files
    if found.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}", found.stdout.strip()):
        raise SystemExit(f"no digest of {image}: {found.stderr.strip() or found.stdout.strip()}")
    return found.stdout.strip()


def unpinned(text: str) -> Iterator[str]:
    """Return the images in a file that have no digest. Leave out our own, which are built from this tree."""
    for pattern in _LINES:
        yield from (match["image"] for match in pattern.finditer(text) if not match["digest"])
    for match in _KUSTOMIZE.finditer(text):
        if not match["digest"] and not match["name"].startswith(OURS):
            yield f"{match['name']}:{match['tag']}"


def pin(text: str) -> str:
    """Return the file's text with the current digest behind each tag."""
    for pattern in _LINES:
        text = pattern.sub(
            lambda match: f"{match['before']}{match['image']}@{digest_of(match['image'])}{match['after']}",
            text,
        )
    return _KUSTOMIZE.sub(_kustomized, text)


def _kustomized(match: re.Match[str]) -> str:
    name, tag = match["name"], match["tag"]
    if name.startswith(OURS):
        return match[0]
    return f"{{name: {name}, newTag: {tag}, digest: {digest_of(f'{name}:{tag}')}}}"


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python dev/pin_images.py", description=__doc__)
    arguments.add_argument(
        "--check", action="store_true", help="change nothing; list images without a digest"
    )
    arguments.add_argument("--root", type=Path, default=Path(), help="the repository's root")
    given = arguments.parse_args()
    if given.check:
        lacking = [f"{file}: {image}" for file in files(given.root) for image in unpinned(file.read_text())]
        print("\n".join(lacking) or "every image has a digest")
        sys.exit(bool(lacking))
    for file in files(given.root):
        file.write_text(pin(file.read_text()))


if __name__ == "__main__":
    main()
