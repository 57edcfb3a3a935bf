/* Takes memory from pools. */
#ifndef TOSAIC_MEMORY_H
#define TOSAIC_MEMORY_H

#include "tosaic.h"

/* Takes room for `count` elements of `width` bytes; `*memory` is NULL if that is nothing. False if it is too much. */
bool tosaic_take(tosaic_pool *pool, uint32_t count, uint32_t width, void **memory);

/* Whether a number or address is a multiple of TOSAIC_ALIGNMENT. */
bool tosaic_is_aligned(uintptr_t number);

#endif
