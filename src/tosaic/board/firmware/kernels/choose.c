/* Elements that are chosen by place or by a mask. */
#include "elements.h"
#include "walk.h"

/* Keeps what is on and below a diagonal of each matrix, and clears the rest. */
TOSAIC_KERNEL(tril_out, "aten::tril.out", "TiO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    int64_t diagonal = tosaic_int_at(call, 1);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    if (x->dtype != out->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank < 2 || tosaic_resize_like(out, x) != TOSAIC_OK || !tosaic_is_contiguous(x) ||
        !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t rows = (uint32_t)x->sizes[x->rank - 2u];
    uint32_t columns = (uint32_t)x->sizes[x->rank - 1u];
    uint32_t bytes = tosaic_get_element_size(x->dtype);
    uint32_t count = tosaic_count(x);
    for (uint32_t at = 0; at < count; at += columns) {
        /* Without 64-bit overflow: a row and a column are far smaller than the limits of the diagonal. */
        int64_t row = at / columns % rows;
        int64_t kept = diagonal >= columns ? columns : diagonal < -row ? 0 : row + diagonal + 1;
        uint32_t keep = kept > columns ? columns : (uint32_t)kept;
        memmove(tosaic_address(out, at), tosaic_address(x, at), keep * bytes);
        memset(tosaic_address(out, at + keep), 0, (columns - keep) * bytes);
    }
    return TOSAIC_OK;
}

static bool is_zero(const tosaic_tensor *x, uint32_t at) {
    return tosaic_cast(tosaic_get_number(x, at), x->dtype, TOSAIC_BOOL).whole == 0;
}

/* Lists the coordinates of all elements that are not zero. */
TOSAIC_KERNEL(nonzero_out, "aten::nonzero.out", "TO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 1);
    if (!tosaic_is_number(x->dtype) || out->dtype != TOSAIC_INT64) {
        return TOSAIC_BAD_TYPE;
    }
    uint32_t count = tosaic_count(x);
    int32_t sizes[] = {0, x->rank};
    for (uint32_t i = 0; i < count; i++) {
        sizes[0] += is_zero(x, i) ? 0 : 1;
    }
    if (x == out || tosaic_resize(out, 2, sizes) != TOSAIC_OK || !tosaic_is_contiguous(x) ||
        !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t *y = out->data;
    uint32_t rows = (uint32_t)sizes[0]; /* still to write: the memory of x may be that of the output */
    for (uint32_t i = 0; i < count && rows > 0; i++) {
        if (is_zero(x, i)) {
            continue;
        }
        uint32_t rest = i;
        for (uint32_t k = x->rank; k-- > 0;) {
            y[k] = rest % (uint32_t)x->sizes[k];
            rest /= (uint32_t)x->sizes[k];
        }
        y += x->rank;
        rows--;
    }
    return TOSAIC_OK;
}

/* Each number i as often as repeats[i] says. */
TOSAIC_KERNEL(repeat_interleave_tensor_out, "aten::repeat_interleave.Tensor_out", "Ti?O") {
    const tosaic_tensor *repeats = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    if ((repeats->dtype != TOSAIC_INT32 && repeats->dtype != TOSAIC_INT64) || out->dtype != repeats->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (repeats->rank != 1 || repeats == out) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t sum = 0;
    for (int32_t i = 0; i < repeats->sizes[0]; i++) {
        int64_t times = tosaic_get_number(repeats, (uint32_t)i).whole;
        if (times < 0 || times > INT32_MAX - sum) {
            return TOSAIC_BAD_INDEX;
        }
        sum += times;
    }
    int32_t size = (int32_t)sum;
    if ((!tosaic_is_none_at(call, 1) && tosaic_int_at(call, 1) != sum) || tosaic_resize(out, 1, &size) != TOSAIC_OK) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t at = 0;
    for (int32_t i = 0; i < repeats->sizes[0]; i++) {
        int64_t times = tosaic_get_number(repeats, (uint32_t)i).whole;
        for (; times > 0 && at < (uint32_t)size; times--) {
            tosaic_set_number(out, at++, (tosaic_number){.whole = i});
        }
    }
    return TOSAIC_OK;
}

/* Replaces elements whose mask is true by those of `source`, one after the other. */
TOSAIC_KERNEL(masked_scatter_out, "aten::masked_scatter.out", "TTTO") {
    const tosaic_tensor *inputs[] = {tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 1)};
    const tosaic_tensor *source = tosaic_tensor_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    if (inputs[0]->dtype != out->dtype || inputs[1]->dtype != TOSAIC_BOOL || source->dtype != out->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_walk walk;
    tosaic_status status = tosaic_walk_begin(&walk, out, inputs, 2);
    if (status != TOSAIC_OK) {
        return status;
    }
    if (!tosaic_is_contiguous(out) || !tosaic_is_contiguous(source) || source == out) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t bytes = tosaic_get_element_size(out->dtype);
    uint32_t count = tosaic_count(out);
    uint32_t left = tosaic_count(source);
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool is_masked = ((const uint8_t *)inputs[1]->data)[walk.at[1]] != 0;
        if (is_masked && next == left) {
            return TOSAIC_BAD_SHAPE;
        }
        const uint8_t *from = is_masked ? tosaic_address(source, next++) : tosaic_address(inputs[0], walk.at[0]);
        memmove(tosaic_address(out, i), from, bytes);
        tosaic_walk_next(&walk);
    }
    return TOSAIC_OK;
}
