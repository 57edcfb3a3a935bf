/* Corstone-300: a Cortex-M55 with an Ethos-U55 or U65. QEMU's model of it (mps3-an547) has no NPU. */
#include "board.h"

#include "board_config.h"
#include "mailbox.h"
#include "uart.h"

/* Outstanding reads and writes of a port: 32 and 16, less one. */
#define AXI_LIMIT 0x0F1F0000u

void board_init(void) { uart_start(BOARD_UART, UART_LEAST_DIVIDER, UART_CONTROL_TRANSMIT); }

void board_put(char byte) { uart_put(BOARD_UART, (uint8_t)byte); }

tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail) {
    static const uint32_t limits[4] = {AXI_LIMIT, AXI_LIMIT, AXI_LIMIT, AXI_LIMIT};
    tosaic_status status = board_start_npu(npu, runner, limits, detail);
    if (status == TOSAIC_NPU_MISSING && *detail == 0 && mailbox_init(npu)) {
        runner->run = mailbox_run;
        return TOSAIC_OK;
    }
    return status;
}
