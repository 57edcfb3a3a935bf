/* Prints the floats of standard input, as the application does on a board. */
#include <stdio.h>

#include "board.h"
#include "console.h"

void board_put(char byte) { putchar(byte); }

int main(void) {
    float number;
    while (fread(&number, sizeof number, 1, stdin) == 1) {
        say_float(number);
        say("\n");
    }
    say("%u %d %l %x %s %%\n", UINT32_MAX, INT32_MIN, UINT64_MAX, 0xBEEFu, "text");
    say_integer(INT64_MIN);
    return 0;
}
