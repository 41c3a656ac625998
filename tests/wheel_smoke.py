"""What the built wheel must do in an empty venv; scripts/wheel_test.py runs it there, as a program."""

from importlib.metadata import version

import millwheel
import millwheel_injectors
import millwheel_storage

if __name__ == "__main__":
    for package in (millwheel, millwheel_storage, millwheel_injectors):
        print(f"{package.__name__}: {package.__file__}")
    print(f"millwheel {version('millwheel')}")
