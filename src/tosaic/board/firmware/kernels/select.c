/* Where the largest and smallest elements are: argmax, max, topk and their relatives; and running sums. */
#include "elements.h"
#include "steps.h"

/* Whether an element is chosen over another. For argmin and min, a NaN is smaller than all numbers. */
static bool is_better(tosaic_number a, tosaic_number b, uint32_t dtype, bool largest) {
    if (largest) {
        return tosaic_is_less(b, a, dtype);
    }
    if (dtype == TOSAIC_FLOAT32 && (tosaic_is_nan(a.real) || tosaic_is_nan(b.real))) {
        return !tosaic_is_nan(b.real);
    }
    return tosaic_is_less(a, b, dtype);
}

/* Writes for each group where its first best element is, and unless `values` is NULL, what it is. */
static tosaic_status find_best(const tosaic_tensor *x, uint32_t dims, bool keepdim, bool largest,
                               tosaic_tensor *values, tosaic_tensor *indices) {
    if (!tosaic_is_number(x->dtype) || indices->dtype != TOSAIC_INT64 ||
        (values != NULL && values->dtype != x->dtype)) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_groups groups;
    tosaic_status status = TOSAIC_OK;
    if (values != NULL) {
        status = tosaic_reduce_begin(&groups, x, dims, keepdim, values);
    }
    if (status == TOSAIC_OK) {
        status = tosaic_reduce_begin(&groups, x, dims, keepdim, indices);
    }
    if (status != TOSAIC_OK || (groups.reduced.count == 0 && groups.kept.count != 0) ||
        (values != NULL && (!tosaic_same_shape(values, indices) || !tosaic_same_order(values, indices)))) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < groups.kept.count; i++) {
        tosaic_number best = tosaic_get_number(x, groups.kept.at);
        uint32_t where = 0;
        for (uint32_t k = 0; k < groups.reduced.count; k++) {
            tosaic_number element = tosaic_get_number(x, groups.kept.at + groups.reduced.at);
            if (is_better(element, best, x->dtype, largest)) {
                best = element;
                where = k;
            }
            tosaic_next(&groups.reduced);
        }
        if (values != NULL) {
            tosaic_set_number(values, i, best);
        }
        ((int64_t *)indices->data)[i] = where;
        tosaic_next(&groups.kept);
    }
    return TOSAIC_OK;
}

static tosaic_status find_index(const tosaic_call *call, bool largest) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return find_best(x, dims, tosaic_bool_at(call, 2), largest, NULL, tosaic_tensor_at(call, 3));
}

static tosaic_status find_both(const tosaic_call *call, bool largest) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return find_best(x, dims, tosaic_bool_at(call, 2), largest, tosaic_tensor_at(call, 3), tosaic_tensor_at(call, 4));
}

TOSAIC_KERNEL(argmax_out, "aten::argmax.out", "Ti?bO") { return find_index(call, true); }

TOSAIC_KERNEL(argmin_out, "aten::argmin.out", "Ti?bO") { return find_index(call, false); }

TOSAIC_KERNEL(max_dim_max, "aten::max.dim_max", "TibOO") { return find_both(call, true); }

TOSAIC_KERNEL(min_dim_min, "aten::min.dim_min", "TibOO") { return find_both(call, false); }

/* A line of elements, and the order in which topk takes them. */
typedef struct line {
    const tosaic_tensor *tensor;
    uint32_t at;
    uint32_t stride;
    uint32_t length;
    bool largest;
} line;

/* Whether element `a` comes before element `b`; equal ones keep their order. */
static bool comes_first(const line *x, uint32_t a, uint32_t b) {
    uint32_t dtype = x->tensor->dtype;
    tosaic_number first = tosaic_get_number(x->tensor, x->at + (x->largest ? b : a) * x->stride);
    tosaic_number second = tosaic_get_number(x->tensor, x->at + (x->largest ? a : b) * x->stride);
    if (tosaic_is_less(first, second, dtype)) {
        return true;
    }
    return !tosaic_is_less(second, first, dtype) && a < b;
}

