"""Options for untrusted files, and places that are not written to."""

import errno
import os
import stat
from pathlib import Path

import pytest
import torch

from support.cli import Command
from tosaic.cli.guard import exit_code, explain
from tosaic.cli.size import parse_size
from tosaic.core.errors import Invalid


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("2G", 2 << 30),
        ("512m", 512 << 20),
        ("1.5KiB", 1536),
        ("1T", 1 << 40),
        ("10 ", 10),
        ("3MB", 3 << 20),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "two", "1X", "1GG"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(Invalid, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("command", ["compile", "run", "verify", "inspect", "diff", "fit", "advise"])
def test_every_command_that_reads_files_takes_a_limit(tosaic: Command, command: str) -> None:
    assert "--max-memory SIZE" in tosaic(command, "--help").stdout
    assert tosaic(command, "x.pte", "--max-memory", "lots").code == 2


@pytest.mark.parametrize("command", ["run", "verify", "inspect"])
def test_the_limit_holds_for_the_file_itself(tosaic: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "x.pte").write_bytes(bytes(5000))
    done = tosaic(command, tmp_path / "x.pte", "--max-memory", "4K")
    assert done.code == 2
    assert "needs 5,000 bytes of memory" in done.stderr and "`--max-memory`" in done.stderr


@pytest.mark.parametrize("command", ["run", "verify", "inspect"])
def test_devices_are_not_read(tosaic: Command, command: str) -> None:
    done = tosaic(command, "/dev/zero")
    assert done.code == 2 and "neither a file nor a pipe" in done.stderr


def test_a_device_is_not_replaced(tosaic: Command, tmp_path: Path) -> None:
    pipe = tmp_path / "x.pte"
    os.mkfifo(pipe)
    for arguments in (["-o", pipe], ["--header", pipe, "-o", tmp_path / "y.pte"]):
        done = tosaic("compile", "add", *arguments)
        assert done.code == 2 and "it is a pipe" in done.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode) and list(tmp_path.iterdir()) == [pipe]
    done = tosaic("compile", "add", "-o", tmp_path / "y.pte", "--header", tmp_path / "y.pte")
    assert done.code == 2 and "would be written twice" in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_full_disk_is_no_bug(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert explain(error) == f"error: {os.strerror(number)}"
    assert exit_code(error) == 2


def test_an_operator_has_to_be_allowed(tosaic: Command, tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._adaptive_avg_pool3d(x, [1, 1, 1])

    path = tmp_path / "x.pt2"
    torch.export.save(torch.export.export(Net(), (torch.randn(1, 2, 4, 4, 4),)), path)
    data = path.read_bytes()
    assert b"aten._adaptive_avg_pool3d" in data
    path.write_bytes(data)
    options = ["-t", "TOSA-1.0+FP", "--no-quantize", "-o", tmp_path / "x.pte"]
    assert tosaic("compile", path, *options).code == 0
    torch.export.save(torch.export.export(Unusual(), (torch.randn(4),)), path)
    done = tosaic("compile", path, *options)
    assert done.code == 2
    assert "calls `aten._efficientzerotensor`" in done.stderr
    assert "name `aten._efficientzerotensor` in `--allow-op`" in done.stderr
    assert "does not run" not in tosaic("compile", path, *options, "--allow-op", "aten._efficientzerotensor").stderr


class Unusual(torch.nn.Module):
    """Calls a private operator that is not core."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ops.aten._efficientzerotensor([4])
