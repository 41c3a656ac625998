"""Generate the Python of proto/*.proto: `python scripts/proto.py [DIRECTORY]`, by default into millwheel/transport/proto."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "millwheel" / "transport" / "proto"


def generate(into: Path) -> None:
    """One module and its types for each file.  There is no service code: `grpc_channels` has handlers for bytes."""
    files = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
    status = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={into}", f"--pyi_out={into}", *files])
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else GENERATED)
