/* Corstone-320: a Cortex-M85 with an Ethos-U85. */
#include "board.h"

#include "board_config.h"
#include "uart.h"

enum { MEM_ATTR_SRAM = 0, MEM_ATTR_EXTERNAL = 1 << 2 }; /* the port; device memory, not shared */

void board_init(void) { uart_start(BOARD_UART, UART_LEAST_DIVIDER, UART_CONTROL_TRANSMIT); }

void board_put(char byte) { uart_put(BOARD_UART, (uint8_t)byte); }

tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail) {
    static const uint32_t limits[4] = {MEM_ATTR_SRAM, MEM_ATTR_SRAM, MEM_ATTR_EXTERNAL, MEM_ATTR_EXTERNAL};
    return board_start_npu(npu, runner, limits, detail);
}
