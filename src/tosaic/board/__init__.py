"""Boards: a Cortex-M with an Ethos-U, the firmware for it, and the places where that firmware runs.

What the firmware and every runner (virtual board, QEMU, FVP) agree on:

* The CPU starts from the vector table at `vectors` of the board's description.
* UART 0 carries the log. The byte 4 (EOT) ends it.
* Semihosting (`bkpt 0xab`) is the connection to the host: SYS_GET_CMDLINE returns `firmware -i FILE ... -o NAME`; the
  firmware reads the data of input k from the k-th FILE and writes that of output k to `NAME-k.bin`, bytes as in
  memory. SYS_EXIT_EXTENDED ends the run with an exit code: 0 done, 1 a test failed, 2 an error, which the log explains.
  Without `-i`, inputs are ones or the embedded samples.
* The ELF's sections are all the memory that the firmware uses, its stack and pools included. Symbol `tosaic_model` is
  the .pte, `tosaic_data_0` and so on are its .ptd files.
* QEMU has no NPU: the ID register reads 0. There the board's C file sends each `tosaic_npu_job` over UART 1 instead.
"""
