#include "ethosu.h"

#include <stdatomic.h>

#include "bytes.h"
#include "memory.h"

/* ---- Registers ------------------------------------------------------------------------------------------------- */

enum {
    ID = 0x00,
    STATUS = 0x04,
    CMD = 0x08,
    RESET = 0x0C,
    QBASE = 0x10,
    QCONFIG = 0x1C,
    QSIZE = 0x20,
    PROT = 0x24,
    CONFIG = 0x28,
    POWER_CTRL = 0x38, /* U85 */
    REGIONCFG = 0x3C,
    LIMIT0 = 0x40, /* AXI_LIMIT0..3, on U85 MEM_ATTR0..3 */
    AXI_SRAM = 0x50, /* U85 */
    AXI_EXT = 0x54,  /* U85 */
    BASEP0 = 0x80
};

/* Offsets from the base of the performance counters. */
enum {
    PMU_BASE = 0x180,
    PMU_BASE_U85 = 0x1180,
    PMCR = 0x00,
    PMCNTENSET = 0x04,
    PMCCNTR = 0x20,
    PMCCNTR_CFG = 0x28,
    PMEVCNTR0 = 0x180,
    PMEVTYPER0 = 0x200
};

enum {
    STATUS_BUS_FAULT = 1 << 2,
    STATUS_RESET = 1 << 3,
    STATUS_PARSE_FAULT = 1 << 4,
    STATUS_END_REACHED = 1 << 5,
    STATUS_WEIGHT_FAULT = 1 << 7, /* on U85 a failed branch */
    STATUS_ECC_FAULT = 1 << 8,
    CMD_RUN = 1 << 0,
    CMD_CLEAR_INTERRUPT = 1 << 1,
    CMD_CLOCK_AND_POWER = 3 << 2,
    PRIVILEGED_SECURE = 1, /* of RESET and PROT: bit 0 privileged, bit 1 not secure */
    PMCR_ENABLE_AND_RESET = 7
};

#define PMCNTENSET_CYCLES (1u << 31)
#define AXI_64_READS_32_WRITES 0x00001F3Fu
#define RESET_POLLS 100000u
/* The parts of CONFIG that a command stream depends on: product, MACs, versions, memories. */
#define CONFIG_MASK 0xF000FFFFu
#define CONFIG_CUSTOM_DMA (1u << 27)

typedef enum family { U55 = 0, U65 = 1, U85 = 2 } family;

static uint32_t get(const tosaic_ethosu *npu, uint32_t offset) {
    return *(volatile uint32_t *)(npu->config.base + offset);
}

static void set(const tosaic_ethosu *npu, uint32_t offset, uint32_t value) {
    *(volatile uint32_t *)(npu->config.base + offset) = value;
}

static void set_address(const tosaic_ethosu *npu, uint32_t offset, const void *address) {
    set(npu, offset, (uint32_t)(uintptr_t)address);
    set(npu, offset + 4, (uint32_t)((uint64_t)(uintptr_t)address >> 32));
}

static family get_family(const tosaic_ethosu *npu) { return (family)(npu->configuration >> 28); }

/* ---- Performance counters -------------------------------------------------------------------------------------- */

typedef struct event {
    uint16_t number;
    const char *name;
} event;

static const event events_u55[] = {
    {0x082, "ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED"},
    {0x182, "ETHOSU_PMU_AXI1_RD_DATA_BEAT_RECEIVED"},
    {0x087, "ETHOSU_PMU_AXI0_WR_DATA_BEAT_WRITTEN"},
    {0x020, "ETHOSU_PMU_NPU_IDLE"},
};

static const event events_u85[] = {
    {0x082, "ETHOSU_PMU_SRAM_RD_DATA_BEAT_RECEIVED"},
    {0x087, "ETHOSU_PMU_SRAM_WR_DATA_BEAT_WRITTEN"},
    {0x182, "ETHOSU_PMU_EXT_RD_DATA_BEAT_RECEIVED"},
    {0x187, "ETHOSU_PMU_EXT_WR_DATA_BEAT_WRITTEN"},
    {0x020, "ETHOSU_PMU_NPU_IDLE"},
    {0x030, "ETHOSU_PMU_MAC_ACTIVE"},
    {0x050, "ETHOSU_PMU_WD_ACTIVE"},
};

static const event *get_events(const tosaic_ethosu *npu) {
    return get_family(npu) == U85 ? events_u85 : events_u55;
}

static uint32_t get_pmu(const tosaic_ethosu *npu) { return get_family(npu) == U85 ? PMU_BASE_U85 : PMU_BASE; }

