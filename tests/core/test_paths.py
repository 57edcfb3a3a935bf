"""The cache folder: the variable of our own, then the user's cache folder, then the home folder."""

from pathlib import Path

import pytest

from tosaic.core.paths import find_cache_folder


@pytest.mark.parametrize(
    ("own", "base", "expected"),
    [
        ("/a/cache", "/b", Path("/a/cache")),
        ("", "/b", Path("/b/tosaic")),
        ("", "", Path("/home/user/.cache/tosaic")),
    ],
)
def test_first_variable_that_is_set(monkeypatch: pytest.MonkeyPatch, own: str, base: str, expected: Path) -> None:
    monkeypatch.setenv("TOSAIC_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", "/home/user")
    assert find_cache_folder() == expected


def test_a_relative_folder_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOSAIC_CACHE", "cache")
    assert find_cache_folder() == tmp_path / "cache"
