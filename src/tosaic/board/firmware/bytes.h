/* The four functions of the C library that a compiler calls by name. A firmware without a C library has them here. */
#ifndef TOSAIC_BYTES_H
#define TOSAIC_BYTES_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
int memcmp(const void *a, const void *b, size_t size);

#endif
