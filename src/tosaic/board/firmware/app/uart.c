#include "uart.h"

static volatile uint32_t *get_register(uintptr_t base, uint32_t offset) { return (volatile uint32_t *)(base + offset); }

void uart_start(uintptr_t base, uint32_t divider, uint32_t control) {
    *get_register(base, UART_DIVIDER) = divider;
    *get_register(base, UART_CONTROL) = control;
}

void uart_put(uintptr_t base, uint32_t byte) {
    while ((*get_register(base, UART_STATE) & UART_STATE_FULL) != 0) {
    }
    *get_register(base, UART_DATA) = byte;
}

bool uart_has_byte(uintptr_t base) { return (*get_register(base, UART_STATE) & UART_STATE_RECEIVED) != 0; }

uint32_t uart_get(uintptr_t base) { return *get_register(base, UART_DATA) & 0xFFu; }
