/* What the application needs of a board. A port writes board_init(), board_put() and board_find_npu(), in `board.c` of
 * its folder. */
#ifndef TOSAIC_BOARD_H
#define TOSAIC_BOARD_H

#include "ethosu.h"

/* Sets up clocks and the console. Called first; the timer and interrupts are not there yet. */
void board_init(void);

/* Writes one byte to the console. */
void board_put(char byte);

/* Finds the NPU: fills `npu->config`, initializes it and enables its interrupt. `runner` receives the function that runs
 * its jobs: tosaic_ethosu_run, or what the board has in its place. Most boards call board_start_npu(). */
tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail);

/* Finds the NPU at the address of board.toml, with the ports of the memory mode, and the CPU's timer, sleep and cache:
 * the application has it. `limits` are AXI_LIMIT0..3 or MEM_ATTR0..3, which only the board knows. */
tosaic_status board_start_npu(tosaic_ethosu *npu, tosaic_npu *runner, const uint32_t limits[4], uint32_t *detail);

/* The NPU's interrupt handler, for the vector table: the application has it. */
void board_handle_npu(void);

#endif
