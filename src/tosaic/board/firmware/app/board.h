/* What the application needs of a board. A port writes these functions, in `board.c` of its folder. */
#ifndef TOSAIC_BOARD_H
#define TOSAIC_BOARD_H

#include "ethosu.h"

/* Sets up clocks and the console. Called first; the timer and interrupts are not there yet. */
void board_init(void);

/* Writes one byte to the console. */
void board_put(char byte);

/* Finds the NPU: fills `npu->config`, initializes it and enables its interrupt. `runner` receives the function that runs
 * its jobs: tosaic_ethosu_run, or what the board has in its place. */
tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail);

/* The NPU's interrupt handler, for the vector table: the application has it. */
void board_handle_npu(void);

#endif
