/* The driver of an Ethos-U55, U65 or U85: one NPU, one job at a time.
 *
 * The board fills `tosaic_ethosu`'s config, calls tosaic_ethosu_init() once, calls tosaic_ethosu_interrupt() from the
 * NPU's interrupt handler, and hands `{tosaic_ethosu_run, &npu}` to the runtime as its tosaic_npu.
 */
#ifndef TOSAIC_ETHOSU_H
#define TOSAIC_ETHOSU_H

#include "tosaic.h"

/* What the driver needs of a board.
 *
 * `wait` is called in a loop while the job runs. It may return at any time; a sleep must also end if the interrupt came
 * just before it, which a tick of the clock takes care of. The cache functions are for a CPU with a data cache on memory
 * that the NPU uses, and may be NULL. With them, the scratch pool must begin and end at a multiple of a cache line:
 * invalidating a line forgets whatever else it holds.
 */
typedef struct tosaic_ethosu_config {
    uintptr_t base;         /* address of the registers */
    uint32_t queue_config;  /* QCONFIG: the port or memory attribute from which commands are read */
    uint32_t region_config; /* REGIONCFG: two bits for each of eight regions, an index into `limits` */
    uint32_t limits[4];     /* AXI_LIMIT0..3 of U55 and U65, MEM_ATTR0..3 of U85 */
    uint32_t time_limit;    /* the longest job, in ticks of `now` */
    uint32_t (*now)(void);  /* a free-running clock */
    void (*wait)(void);     /* sleeps until an interrupt: the NPU's, or a tick of the clock */
    void (*clean_cache)(const void *start, uint32_t size);      /* before the NPU reads what the CPU wrote */
    void (*invalidate_cache)(const void *start, uint32_t size); /* before the CPU reads what the NPU wrote */
} tosaic_ethosu_config;

#define TOSAIC_ETHOSU_MAX_COUNTERS 7u

/* What the performance counters counted, summed over all jobs since init. */
typedef struct tosaic_ethosu_counters {
    uint64_t cycles;
    uint64_t events[TOSAIC_ETHOSU_MAX_COUNTERS];
    uint32_t jobs;
} tosaic_ethosu_counters;

typedef struct tosaic_ethosu {
    tosaic_ethosu_config config;
    tosaic_ethosu_counters counters;
    uint32_t id;            /* the registers ID and CONFIG */
    uint32_t configuration;
    uint32_t event_count;   /* 4 on U55 and U65, 7 on U85; 0 before init */
    volatile bool done;     /* set by the interrupt, with the status word it found */
    volatile uint32_t status;
} tosaic_ethosu;

/* Finds the NPU and resets it. `npu->config` must be filled, all else zero. `detail` receives the number of a failure. */
tosaic_status tosaic_ethosu_init(tosaic_ethosu *npu, uint32_t *detail);

/* Runs one job; `context` is the tosaic_ethosu. */
tosaic_status tosaic_ethosu_run(void *context, const tosaic_npu_job *job, uint32_t *detail);

/* Handles the NPU's interrupt. */
void tosaic_ethosu_interrupt(tosaic_ethosu *npu);

/* Returns what a status word at the end of a job means: TOSAIC_OK, or the fault. */
tosaic_status tosaic_ethosu_judge(uint32_t status);

/* Returns the name of what counter `index` counts; NULL if there is no such counter. */
const char *tosaic_ethosu_get_event_name(const tosaic_ethosu *npu, uint32_t index);

#endif
