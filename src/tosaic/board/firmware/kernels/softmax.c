/* Softmax and its logarithm, along one dimension. */
#include "floats.h"
#include "steps.h"

static tosaic_status softmax(const tosaic_call *call, bool is_log) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), x->rank);
    if (x->dtype != TOSAIC_FLOAT32 || out->dtype != TOSAIC_FLOAT32 || tosaic_bool_at(call, 2)) {
        return TOSAIC_BAD_TYPE;
    }
    if (dim == UINT32_MAX || tosaic_resize_like(out, x) != TOSAIC_OK || !tosaic_same_order(x, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_groups groups;
    tosaic_groups_begin(&groups, x, 1u << dim);
    uint32_t count = groups.reduced.count;
    for (uint32_t i = 0; i < groups.kept.count; i++) {
        const float *in = (const float *)x->data + groups.kept.at;
        float *y = (float *)out->data + groups.kept.at;
        /* Only differences to the largest element matter; they cannot overflow. */
        float largest = -TOSAIC_INFINITY;
        for (uint32_t k = 0; k < count; k++, tosaic_next(&groups.reduced)) {
            largest = in[groups.reduced.at] > largest ? in[groups.reduced.at] : largest;
        }
        float sum = 0.0f;
        for (uint32_t k = 0; k < count; k++, tosaic_next(&groups.reduced)) {
            float difference = in[groups.reduced.at] - largest;
            float power = tosaic_exp(difference);
            sum += power;
            y[groups.reduced.at] = is_log ? difference : power;
        }
        float last = is_log ? tosaic_log(sum) : sum;
        for (uint32_t k = 0; k < count; k++, tosaic_next(&groups.reduced)) {
            float *result = &y[groups.reduced.at];
            *result = is_log ? *result - last : *result / last;
        }
        tosaic_next(&groups.kept);
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(softmax_out, "aten::_softmax.out", "TibO") { return softmax(call, false); }

TOSAIC_KERNEL(log_softmax_out, "aten::_log_softmax.out", "TibO") { return softmax(call, true); }