/* Finds the element that comes next after `last`, or first if that is `length`; returns `length` if there is none. */
static uint32_t find_next(const line *x, uint32_t last) {
    uint32_t next = x->length;
    for (uint32_t i = 0; i < x->length; i++) {
        if ((last == x->length || comes_first(x, last, i)) && (next == x->length || comes_first(x, i, next))) {
            next = i;
        }
    }
    return next;
}

/* The k largest or smallest elements of each line. They are always sorted: it costs nothing here. */
TOSAIC_KERNEL(topk_values, "aten::topk.values", "TiibbOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    int64_t k = tosaic_int_at(call, 1);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 2), x->rank);
    bool largest = tosaic_bool_at(call, 3);
    tosaic_tensor *values = tosaic_tensor_at(call, 5);
    tosaic_tensor *indices = tosaic_tensor_at(call, 6);
    if (!tosaic_is_number(x->dtype) || values->dtype != x->dtype || indices->dtype != TOSAIC_INT64) {
        return TOSAIC_BAD_TYPE;
    }
    if (dim == UINT32_MAX || k < 0 || k > (x->rank == 0 ? 1 : x->sizes[dim])) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    for (uint32_t i = 0; i < x->rank; i++) {
        sizes[i] = i == dim ? (int32_t)k : x->sizes[i];
    }
    tosaic_groups in;
    tosaic_groups out;
    tosaic_groups_begin(&in, x, 1u << dim);
    tosaic_status status = tosaic_resize(values, x->rank, sizes);
    if (status == TOSAIC_OK) {
        status = tosaic_resize(indices, values->rank, sizes);
    }
    if (status != TOSAIC_OK || !tosaic_same_shape(values, indices) || !tosaic_same_order(values, indices)) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_groups_begin(&out, values, 1u << dim);
    line row = {x, 0, in.reduced.rank == 0 ? 0 : in.reduced.strides[0], in.reduced.count, largest};
    uint32_t out_stride = out.reduced.rank == 0 ? 0 : out.reduced.strides[0];
    for (uint32_t i = 0; i < out.kept.count; i++) {
        uint32_t last = row.length;
        row.at = in.kept.at;
        for (uint32_t j = 0; j < out.reduced.count; j++) {
            last = find_next(&row, last);
            if (last == row.length) {
                return TOSAIC_BAD_SHAPE; /* the result is in the memory of the input */
            }
            tosaic_set_number(values, out.kept.at + j * out_stride, tosaic_get_number(x, row.at + last * row.stride));
            ((int64_t *)indices->data)[out.kept.at + j * out_stride] = last;
        }
        tosaic_next(&in.kept);
        tosaic_next(&out.kept);
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(cumsum_out, "aten::cumsum.out", "Tii?O") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), x->rank);
    if (!tosaic_is_number(x->dtype) || !tosaic_is_number(out->dtype) || !tosaic_is_dtype_at(call, 2, out) ||
        (x->dtype == TOSAIC_FLOAT32 && out->dtype != TOSAIC_FLOAT32)) {
        return TOSAIC_BAD_TYPE;
    }
    if (dim == UINT32_MAX || tosaic_resize_like(out, x) != TOSAIC_OK || !tosaic_same_order(x, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_groups groups;
    tosaic_groups_begin(&groups, x, 1u << dim);
    for (uint32_t i = 0; i < groups.kept.count; i++) {
        tosaic_number sum = {.whole = 0};
        for (uint32_t k = 0; k < groups.reduced.count; k++) {
            uint32_t at = groups.kept.at + groups.reduced.at;
            sum = tosaic_add(sum, tosaic_cast(tosaic_get_number(x, at), x->dtype, out->dtype), out->dtype);
            tosaic_set_number(out, at, sum);
            tosaic_next(&groups.reduced);
        }
        tosaic_next(&groups.kept);
    }
    return TOSAIC_OK;
}
