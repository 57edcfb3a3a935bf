/* Steps over the elements of a tensor, in the order of given dimensions, and over groups of its elements. */
#ifndef TOSAIC_STEPS_H
#define TOSAIC_STEPS_H

#include "kernel.h"

/* A walk over elements: `at` is the current one. After the last of `count` steps it is at the first one again. */
typedef struct tosaic_steps {
    uint32_t at;
    uint32_t count;
    uint32_t rank;
    uint32_t sizes[TOSAIC_MAX_RANK]; /* from the outer to the inner dimension */
    uint32_t strides[TOSAIC_MAX_RANK];
    uint32_t index[TOSAIC_MAX_RANK];
} tosaic_steps;

/* Begins a walk that has no dimensions: one element. */
void tosaic_steps_begin(tosaic_steps *steps);

/* Adds an inner dimension. */
void tosaic_steps_add(tosaic_steps *steps, uint32_t size, uint32_t stride);

void tosaic_next(tosaic_steps *steps);

/* A walk over the dimensions that are kept, and for each of its elements one over those that are reduced. */
typedef struct tosaic_groups {
    tosaic_steps kept;
    tosaic_steps reduced;
} tosaic_groups;

/* Begins a walk; bit i of `dims` says whether dimension i is reduced. Groups come in the order of the dimensions. */
void tosaic_groups_begin(tosaic_groups *groups, const tosaic_tensor *tensor, uint32_t dims);

/* Gives `out` the sizes of `tensor` without those of `dims`, or with ones in their place, then begins a walk over
 * `tensor` with the groups in the order of `out` in memory. */
tosaic_status tosaic_reduce_begin(tosaic_groups *groups, const tosaic_tensor *tensor, uint32_t dims, bool keepdim,
                                  tosaic_tensor *out);

/* Reads a dimension of a call (i or i?), or a list of them (I or I?): all for None and an empty list. */
bool tosaic_dims_at(const tosaic_call *call, uint32_t index, uint32_t rank, uint32_t *dims);

/* Whether a type of a call (i?) is None or that of `out`. */
bool tosaic_is_dtype_at(const tosaic_call *call, uint32_t index, const tosaic_tensor *out);

#endif
