/* The delegate for the backend `EthosUBackend`: a blob with Vela's output. */
#ifndef TOSAIC_DELEGATE_H
#define TOSAIC_DELEGATE_H

#include "flat.h"
#include "tosaic.h"

/* An input or output in the blob, as Vela writes it. */
typedef struct tosaic_slot {
    int32_t shape[6]; /* left padded with 1 */
    int32_t element_size;
    int32_t offset; /* in the region */
    int32_t region;
} tosaic_slot;

/* A delegate. All pointers are into the file. */
typedef struct tosaic_delegate {
    const uint8_t *blob;
    const uint8_t *commands;
    const uint8_t *weights;
    const uint8_t *inputs; /* slots, not aligned */
    const uint8_t *outputs;
    uint32_t commands_size;
    uint32_t weights_size;
    uint32_t input_count;
    uint32_t output_count;
    uint32_t scratch_size;
    uint32_t fast_scratch_size;
} tosaic_delegate;

/* Opens delegate `index` of a method, whose table is `row`: checks its blob, and that the pools are large enough. */
tosaic_status tosaic_open_delegate(tosaic_method *method, flat *file, flat_table row, uint32_t index);

/* Calls a delegate with the first `count` of `method->args`: inputs, then outputs. */
tosaic_status tosaic_call_delegate(tosaic_method *method, uint32_t index, uint32_t count);

#endif
