#include "bytes.h"

#include <stdint.h>

/* Copies from the first byte to the last, whole words where both ends allow it. */
static void copy_up(uint8_t *target, const uint8_t *source, size_t count) {
    if (((uintptr_t)target | (uintptr_t)source) % sizeof(uint32_t) == 0) {
        for (; count >= sizeof(uint32_t); count -= sizeof(uint32_t)) {
            *(uint32_t *)(void *)target = *(const uint32_t *)(const void *)source;
            target += sizeof(uint32_t);
            source += sizeof(uint32_t);
        }
    }
    while (count-- > 0) {
        *target++ = *source++;
    }
}

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
    copy_up(to, from, count);
    return to;
}

void *memmove(void *to, const void *from, size_t count) {
    uint8_t *target = to;
    const uint8_t *source = from;
    if ((uintptr_t)target <= (uintptr_t)source) {
        copy_up(target, source, count);
        return to;
    }
    while (count-- > 0) {
        target[count] = source[count];
    }
    return to;
}

/* Whole words where there are some. */
void *memset(void *to, int byte, size_t count) {
    uint8_t *target = to;
    const uint32_t word = (uint8_t)byte * 0x01010101u;
    for (; count > 0 && (uintptr_t)target % sizeof word != 0; count--) {
        *target++ = (uint8_t)byte;
    }
    for (; count >= sizeof word; count -= sizeof word) {
        *(uint32_t *)(void *)target = word;
        target += sizeof word;
    }
    while (count-- > 0) {
        *target++ = (uint8_t)byte;
    }
    return to;
}

int memcmp(const void *a, const void *b, size_t count) {
    const uint8_t *left = a;
    const uint8_t *right = b;
    for (; count > 0; count--, left++, right++) {
        if (*left != *right) {
            return *left - *right;
        }
    }
    return 0;
}
