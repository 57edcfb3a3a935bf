/* Variances of groups of elements. */
#include "elements.h"
#include "steps.h"

/* Writes the variance of each group, and its mean if that is asked for; NaN where the divisor is not positive. */
static tosaic_status find_variance(const tosaic_tensor *x, uint32_t dims, float correction, bool keepdim,
                                   tosaic_tensor *out, tosaic_tensor *mean_out) {
    if (x->dtype != TOSAIC_FLOAT32 || out->dtype != TOSAIC_FLOAT32 ||
        (mean_out != NULL && mean_out->dtype != TOSAIC_FLOAT32)) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_groups groups;
    tosaic_status status = TOSAIC_OK;
    if (mean_out != NULL) {
        status = tosaic_reduce_begin(&groups, x, dims, keepdim, mean_out);
    }
    if (status == TOSAIC_OK) {
        status = tosaic_reduce_begin(&groups, x, dims, keepdim, out);
    }
    if (status != TOSAIC_OK || (mean_out != NULL &&
                                (!tosaic_same_shape(out, mean_out) || !tosaic_same_order(out, mean_out)))) {
        return TOSAIC_BAD_SHAPE;
    }
    const float *data = x->data;
    float count = (float)groups.reduced.count;
    float divisor = count - correction;
    for (uint32_t i = 0; i < groups.kept.count; i++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < groups.reduced.count; k++) {
            sum += data[groups.kept.at + groups.reduced.at];
            tosaic_next(&groups.reduced);
        }
        float mean = sum / count;
        float squares = 0.0f;
        for (uint32_t k = 0; k < groups.reduced.count; k++) {
            float distance = data[groups.kept.at + groups.reduced.at] - mean;
            squares += distance * distance;
            tosaic_next(&groups.reduced);
        }
        bool is_defined = groups.reduced.count != 0 && divisor > 0.0f;
        ((float *)out->data)[i] = is_defined ? squares / divisor : TOSAIC_NAN;
        if (mean_out != NULL) {
            ((float *)mean_out->data)[i] = mean;
        }
        tosaic_next(&groups.kept);
    }
    return TOSAIC_OK;
}

/* The number to subtract from the count: one unless the call says otherwise. */
static float correction_at(const tosaic_call *call, uint32_t index) {
    return tosaic_is_none_at(call, index) ? 1.0f : tosaic_float_at(call, index);
}

TOSAIC_KERNEL(var_out, "aten::var.out", "TI?bbO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    float correction = tosaic_bool_at(call, 2) ? 1.0f : 0.0f;
    return find_variance(x, dims, correction, tosaic_bool_at(call, 3), tosaic_tensor_at(call, 4), NULL);
}

TOSAIC_KERNEL(var_correction_out, "aten::var.correction_out", "TI?d?bO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return find_variance(x, dims, correction_at(call, 2), tosaic_bool_at(call, 3), tosaic_tensor_at(call, 4),
                         NULL);
}

TOSAIC_KERNEL(var_mean_correction_out, "aten::var_mean.correction_out", "TI?d?bOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return find_variance(x, dims, correction_at(call, 2), tosaic_bool_at(call, 3), tosaic_tensor_at(call, 4),
                         tosaic_tensor_at(call, 5));
}
