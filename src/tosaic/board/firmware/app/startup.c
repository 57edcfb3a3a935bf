/* From reset to main(): the vector table, memory, the FPU, and what happens at a fault. */
#include "board.h"
#include "board_config.h"
#include "bytes.h"
#include "console.h"
#include "cortex_m.h"
#include "host.h"

enum { SCB_VTOR = 0xE000ED08, SCB_CPACR = 0xE000ED88, SCB_CFSR = 0xE000ED28, SCB_BFAR = 0xE000ED38 };
enum { CPACR_FPU = 0xF << 20, CPU_VECTORS = 16 };

#define BREAK_FOR_HOST 0xBEABu /* bkpt 0xab */

/* From the linker script. */
extern uint32_t stack_bottom[], stack_top[], data_start[], data_end[], data_source[], bss_start[], bss_end[];
extern const uint16_t code_start[], code_end[];
extern uint8_t model_start[];
extern const uint8_t model_source[];
extern const char model_copy_size[]; /* its address is the number */

int main(void);
void start_reset(void);
void start_fault(uint32_t *frame);

/* Not inlined: its stack must be below that of start_reset(), which fills the stack with the pattern. */
__attribute__((noreturn, noinline)) static void start_program(void) {
    memcpy(data_start, data_source, (uintptr_t)data_end - (uintptr_t)data_start);
    memset(bss_start, 0, (uintptr_t)bss_end - (uintptr_t)bss_start);
    memcpy(model_start, model_source, (uintptr_t)model_copy_size);
    host_exit(main());
}

extern void (*const vectors[CPU_VECTORS + BOARD_NPU_INTERRUPT + 1])(void);

void start_reset(void) {
    *(volatile uint32_t *)(uintptr_t)SCB_CPACR |= CPACR_FPU;
    *(volatile uint32_t *)(uintptr_t)SCB_VTOR = (uint32_t)(uintptr_t)vectors;
    __asm__ volatile("dsb\n isb" ::: "memory");
    uint32_t *top = __builtin_frame_address(0);
    for (uint32_t *word = stack_bottom; word < top - 16; word++) {
        *word = CORTEX_UNUSED_STACK;
    }
    start_program();
}

/* A fault: a call of the host where none listens is skipped, with a failure as its result; all else ends the program. */
void start_fault(uint32_t *frame) {
    enum { R0 = 0, PC = 6 };
    const uint16_t *instruction = (const uint16_t *)(uintptr_t)frame[PC];
    bool is_code = instruction >= code_start && instruction < code_end; /* after a wild jump it is not */
    if (is_code && *instruction == BREAK_FOR_HOST) {
        frame[R0] = UINT32_MAX;
        frame[PC] += 2;
        return;
    }
    say("E [tosaic] fault at %x, status %x, address %x\n", frame[PC], *(volatile uint32_t *)(uintptr_t)SCB_CFSR,
        *(volatile uint32_t *)(uintptr_t)SCB_BFAR);
    host_exit(2);
}

__attribute__((naked)) static void handle_fault(void) {
    __asm__ volatile("mrs r0, msp\n b start_fault");
}

static void handle_other(void) {}

__attribute__((section(".vectors"), used)) void (*const vectors[CPU_VECTORS + BOARD_NPU_INTERRUPT + 1])(void) = {
    [0] = (void (*)(void))(uintptr_t)stack_top,
    [1] = start_reset,
    [2] = handle_other,
    [3] = handle_fault, /* HardFault */
    [4] = handle_fault, /* MemManage */
    [5] = handle_fault, /* BusFault */
    [6] = handle_fault, /* UsageFault */
    [7] = handle_fault, /* SecureFault */
    [11] = handle_other,
    [12] = handle_other,
    [14] = handle_other,
    [15] = cortex_handle_tick,
    [CPU_VECTORS + BOARD_NPU_INTERRUPT] = board_handle_npu,
};
