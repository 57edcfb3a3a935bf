#include "walk.h"

/* out = self + alpha * other */
TOSAIC_KERNEL(add_out, "aten::add.out", "TTdO") {
    const tosaic_tensor *inputs[] = {tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 1)};
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    float alpha = tosaic_float_at(call, 2);
    if (inputs[0]->dtype != TOSAIC_FLOAT32 || inputs[1]->dtype != TOSAIC_FLOAT32 || out->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_walk walk;
    tosaic_status status = tosaic_walk_begin(&walk, out, inputs, 2);
    if (status != TOSAIC_OK) {
        return status;
    }
    const float *a = inputs[0]->data;
    const float *b = inputs[1]->data;
    float *y = out->data;
    uint32_t count = tosaic_count(out);
    for (uint32_t i = 0; i < count; i++) {
        y[i] = a[walk.at[0]] + alpha * b[walk.at[1]];
        tosaic_walk_next(&walk);
    }
    return TOSAIC_OK;
}
