"""Programs with the data of their delegates in .ptd files."""

from __future__ import annotations

import pytest

from support.programs import make_external
from tosaic.api.program import Program
from tosaic.core.errors import Invalid
from tosaic.formats import blob, external, ptd, pte


@pytest.fixture(scope="module")
def program() -> Program:
    return make_external(("weights", "commands"))


@pytest.fixture(scope="module")
def whole() -> Program:
    return make_external(())


def test_blob_is_complete_again(program: Program, whole: Program) -> None:
    found = external.read(program.pte, tuple(program.data.values()))
    (delegate,) = found.find().delegates
    assert delegate.blob == whole.delegates[0].blob
    assert delegate.size == len(program.delegates[0].blob) < len(delegate.blob)
    assert found.size == len(program.pte)
    assert found.data_size == sum(map(len, program.data.values())) < found.taken


def test_each_file_has_its_own_part(program: Program) -> None:
    parts = blob.list_keys(program.delegates[0].blob)
    assert list(ptd.read(program.data["weights"]).named) == [parts["weight_data"]]
    assert list(ptd.read(program.data["commands"]).named) == [parts["cmd_data"]]


@pytest.mark.parametrize("missing", ["weights", "commands"])
def test_missing_file(program: Program, missing: str) -> None:
    files = [data for name, data in program.data.items() if name != missing]
    with pytest.raises(Invalid, match=f"the {missing} of an Ethos-U delegate are missing"):
        external.read(program.pte, files)


def test_file_of_another_program(program: Program) -> None:
    other = make_external(("weights", "commands"), "ethos-u85-256")
    with pytest.raises(Invalid, match="delegate are missing"):
        external.read(program.pte, tuple(other.data.values()))


@pytest.mark.parametrize("part", ["weights", "commands"])
def test_damaged_data_is_noticed(program: Program, part: str) -> None:
    """The runtime would not: it does not hash the data."""
    files = dict(program.data)
    files[part] = files[part][:-1] + bytes([files[part][-1] ^ 1])
    with pytest.raises(Invalid, match=f"the {part} of an Ethos-U delegate are damaged") as caught:
        external.read(program.pte, tuple(files.values()))
    assert "hash" in caught.value.why


def test_two_files_that_disagree(program: Program) -> None:
    weights = program.data["weights"]
    with pytest.raises(Invalid, match="two data files disagree"):
        external.read(program.pte, [*program.data.values(), weights[:-1] + bytes([weights[-1] ^ 1])])


def test_memory_of_the_data_is_counted(program: Program) -> None:
    taken = external.read(program.pte, tuple(program.data.values())).taken
    with pytest.raises(Invalid, match="bytes of memory"):
        external.read(program.pte, tuple(program.data.values()), max_memory=taken - 1)


def test_names_of_the_files(program: Program, whole: Program) -> None:
    assert list(external.list_file_names(pte.read(whole.pte), "net")) == []
    assert list(external.list_file_names(pte.read(program.pte), "net")) == [
        ("net.commands.ptd", "commands.ptd"),
        ("net.weights.ptd", "weights.ptd"),
    ]
    assert external.name_file("net", "flash.ptd") == "net.flash.ptd"


@pytest.mark.parametrize("placement", ["../x", "/etc/x", "a/b", "..", ".hidden", "a b", "x" * 101, "a\nb"])
def test_placement_that_is_no_file_name(program: Program, placement: str) -> None:
    with pytest.raises(Invalid, match="cannot be a file name"):
        external.name_file("net", placement)


def test_untrusted_placements_lead_to_no_other_folder(program: Program) -> None:
    changed = program.pte.replace(b'"weights"', b'"../wgts"')
    assert list(external.list_file_names(pte.read(changed), "net")) == [("net.commands.ptd", "commands.ptd")]


@pytest.mark.parametrize("text", [b'["cmd_data","commands",2]', b"{" * 20, b'{"cmd_data":7}'])
def test_untrusted_placements_of_other_kinds(program: Program, text: bytes) -> None:
    spec = b'{"cmd_data":"commands","weight_data":"weights"}'
    changed = pte.read(program.pte.replace(spec, text.ljust(len(spec))))
    if text.startswith(b"{{"):
        with pytest.raises(Invalid, match="not JSON"):
            list(external.list_file_names(changed, "net"))
    else:
        assert list(external.list_file_names(changed, "net")) == []
