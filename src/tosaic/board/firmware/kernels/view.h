/* Views: the elements of a tensor in another arrangement. Most data movement is a copy from one view to another. */
#ifndef TOSAIC_VIEW_H
#define TOSAIC_VIEW_H

#include "kernel.h"

typedef struct tosaic_view {
    void *data;
    uint32_t dtype;
    uint32_t offset; /* of the first element */
    uint32_t rank;
    uint32_t sizes[TOSAIC_MAX_RANK];
    uint32_t strides[TOSAIC_MAX_RANK]; /* in elements; 0 repeats one, and a negative stride wraps around */
} tosaic_view;

/* Returns the view of a whole tensor. */
tosaic_view tosaic_view_of(const tosaic_tensor *tensor);

/* Leaves `length` elements of a dimension, from `start` in steps of `step`. They must be there. */
void tosaic_cut(tosaic_view *view, uint32_t dim, uint32_t start, uint32_t length, uint32_t step);

/* Removes a dimension. */
void tosaic_drop_dim(tosaic_view *view, uint32_t dim);

/* Adds dimensions in front and stretches those of size 1, so that the view has these sizes. False if it cannot. */
bool tosaic_stretch(tosaic_view *view, uint32_t rank, const uint32_t *sizes);

/* Copies the elements of a view to another one of the same sizes, and converts them to its type. */
tosaic_status tosaic_copy_view(const tosaic_view *to, const tosaic_view *from);

/* Copies to a whole tensor, which takes the sizes of the view. */
tosaic_status tosaic_copy_to(tosaic_tensor *out, const tosaic_view *from);

#endif
