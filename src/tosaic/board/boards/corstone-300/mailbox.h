/* The NPU of QEMU's model of the board: none. Jobs go to the host over UART 1, which runs them on the shared DDR. */
#ifndef TOSAIC_MAILBOX_H
#define TOSAIC_MAILBOX_H

#include "ethosu.h"

/* Asks the host for the NPU's ID and CONFIG, and fills `npu` with them. Returns false if no host answers. */
bool mailbox_init(tosaic_ethosu *npu);

/* Runs one job, in the place of tosaic_ethosu_run(); `context` is the tosaic_ethosu. */
tosaic_status mailbox_run(void *context, const tosaic_npu_job *job, uint32_t *detail);

#endif
