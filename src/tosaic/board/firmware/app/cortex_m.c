#include "cortex_m.h"

#include <stdbool.h>

enum {
    SYST_CSR = 0xE000E010,
    SYST_RVR = 0xE000E014,
    SYST_CVR = 0xE000E018,
    NVIC_ISER = 0xE000E100,
    SCB_CCR = 0xE000ED14,
    SCB_DCIMVAC = 0xE000EF5C,
    SCB_DCCMVAC = 0xE000EF68
};

enum { CSR_ENABLE = 1, CSR_INTERRUPT = 2, CSR_CPU_CLOCK = 4, CCR_DATA_CACHE = 1 << 16, CACHE_LINE = 32 };

#define TICKS_PER_SECOND 1000u

/* The board's only variables that change behind its back. */
static volatile uint32_t ticks;
static uint32_t cycles_per_tick;

/* From the linker script. */
extern uint32_t stack_bottom[];
extern uint32_t stack_top[];

static uint32_t get(uint32_t address) { return *(volatile uint32_t *)(uintptr_t)address; }

static void set(uint32_t address, uint32_t value) { *(volatile uint32_t *)(uintptr_t)address = value; }

void cortex_start_timer(uint32_t clock) {
    cycles_per_tick = clock / TICKS_PER_SECOND;
    set(SYST_RVR, cycles_per_tick - 1u);
    set(SYST_CVR, 0);
    set(SYST_CSR, CSR_ENABLE | CSR_INTERRUPT | CSR_CPU_CLOCK);
}

void cortex_handle_tick(void) { ticks++; }

uint64_t cortex_get_cycles(void) {
    uint32_t before;
    uint32_t left;
    do {
        before = ticks;
        left = get(SYST_CVR);
    } while (before != ticks);
    return (uint64_t)before * cycles_per_tick + (cycles_per_tick - 1u - left);
}

uint32_t cortex_get_milliseconds(void) { return ticks; }

void cortex_sleep(void) { __asm__ volatile("wfi" ::: "memory"); }

void cortex_enable_interrupt(uint32_t number) { set(NVIC_ISER + 4u * (number / 32u), 1u << number % 32u); }

static void maintain_cache(uint32_t operation, const void *start, uint32_t size) {
    if ((get(SCB_CCR) & CCR_DATA_CACHE) == 0) {
        return;
    }
    uint32_t first = (uint32_t)(uintptr_t)start & ~(CACHE_LINE - 1u);
    uint32_t end = (uint32_t)(uintptr_t)start + size;
    __asm__ volatile("dsb" ::: "memory");
    for (uint32_t line = first; line < end; line += CACHE_LINE) {
        set(operation, line);
    }
    __asm__ volatile("dsb\n isb" ::: "memory");
}

void cortex_clean_cache(const void *start, uint32_t size) { maintain_cache(SCB_DCCMVAC, start, size); }

void cortex_invalidate_cache(const void *start, uint32_t size) { maintain_cache(SCB_DCIMVAC, start, size); }

uint32_t cortex_measure_stack(uint32_t *size) {
    const uint32_t *word = stack_bottom;
    while (word < stack_top && *word == CORTEX_UNUSED_STACK) {
        word++;
    }
    *size = (uint32_t)((uintptr_t)stack_top - (uintptr_t)stack_bottom);
    return (uint32_t)((uintptr_t)stack_top - (uintptr_t)word);
}
