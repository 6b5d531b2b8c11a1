"""Make everything of a release in ``dist/``, from a clean checkout: ``make release``.

Each time stamp is the commit's, so two runs on one commit make the same bytes. What it makes: the wheels and the source
archives of all packages, the images as OCI archives, a bill of materials for each image, the provenance, the
checksums and the notes. ``--no-images`` leaves the archives of the images out, which a Docker engine must build.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
IMAGES = {
    "ingest": ("services/ingest", "runtime"),
    "migrations": ("migrations", "migrations"),
    "operator": ("services/operator", "operator"),
    "simulator": ("dev", "runtime"),
    "worker": ("services/worker", "runtime"),
}
"""The directory of each image's Dockerfile, and the requirements that it installs."""
BUILD = "https://surelane.dev/release/v1"
"""The name of this way to build, in the provenance."""
NO_ENGINE = "no Docker engine answers: start one, or leave the images out by `make release IMAGES=no`"
NO_ARCHIVES = "this builder cannot write OCI archives: run `docker buildx create --use`, and try again"


def run(*command: str | Path, given: str | None = None, **variables: str) -> str:
    """Run a program in the checkout; return its output. If it fails, end with what it said."""
    done = subprocess.run(  # noqa: S603 - our own words
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, **variables},
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise SystemExit(NO_ARCHIVES if "OCI exporter is not supported" in said else f"{command[0]}: {said}")
    return done.stdout


def version() -> str:
    return str(tomllib.loads((ROOT / "shared/client/pyproject.toml").read_text())["project"]["version"])


def notes() -> str:
    """Return this version's section of the changelog. A candidate has the section of its release."""
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    held = {section.split(maxsplit=1)[0]: section.partition("\n")[2].strip() for section in sections}
    for name in (version(), Version(version()).base_version):
        if name in held:
            return f"{held[name]}\n"
    raise SystemExit(f"CHANGELOG.md has no section {version()}")


def bill(image: str, epoch: str) -> None:
    """Write the bill of materials of what an image adds to its base."""
    directory, requirements = IMAGES[image]
    own = tomllib.loads((ROOT / directory / "pyproject.toml").read_text())["project"]["dependencies"]
    ours = [name for name in own if name.startswith("surelane") and image != "simulator"]
    listed = "\n".join([(ROOT / f"requirements/{requirements}.txt").read_text(), *ours])
    run(
        *(Path(sys.executable).parent / "cyclonedx-py", "requirements", "--output-reproducible"),
        *("--pyproject", f"{directory}/pyproject.toml"),
        *("--output-file", DIST / f"surelane-{image}-{version()}.cdx.json", "-"),
        given=listed,
        SOURCE_DATE_EPOCH=epoch,
    )


def archive(image: str, epoch: str) -> None:
    """Build an image, as an OCI archive. Attestations beside it would differ at each build."""
    target = DIST / f"surelane-{image}-{version()}.oci.tar"
    run(
        *("docker", "buildx", "build", "--platform=linux/amd64", "--provenance=false", "--sbom=false"),
        *("--file", f"{IMAGES[image][0]}/Dockerfile", f"--build-arg=VERSION={version()}"),
        *(f"--output=type=oci,rewrite-timestamp=true,dest={target}", "."),
        SOURCE_DATE_EPOCH=epoch,
    )


def digests() -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(DIST.iterdir())}


def provenance(commit: str) -> str:
    """Return an in-toto statement of what was built from which commit, in the form of SLSA. Who publishes signs it."""
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests().items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": {"version": version(), "command": "make release"},
                "resolvedDependencies": [{"name": "source", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": BUILD}},
        },
    }
    return json.dumps(statement, indent=2) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python dev/release.py", description=__doc__)
    arguments.add_argument("--no-images", action="store_true", help="leave the images' archives out")
    images = () if arguments.parse_args().no_images else tuple(IMAGES)
    if changed := run("git", "status", "--porcelain"):
        raise SystemExit(f"commit these first, because a release is made of a commit:\n{changed.rstrip()}")
    if images and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:  # noqa: S607
        raise SystemExit(NO_ENGINE)
    commit = run("git", "rev-parse", "HEAD").strip()
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    text = notes()
    run("make", "--no-print-directory", "packages", SOURCE_DATE_EPOCH=epoch)
    for image in IMAGES:
        bill(image, epoch)
    for image in images:
        print(f"building surelane-{image}", file=sys.stderr)
        archive(image, epoch)
    (DIST / f"surelane-{version()}.provenance.json").write_text(provenance(commit))
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests().items())
    (DIST / "SHA256SUMS").write_text(sums)
    (DIST / "NOTES.md").write_text(text)
    print(sums, end="")


if __name__ == "__main__":
    main()
