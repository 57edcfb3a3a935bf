/* Prints to the board's console. */
#ifndef TOSAIC_CONSOLE_H
#define TOSAIC_CONSOLE_H

#include "tosaic.h"

/* How a line of information begins; one with an error begins with E. */
#define INFO "I [tosaic] "

/* Prints a format: %s a string, %t a `tosaic_text *`, %u and %d a 32-bit number, %l a `uint64_t`, %x hexadecimal. */
void say(const char *format, ...);

/* Prints a 64-bit number, and a float with six digits behind the point as C's %f does. */
void say_integer(int64_t number);
void say_float(float number);

#endif
