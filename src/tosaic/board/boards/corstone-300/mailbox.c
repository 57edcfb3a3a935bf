#include "mailbox.h"

#include "kernel.h"

/* The messages, in words of little-endian bytes:
 *
 *     'C'                                    answer: ID, CONFIG
 *     'J', four addresses, four sizes,       answer: STATUS, cycles (low, high), seven counters
 *          the four addresses in the DDR
 *
 * The four parts of a job are commands, weights, scratch and fast scratch. Only the DDR is shared with the host: parts
 * that are elsewhere are copied to the DDR's end for the job. STATUS is UINT32_MAX if the job is for another NPU.
 */
enum { UART_DATA = 0x00, UART_STATE = 0x04, UART_CONTROL = 0x08, UART_DIVIDER = 0x10 };
enum { STATE_TRANSMITTING = 1 << 0, STATE_RECEIVED = 1 << 1, CONTROL_BOTH = 3, DIVIDER_LEAST = 16 };
enum { PARTS = 4, SCRATCH = 2 };

#define UART1 0x49304000u
#define DDR_BASE 0x70000000u
#define DDR_END 0x80000000u
#define STAGE_BASE 0x7FC00000u /* above what a firmware uses: the last 4 MB */
/* Reads of the state while a host that is there answers the first message. */
#define POLLS 50000000u

static uint32_t get(uint32_t offset) { return *(volatile uint32_t *)(uintptr_t)(UART1 + offset); }

static void set(uint32_t offset, uint32_t value) { *(volatile uint32_t *)(uintptr_t)(UART1 + offset) = value; }

static void send(uint32_t byte) {
    while ((get(UART_STATE) & STATE_TRANSMITTING) != 0) {
    }
    set(UART_DATA, byte);
}

static void send_word(uint32_t word) {
    for (uint32_t shift = 0; shift < 32; shift += 8) {
        send(word >> shift & 0xFFu);
    }
}

static uint32_t receive_word(void) {
    uint32_t word = 0;
    for (uint32_t shift = 0; shift < 32; shift += 8) {
        while ((get(UART_STATE) & STATE_RECEIVED) == 0) {
        }
        word |= (get(UART_DATA) & 0xFFu) << shift;
    }
    return word;
}

bool mailbox_init(tosaic_ethosu *npu) {
    set(UART_DIVIDER, DIVIDER_LEAST);
    set(UART_CONTROL, CONTROL_BOTH);
    send('C');
    uint32_t polls = 0;
    while ((get(UART_STATE) & STATE_RECEIVED) == 0) {
        if (++polls == POLLS) {
            return false;
        }
    }
    npu->id = receive_word();
    npu->configuration = receive_word();
    npu->event_count = npu->configuration >> 28 == 2 ? 7 : 4;
    return true;
}

/* Returns the address in the DDR at which the host finds a part: its own, or that of a copy. */
static uint32_t share(uint32_t address, uint32_t size, uint32_t *stage) {
    if (size == 0 || (address >= DDR_BASE && address < DDR_END)) {
        return address;
    }
    uint32_t copy = *stage;
    *stage += (size + TOSAIC_ALIGNMENT - 1u) & ~(TOSAIC_ALIGNMENT - 1u);
    memcpy((void *)(uintptr_t)copy, (const void *)(uintptr_t)address, size);
    return copy;
}

static tosaic_status judge(uint32_t status) {
    if (status == UINT32_MAX) {
        return TOSAIC_NPU_OTHER;
    }
    if ((status & 1u << 2) != 0) {
        return TOSAIC_NPU_BUS_FAULT;
    }
    if ((status & 1u << 4) != 0) {
        return TOSAIC_NPU_PARSE_FAULT;
    }
    if ((status & 1u << 7) != 0) {
        return TOSAIC_NPU_WEIGHT_FAULT;
    }
    return (status & 1u << 5) != 0 ? TOSAIC_OK : TOSAIC_NPU_STOPPED;
}

tosaic_status mailbox_run(void *context, const tosaic_npu_job *job, uint32_t *detail) {
    tosaic_ethosu *npu = context;
    const uint8_t *const parts[PARTS] = {job->commands, job->weights, job->scratch, job->fast_scratch};
    const uint32_t sizes[PARTS] = {job->commands_size, job->weights_size, job->scratch_size, job->fast_scratch_size};
    uint32_t shared[PARTS];
    uint32_t stage = STAGE_BASE;
    send('J');
    for (uint32_t i = 0; i < PARTS; i++) {
        send_word((uint32_t)(uintptr_t)parts[i]);
    }
    for (uint32_t i = 0; i < PARTS; i++) {
        send_word(sizes[i]);
    }
    for (uint32_t i = 0; i < PARTS; i++) {
        shared[i] = share((uint32_t)(uintptr_t)parts[i], sizes[i], &stage);
        send_word(shared[i]);
    }
    *detail = receive_word();
    uint64_t cycles = receive_word();
    npu->counters.cycles += cycles | (uint64_t)receive_word() << 32;
    for (uint32_t i = 0; i < TOSAIC_ETHOSU_MAX_COUNTERS; i++) {
        npu->counters.events[i] += receive_word();
    }
    npu->counters.jobs++;
    if (shared[SCRATCH] != (uint32_t)(uintptr_t)job->scratch) {
        memcpy(job->scratch, (const void *)(uintptr_t)shared[SCRATCH], job->scratch_size);
    }
    return judge(*detail);
}
