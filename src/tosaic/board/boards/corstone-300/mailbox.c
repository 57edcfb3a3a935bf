#include "mailbox.h"

#include "bytes.h"
#include "uart.h"

/* The messages, in words of little-endian bytes:
 *
 *     'C'                                    answer: ID, CONFIG
 *     'J', four addresses, four sizes,       answer: STATUS, cycles (low, high), seven counters
 *          the four addresses in the DDR
 *
 * The four parts of a job are commands, weights, scratch and fast scratch. Only the DDR is shared with the host: parts
 * that are elsewhere are copied to the DDR's end for the job. STATUS is UINT32_MAX if the job is for another NPU.
 */
enum { PARTS = 4, SCRATCH = 2 };

#define UART1 0x49304000u
#define DDR_BASE 0x70000000u
#define DDR_END 0x80000000u
#define STAGE_BASE 0x7FC00000u /* the last 4 MB: more than all other memories have, and above what a firmware uses */
/* Reads of the state while a host that is there answers the first message. */
#define POLLS 50000000u

static void send_word(uint32_t word) {
    for (uint32_t shift = 0; shift < 32; shift += 8) {
        uart_put(UART1, word >> shift & 0xFFu);
    }
}

static uint32_t receive_word(void) {
    uint32_t word = 0;
    for (uint32_t shift = 0; shift < 32; shift += 8) {
        while (!uart_has_byte(UART1)) {
        }
        word |= uart_get(UART1) << shift;
    }
    return word;
}

bool mailbox_init(tosaic_ethosu *npu) {
    uart_start(UART1, UART_LEAST_DIVIDER, UART_CONTROL_TRANSMIT | UART_CONTROL_RECEIVE);
    uart_put(UART1, 'C');
    uint32_t polls = 0;
    while (!uart_has_byte(UART1)) {
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

tosaic_status mailbox_run(void *context, const tosaic_npu_job *job, uint32_t *detail) {
    tosaic_ethosu *npu = context;
    const uint8_t *const parts[PARTS] = {job->commands, job->weights, job->scratch, job->fast_scratch};
    const uint32_t sizes[PARTS] = {job->commands_size, job->weights_size, job->scratch_size, job->fast_scratch_size};
    uint32_t shared[PARTS];
    uint32_t stage = STAGE_BASE;
    uart_put(UART1, 'J');
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
    return *detail == UINT32_MAX ? TOSAIC_NPU_OTHER : tosaic_ethosu_judge(*detail);
}
