#include "console.h"

#include <stdarg.h>

#include "board.h"
#include "bytes.h"

static void say_string(const char *text) {
    while (*text != 0) {
        board_put(*text++);
    }
}

/* Prints a number, with zeros in front up to `width` digits. */
static void say_digits(uint64_t number, uint32_t base, uint32_t width) {
    char digits[20];
    uint32_t count = 0;
    do {
        digits[count++] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number != 0 || count < width);
    while (count > 0) {
        board_put(digits[--count]);
    }
}

void say_integer(int64_t number) {
    if (number < 0) {
        board_put('-');
    }
    say_digits(number < 0 ? 0u - (uint64_t)number : (uint64_t)number, 10, 1);
}

/* Prints mantissa * 2^shift, which may have 128 bits, by dividing it by ten again and again. */
static void say_large(uint32_t mantissa, uint32_t shift) {
    uint32_t words[4] = {0, 0, 0, 0}; /* the lowest first */
    char digits[40];
    uint32_t count = 0;
    uint64_t placed = (uint64_t)mantissa << shift % 32u;
    words[shift / 32u] = (uint32_t)placed;
    if (shift / 32u < 3) {
        words[shift / 32u + 1u] = (uint32_t)(placed >> 32);
    }
    do {
        uint64_t rest = 0;
        for (uint32_t i = 4; i-- > 0;) {
            rest = rest << 32 | words[i];
            words[i] = (uint32_t)(rest / 10u);
            rest %= 10u;
        }
        digits[count++] = (char)('0' + rest);
    } while ((words[0] | words[1] | words[2] | words[3]) != 0);
    while (count > 0) {
        board_put(digits[--count]);
    }
}

void say_float(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint32_t exponent = bits >> 23 & 0xFFu;
    uint32_t mantissa = bits & 0x7FFFFFu;
    if (bits >> 31 != 0) {
        board_put('-');
    }
    if (exponent == 0xFF) {
        say_string(mantissa != 0 ? "nan" : "inf");
        return;
    }
    mantissa |= exponent != 0 ? 0x800000u : 0;
    exponent = exponent != 0 ? exponent : 1;
    if (exponent >= 150) { /* an integer */
        say_large(mantissa, exponent - 150u);
        say_string(".000000");
        return;
    }
    /* number = mantissa / 2^shift. What is less than half a millionth is zero. */
    uint32_t shift = 150u - exponent;
    uint64_t scaled = (uint64_t)mantissa * 1000000u;
    uint64_t millionths = 0;
    if (shift < 64) {
        millionths = scaled >> shift;
        uint64_t rest = scaled - (millionths << shift);
        uint64_t half = (uint64_t)1 << (shift - 1u);
        millionths += rest > half || (rest == half && millionths % 2u != 0) ? 1u : 0u;
    }
    say_digits(millionths / 1000000u, 10, 1);
    board_put('.');
    say_digits(millionths % 1000000u, 10, 6);
}

void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    for (; *format != 0; format++) {
        if (*format != '%') {
            board_put(*format);
            continue;
        }
        switch (*++format) {
            case 's':
                say_string(va_arg(arguments, const char *));
                break;
            case 't': {
                const tosaic_text *text = va_arg(arguments, const tosaic_text *);
                for (uint32_t i = 0; i < text->length; i++) {
                    board_put(text->start[i]);
                }
                break;
            }
            case 'u':
                say_digits(va_arg(arguments, uint32_t), 10, 1);
                break;
            case 'd':
                say_integer(va_arg(arguments, int32_t));
                break;
            case 'l':
                say_digits(va_arg(arguments, uint64_t), 10, 1);
                break;
            case 'x':
                say_string("0x");
                say_digits(va_arg(arguments, uint32_t), 16, 8);
                break;
            default:
                board_put(*format);
                break;
        }
    }
    va_end(arguments);
}
