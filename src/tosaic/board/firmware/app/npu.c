#include "board.h"

#include "board_config.h"
#include "cortex_m.h"

#define TIME_LIMIT_MS 10000u

/* From the script of the memory mode: symbols whose addresses are the values. */
extern const char npu_queue_config[];
extern const char npu_region_config[];

tosaic_status board_start_npu(tosaic_ethosu *npu, tosaic_npu *runner, const uint32_t limits[4], uint32_t *detail) {
    npu->config = (tosaic_ethosu_config){
        .base = BOARD_NPU,
        .queue_config = (uint32_t)(uintptr_t)npu_queue_config,
        .region_config = (uint32_t)(uintptr_t)npu_region_config,
        .limits = {limits[0], limits[1], limits[2], limits[3]},
        .time_limit = TIME_LIMIT_MS,
        .now = cortex_get_milliseconds,
        .wait = cortex_sleep,
        .clean_cache = cortex_clean_cache,
        .invalidate_cache = cortex_invalidate_cache,
    };
    *runner = (tosaic_npu){tosaic_ethosu_run, npu};
    tosaic_status status = tosaic_ethosu_init(npu, detail);
    cortex_enable_interrupt(BOARD_NPU_INTERRUPT);
    return status;
}
