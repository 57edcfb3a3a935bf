/* The template of a board: every function that the application needs, in the order in which a port writes them. */
#include "board.h"

#include "board_config.h" /* BOARD_CLOCK, BOARD_UART, BOARD_NPU, BOARD_NPU_INTERRUPT: the numbers of board.toml */
#include "cortex_m.h"

/* Step 2: a console. Here a UART with a data, a state and a control register. */
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

/* Step 3: the NPU. Outstanding reads and writes of each port, less one, in the upper half: what the bus can take. */
#define AXI_LIMIT 0x0F1F0000u
#define TIME_LIMIT_MS 5000u

/* From the script of the memory mode: symbols whose addresses are the values. */
extern const char npu_queue_config[];
extern const char npu_region_config[];

tosaic_status board_find_npu(tosaic_ethosu *npu, tosaic_npu *runner, uint32_t *detail) {
    npu->config = (tosaic_ethosu_config){
        .base = BOARD_NPU,
        .queue_config = (uint32_t)(uintptr_t)npu_queue_config,
        .region_config = (uint32_t)(uintptr_t)npu_region_config,
        .limits = {AXI_LIMIT, AXI_LIMIT, AXI_LIMIT, AXI_LIMIT},
        .time_limit = TIME_LIMIT_MS,
        .now = cortex_get_milliseconds,
        .wait = cortex_sleep,
        /* Step 4: cache maintenance, for a CPU with a data cache on memory that the NPU uses. */
        .clean_cache = cortex_clean_cache,
        .invalidate_cache = cortex_invalidate_cache,
    };
    *runner = (tosaic_npu){tosaic_ethosu_run, npu};
    tosaic_status status = tosaic_ethosu_init(npu, detail);
    cortex_enable_interrupt(BOARD_NPU_INTERRUPT);
    return status;
}
