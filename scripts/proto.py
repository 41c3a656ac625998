"""Generate the Python of proto/*.proto: `python scripts/proto.py [ROOT]`, by default below the root of the repository."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "millwheel/transport/proto"
"""Where the code goes, and how the definitions are known: a process may load a user's channel.proto besides."""


def generate(into: Path) -> None:
    """One module and its types for each file.  There is no service code: handlers take bytes and give bytes."""
    files = sorted(f"{PACKAGE}/{path.name}" for path in (ROOT / "proto").glob("*.proto"))
    status = protoc.main(
        ["protoc", f"-I{PACKAGE}={ROOT / 'proto'}", f"--python_out={into}", f"--pyi_out={into}", *files]
    )
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
