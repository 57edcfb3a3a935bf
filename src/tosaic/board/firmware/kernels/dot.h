/* The sum of products of two rows of elements. */
#ifndef TOSAIC_DOT_H
#define TOSAIC_DOT_H

#include "elements.h"

/* Elements at a distance of `step` elements. */
typedef struct tosaic_strided {
    const void *first;
    uint32_t step;
} tosaic_strided;

/* Whether tosaic_dot() takes this type: float32, int8, int32, int64. */
bool tosaic_has_dot(uint32_t dtype);

/* Returns sum + a[0] b[0] + a[1] b[1] + ...; integers wrap around. */
tosaic_number tosaic_dot(uint32_t dtype, tosaic_strided a, tosaic_strided b, uint32_t count, tosaic_number sum);

#endif
