/* The UART of Arm's CMSDK, which the Corstone boards and many others have. */
#ifndef TOSAIC_UART_H
#define TOSAIC_UART_H

#include <stdbool.h>
#include <stdint.h>

/* Offsets of the registers, and their bits. */
enum { UART_DATA = 0x00, UART_STATE = 0x04, UART_CONTROL = 0x08, UART_DIVIDER = 0x10 };
enum { UART_STATE_FULL = 1 << 0, UART_STATE_RECEIVED = 1 << 1 };
enum { UART_CONTROL_TRANSMIT = 1 << 0, UART_CONTROL_RECEIVE = 1 << 1 };

/* The fastest that the hardware takes: for simulators, which do not care. */
#define UART_LEAST_DIVIDER 16u

/* Starts the UART at `base`: `divider` is its clock divided by the baud rate, `control` what it is for. */
void uart_start(uintptr_t base, uint32_t divider, uint32_t control);

/* Writes one byte, once there is room for it. */
void uart_put(uintptr_t base, uint32_t byte);

/* Whether a byte was received, and that byte. */
bool uart_has_byte(uintptr_t base);
uint32_t uart_get(uintptr_t base);

#endif