static void start_counters(const tosaic_ethosu *npu) {
    uint32_t pmu = get_pmu(npu);
    for (uint32_t i = 0; i < npu->event_count; i++) {
        set(npu, pmu + PMEVTYPER0 + 4 * i, get_events(npu)[i].number);
    }
    set(npu, pmu + PMCCNTR_CFG, 0); /* counts always, from no event to no event */
    set(npu, pmu + PMCNTENSET, PMCNTENSET_CYCLES | ((1u << npu->event_count) - 1u));
    set(npu, pmu + PMCR, PMCR_ENABLE_AND_RESET);
}

static void read_counters(tosaic_ethosu *npu) {
    uint32_t pmu = get_pmu(npu);
    set(npu, pmu + PMCR, 0); /* stops them: the idle NPU would count on, and the cycle counter has two halves */
    uint64_t low = get(npu, pmu + PMCCNTR);
    npu->counters.cycles += low | (uint64_t)(get(npu, pmu + PMCCNTR + 4) & 0xFFFFu) << 32;
    for (uint32_t i = 0; i < npu->event_count; i++) {
        npu->counters.events[i] += get(npu, pmu + PMEVCNTR0 + 4 * i);
    }
    npu->counters.jobs++;
}

const char *tosaic_ethosu_get_event_name(const tosaic_ethosu *npu, uint32_t index) {
    return index < npu->event_count ? get_events(npu)[index].name : NULL;
}

/* ---- Reset ----------------------------------------------------------------------------------------------------- */

/* Resets the NPU into secure, privileged state, and sets its ports. */
static tosaic_status reset(tosaic_ethosu *npu, uint32_t *detail) {
    const tosaic_ethosu_config *config = &npu->config;
    set(npu, RESET, PRIVILEGED_SECURE);
    uint32_t polls = 0;
    while ((get(npu, STATUS) & STATUS_RESET) != 0 && polls < RESET_POLLS) {
        polls++;
    }
    *detail = get(npu, STATUS);
    if ((*detail & STATUS_RESET) != 0 || (get(npu, PROT) & 3u) != PRIVILEGED_SECURE) {
        return TOSAIC_NPU_RESET;
    }
    for (uint32_t i = 0; i < 4; i++) {
        set(npu, LIMIT0 + 4 * i, config->limits[i]);
    }
    if (get_family(npu) == U85) {
        set(npu, AXI_SRAM, AXI_64_READS_32_WRITES);
        set(npu, AXI_EXT, AXI_64_READS_32_WRITES);
        set(npu, POWER_CTRL, 0);
    }
    return TOSAIC_OK;
}

tosaic_status tosaic_ethosu_init(tosaic_ethosu *npu, uint32_t *detail) {
    npu->id = get(npu, ID);
    npu->configuration = get(npu, CONFIG);
    if (npu->id == 0 || get_family(npu) > U85) {
        *detail = npu->id;
        return TOSAIC_NPU_MISSING;
    }
    npu->event_count = get_family(npu) == U85 ? sizeof events_u85 / sizeof events_u85[0]
                                              : sizeof events_u55 / sizeof events_u55[0];
    return reset(npu, detail);
}

/* ---- Jobs ------------------------------------------------------------------------------------------------------ */

/* The actions of a container; each is a word, the lowest byte says which. */
enum { ACTION_CONFIG = 1, ACTION_COMMANDS = 2, ACTION_NOP = 5 };

static uint32_t read_word(const uint8_t *commands, uint32_t index) {
    uint32_t word;
    memcpy(&word, commands + 4u * index, sizeof word);
    return word;
}

/* Whether a stream for this configuration and architecture runs on the NPU. */
static bool is_for(const tosaic_ethosu *npu, uint32_t configuration, uint32_t id) {
    bool same = ((npu->configuration ^ configuration) & CONFIG_MASK) == 0;
    bool has_dma = (configuration & CONFIG_CUSTOM_DMA & ~npu->configuration) == 0;
    uint32_t major = id >> 28;
    uint32_t minor = id >> 20 & 0xFFu;
    return same && has_dma && npu->id >> 28 == major && (npu->id >> 20 & 0xFFu) >= minor;
}

