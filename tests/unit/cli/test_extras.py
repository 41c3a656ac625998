"""What is said of packages that are not installed with every millwheel."""

from __future__ import annotations

import sys

import pytest

from millwheel.cli.extras import check_cluster_packages, of_clusters
from millwheel.errors import ChannelError


@pytest.mark.parametrize("package", ["h2", "grpc", "google.protobuf", "cryptography"])
def test_a_package_that_clusters_need_is_named_before_anything_starts(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cluster_packages()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ChannelError, match=rf"^{package} is missing: pip install 'millwheel-streams\[cluster\]'$"):
        check_cluster_packages()


def test_an_import_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ChannelError, match="grpc is missing: pip install"), of_clusters():
        import grpc  # noqa: F401
