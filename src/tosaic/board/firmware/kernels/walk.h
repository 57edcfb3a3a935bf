/* Walks over tensors that are broadcast to one shape, element by element in the order of an output's memory. */
#ifndef TOSAIC_WALK_H
#define TOSAIC_WALK_H

#include "kernel.h"

#define TOSAIC_WALK_MAX 3u

typedef struct tosaic_walk {
    uint32_t at[TOSAIC_WALK_MAX]; /* the element of each input, for the current element of the output */
    uint32_t rank;
    uint32_t inputs;
    uint32_t sizes[TOSAIC_MAX_RANK]; /* of the output, from its outer to its inner dimension in memory */
    uint32_t index[TOSAIC_MAX_RANK];
    uint32_t strides[TOSAIC_WALK_MAX][TOSAIC_MAX_RANK]; /* 0 where an input is broadcast; negative ones wrap around */
} tosaic_walk;

/* Gives `out` the shape to which the inputs are broadcast, and stands on its first element. */
tosaic_status tosaic_walk_begin(tosaic_walk *walk, tosaic_tensor *out, const tosaic_tensor *const *inputs,
                                uint32_t count);

/* Joins dimensions that all inputs have one after the other in memory, so that the steps are longer. */
void tosaic_walk_join(tosaic_walk *walk);

/* Leaves the inner dimension to the caller: the walk goes from row to row, and returns how many elements each has. They
 * are strides[k][rank] apart, with the new rank. */
uint32_t tosaic_walk_by_rows(tosaic_walk *walk);

/* Moves to the next element of the output, or to the next row. */
void tosaic_walk_next(tosaic_walk *walk);

#endif
