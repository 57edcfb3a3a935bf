/* The template of a board: every function that the application needs, in the order in which a port writes them. */
#include "board.h"

#include "board_config.h" /* BOARD_CLOCK, BOARD_UART, BOARD_NPU, BOARD_NPU_INTERRUPT: the numbers of board.toml */

/* A console. Here a UART with a data, a state and a control register, at BOARD_UART. */
enum { UART_DATA = 0x00, UART_STATE = 0x04, UART_CONTROL = 0x08, UART_DIVIDER = 0x10 };
enum { STATE_FULL = 1 << 0, CONTROL_TRANSMIT = 1 << 0 };

#define BAUD 115200u

static volatile uint32_t *get_register(uint32_t offset) {
    return (volatile uint32_t *)(uintptr_t)(BOARD_UART + offset);
}

void board_init(void) {
    *get_register(UART_DIVIDER) = BOARD_CLOCK / BAUD;
    *get_register(UART_CONTROL) = CONTROL_TRANSMIT;
}

void board_put(char byte) {
    while ((*get_register(UART_STATE) & STATE_FULL) != 0) {
    }
    *get_register(UART_DATA) = (uint8_t)byte;
}

/* The NPU. Outstanding reads and writes of each port, less one, in the upper half: what the bus can take. */
#define AXI_LIMIT 0x0F1F0000u

tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail) {
    static const uint32_t limits[4] = {AXI_LIMIT, AXI_LIMIT, AXI_LIMIT, AXI_LIMIT};
    return board_start_npu(npu, runner, limits, detail);
}
