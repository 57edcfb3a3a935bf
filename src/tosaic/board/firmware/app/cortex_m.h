/* The Cortex-M: its timer, its interrupts, its sleep. */
#ifndef TOSAIC_CORTEX_M_H
#define TOSAIC_CORTEX_M_H

#include <stdint.h>

/* Starts the timer at `clock` cycles per second. */
void cortex_start_timer(uint32_t clock);

/* The timer's interrupt handler, for the vector table. */
void cortex_handle_tick(void);

/* CPU cycles since the timer was started. */
uint64_t cortex_get_cycles(void);

/* Milliseconds since the timer was started. */
uint32_t cortex_get_milliseconds(void);

/* Sleeps until an interrupt, of the timer at the latest. */
void cortex_sleep(void);

void cortex_enable_interrupt(uint32_t number);

/* Writes back, or forgets, what the data cache holds of a range, if there is a data cache. */
void cortex_clean_cache(const void *start, uint32_t size);
void cortex_invalidate_cache(const void *start, uint32_t size);

/* What startup fills the stack with, so that the words that were used can be told from those that were not. */
#define CORTEX_UNUSED_STACK 0xC5C5C5C5u

/* The bytes of the stack that were ever used, and its size. */
uint32_t cortex_measure_stack(uint32_t *size);

#endif
