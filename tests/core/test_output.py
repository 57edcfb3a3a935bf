"""Where results may be written, and what is left if writing fails."""

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tosaic.core.errors import Invalid
from tosaic.core.output import write_files


def _list(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        null = Path("/dev/null")
    with pytest.raises(Invalid, match="cannot write") as caught:
        write_files({null: b"x"})
    assert "it is a device" in caught.value.why
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_pipe_a_folder_and_an_open_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with (tmp_path / "open").open("wb") as file:
        places = [tmp_path / "pipe", tmp_path / "folder", tmp_path / "link", Path(f"/proc/self/fd/{file.fileno()}")]
        for path in places:
            with pytest.raises(Invalid, match="cannot write"):
                write_files({tmp_path / "other": b"x", path: b"x"})
    assert _list(tmp_path) == ["folder", "link", "open", "pipe"]


def test_a_symlink_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/file")
    (tmp_path / "second").symlink_to("link")
    for data in (b"one", b"two"):
        write_files({tmp_path / "second": data})
        assert (tmp_path / "real" / "file").read_bytes() == data
    assert (tmp_path / "link").is_symlink() and (tmp_path / "second").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Invalid, match="cannot write"):
        write_files({tmp_path / "loop": b"x"})


def test_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12346)
    before = path.stat()
    write_files({path: b"new"})
    after = path.stat()
    assert path.read_bytes() == b"new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    write_files({tmp_path / "fresh": b"x"})
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o666 & ~mask


def test_two_names_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    with pytest.raises(Invalid, match="two results have the same name"):
        write_files({tmp_path / "x": b"1", tmp_path / "link": b"2"})
    assert _list(tmp_path) == ["link"]


def test_threads_do_not_collide(tmp_path: Path) -> None:
    failed: list[Exception] = []

    def save(number: int) -> None:
        try:
            for _ in range(50):
                write_files({tmp_path / "x": bytes([number]) * 5000, tmp_path / "y": b"y"})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(set((tmp_path / "x").read_bytes())) == 1
    assert _list(tmp_path) == ["x", "y"]


FULL = """
import resource, sys
from pathlib import Path
from tosaic.core.output import write_files
from tosaic.core.errors import Invalid
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    write_files({Path(sys.argv[1]): b"x" * 10, Path(sys.argv[2]): b"x" * 5000})
except Invalid as error:
    print(error, error.exit_code)
"""


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(b"old")
    command = [sys.executable, "-c", FULL, str(tmp_path / "x"), str(tmp_path / "y")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"cannot write `{tmp_path / 'y'}`" in done.stdout, done.stderr
    assert os.strerror(errno.EFBIG) in done.stdout and done.stdout.strip().endswith("2")
    assert [(tmp_path / name).read_bytes() for name in ("x", "y")] == [b"old", b"old"]
    assert _list(tmp_path) == ["x", "y"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_what_was_replaced_comes_back_if_a_later_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, bad = tmp_path / "old", tmp_path / "new", tmp_path / "bad"
    old.write_bytes(b"old")
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name == "bad":
            raise OSError(errno.EACCES, "denied")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Invalid, match=r"cannot write `.*bad`"):
        write_files({old: b"x", new: b"x", bad: b"x"})
    assert old.read_bytes() == b"old"
    assert _list(tmp_path) == ["old"]
