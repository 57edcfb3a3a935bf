"""The records of the accelerators agree with the targets that can be compiled for."""

from tosaic.core import targets
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.npu.registers import Family


def test_every_target_has_a_record() -> None:
    assert list(ACCELERATORS) == list(targets.ACCELERATORS)
    for name, accelerator in ACCELERATORS.items():
        target = targets.ACCELERATORS[name]
        assert (accelerator.family.name.lower(), accelerator.macs) == (target.family, target.macs)


def test_macs_are_microblocks_of_all_cores() -> None:
    for accelerator in ACCELERATORS.values():
        names = ("U1X1", "U2X2", "U4X4") if accelerator.family is Family.U85 else ("",)
        for name in names:
            height, width, depth = accelerator.microblock or accelerator.find_microblock(name)
            assert height * width * depth * 8 * accelerator.parallel_microblocks == accelerator.macs
