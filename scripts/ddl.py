"""Write the migrations of `millwheel_storage.schema.ddl` out as SQL: `python scripts/ddl.py`.

A test fails as long as what is written is not what `ddl` says.
"""

from __future__ import annotations

from pathlib import Path

from millwheel_storage.schema import migrations
from millwheel_storage.schema.ddl import written

if __name__ == "__main__":
    Path(migrations.__file__).write_text(written(), encoding="utf-8")