/* Finds the commands in their container, and checks that they are for this NPU. */
static tosaic_status open_container(const tosaic_ethosu *npu, const tosaic_npu_job *job, const uint8_t **start,
                                    uint32_t *size, uint32_t *detail) {
    uint32_t words = job->commands_size / 4u;
    bool is_checked = false;
    *detail = 0;
    if (job->commands_size % 4u != 0 || words == 0 || memcmp(job->commands, "COP1", 4) != 0) {
        return TOSAIC_BAD_COMMANDS;
    }
    for (uint32_t at = 1; at < words;) {
        uint32_t action = read_word(job->commands, at);
        *detail = 4u * at;
        switch (action & 0xFFu) {
            case ACTION_CONFIG:
                if (words - at < 3) {
                    return TOSAIC_BAD_COMMANDS;
                }
                if (!is_for(npu, read_word(job->commands, at + 1), read_word(job->commands, at + 2))) {
                    *detail = read_word(job->commands, at + 1);
                    return TOSAIC_NPU_OTHER;
                }
                is_checked = true;
                at += 3;
                break;
            case ACTION_NOP:
                at += 1;
                break;
            case ACTION_COMMANDS: {
                uint32_t count = action >> 16 | (action >> 8 & 0xFFu) << 16;
                *start = job->commands + 4u * (at + 1u);
                *size = 4u * count;
                /* The stream is the last action, and the NPU reads it from a multiple of 16. */
                bool fits = is_checked && count == words - at - 1u && tosaic_is_aligned((uintptr_t)*start);
                return fits ? TOSAIC_OK : TOSAIC_BAD_COMMANDS;
            }
            default:
                return TOSAIC_BAD_COMMANDS;
        }
    }
    return TOSAIC_BAD_COMMANDS;
}

static void start(const tosaic_ethosu *npu, const tosaic_npu_job *job, const uint8_t *commands, uint32_t size) {
    set(npu, QCONFIG, npu->config.queue_config);
    set(npu, REGIONCFG, npu->config.region_config);
    set_address(npu, QBASE, commands);
    set(npu, QSIZE, size);
    set_address(npu, BASEP0, job->weights);
    set_address(npu, BASEP0 + 8, job->scratch);
    set_address(npu, BASEP0 + 16, job->fast_scratch);
    atomic_thread_fence(memory_order_seq_cst); /* the inputs are in memory before the NPU reads them */
    set(npu, CMD, (get(npu, CMD) & CMD_CLOCK_AND_POWER) | CMD_RUN);
}

void tosaic_ethosu_interrupt(tosaic_ethosu *npu) {
    npu->status = get(npu, STATUS);
    set(npu, CMD, (get(npu, CMD) & CMD_CLOCK_AND_POWER) | CMD_CLEAR_INTERRUPT);
    npu->done = true;
}

/* Waits for the interrupt, at most as long as the board allows. */
static bool wait(tosaic_ethosu *npu) {
    const tosaic_ethosu_config *config = &npu->config;
    uint32_t begin = config->now();
    while (!npu->done) {
        if (config->now() - begin > config->time_limit) {
            return false;
        }
        config->wait();
    }
    return true;
}

tosaic_status tosaic_ethosu_judge(uint32_t status) {
    if ((status & STATUS_BUS_FAULT) != 0) {
        return TOSAIC_NPU_BUS_FAULT;
    }
    if ((status & STATUS_PARSE_FAULT) != 0) {
        return TOSAIC_NPU_PARSE_FAULT;
    }
    if ((status & STATUS_WEIGHT_FAULT) != 0) {
        return TOSAIC_NPU_WEIGHT_FAULT;
    }
    if ((status & STATUS_ECC_FAULT) != 0) {
        return TOSAIC_NPU_ECC_FAULT;
    }
    return (status & STATUS_END_REACHED) != 0 ? TOSAIC_OK : TOSAIC_NPU_STOPPED;
}

static void clean(const tosaic_ethosu *npu, const void *address, uint32_t size) {
    if (npu->config.clean_cache != NULL && size != 0) {
        npu->config.clean_cache(address, size);
    }
}

tosaic_status tosaic_ethosu_run(void *context, const tosaic_npu_job *job, uint32_t *detail) {
    tosaic_ethosu *npu = context;
    const uint8_t *commands;
    uint32_t size;
    tosaic_status status = open_container(npu, job, &commands, &size, detail);
    if (status != TOSAIC_OK) {
        return status;
    }
    clean(npu, job->commands, job->commands_size);
    clean(npu, job->weights, job->weights_size);
    clean(npu, job->scratch, job->scratch_size);
    npu->done = false;
    start_counters(npu);
    start(npu, job, commands, size);
    bool ended = wait(npu);
    atomic_thread_fence(memory_order_seq_cst); /* no output is read before the NPU has written it */
    *detail = ended ? npu->status : get(npu, STATUS);
    status = ended ? tosaic_ethosu_judge(*detail) : TOSAIC_NPU_TIMEOUT;
    if (status != TOSAIC_OK) {
        /* Only a reset brings the NPU back after a fault. */
        uint32_t ignored;
        (void)reset(npu, &ignored);
        return status;
    }
    read_counters(npu);
    if (npu->config.invalidate_cache != NULL && job->scratch_size != 0) {
        npu->config.invalidate_cache(job->scratch, job->scratch_size);
    }
    return TOSAIC_OK;
}
