/* A window that moves over a dimension: of a convolution or a pool. */
#ifndef TOSAIC_WINDOW_H
#define TOSAIC_WINDOW_H

#include "kernel.h"

typedef struct tosaic_window {
    int32_t input; /* the size of the dimension */
    int32_t output; /* the number of places of the window */
    int32_t taps;
    int32_t stride;
    int32_t padding;
    int32_t dilation;
} tosaic_window;

/* Reads item `index` of a list of a call (I): its only item if it has one, `missing` if it is empty. */
bool tosaic_item_at(const tosaic_call *call, uint32_t arg, uint32_t index, int32_t missing, int32_t *number);

/* Computes `output` from the other fields. False if one of them, or a product of them, is not possible. */
bool tosaic_window_place(tosaic_window *window, bool is_ceil);

/* The same for a transposed convolution, whose window moves over the output. */
bool tosaic_window_place_transposed(tosaic_window *window, int32_t output_padding);

#endif
