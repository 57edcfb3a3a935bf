/* Corstone-300: a Cortex-M55 with an Ethos-U55 or U65. QEMU's model of it (mps3-an547) has no NPU. */
#include "board.h"

#include "board_config.h"
#include "cortex_m.h"
#include "mailbox.h"

enum { UART_DATA = 0x00, UART_STATE = 0x04, UART_CONTROL = 0x08, UART_DIVIDER = 0x10 };
enum { STATE_FULL = 1 << 0, CONTROL_TRANSMIT = 1 << 0, DIVIDER_LEAST = 16 };

/* Outstanding reads and writes of a port: 32 and 16, less one. */
#define AXI_LIMIT 0x0F1F0000u
#define TIME_LIMIT_MS 10000u

/* From the script of the memory mode: symbols whose addresses are the values. */
extern const char npu_queue_config[];
extern const char npu_region_config[];

static volatile uint32_t *get_register(uint32_t offset) {
    return (volatile uint32_t *)(uintptr_t)(BOARD_UART + offset);
}

void board_init(void) {
    *get_register(UART_DIVIDER) = DIVIDER_LEAST;
    *get_register(UART_CONTROL) = CONTROL_TRANSMIT;
}

void board_put(char byte) {
    while ((*get_register(UART_STATE) & STATE_FULL) != 0) {
    }
    *get_register(UART_DATA) = (uint8_t)byte;
}

tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail) {
    npu->config = (tosaic_ethosu_config){
        .base = BOARD_NPU,
        .queue_config = (uint32_t)(uintptr_t)npu_queue_config,
        .region_config = (uint32_t)(uintptr_t)npu_region_config,
        .limits = {AXI_LIMIT, AXI_LIMIT, AXI_LIMIT, AXI_LIMIT},
        .time_limit = TIME_LIMIT_MS,
        .now = cortex_get_milliseconds,
        .wait = cortex_sleep,
        .clean_cache = cortex_clean_cache,
        .invalidate_cache = cortex_invalidate_cache,
    };
    *runner = (tosaic_npu){tosaic_ethosu_run, npu};
    tosaic_status status = tosaic_ethosu_init(npu, detail);
    if (status == TOSAIC_NPU_MISSING && *detail == 0 && mailbox_init(npu)) {
        runner->run = mailbox_run;
        return TOSAIC_OK;
    }
    cortex_enable_interrupt(BOARD_NPU_INTERRUPT);
    return status;
}
