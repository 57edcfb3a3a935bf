/* Reductions: one number for each group of elements. */
#include "elements.h"
#include "steps.h"

/* Combines a result so far with one more element, both of the type `dtype`. */
typedef tosaic_number combine_function(tosaic_number result, tosaic_number element, uint32_t dtype);

/* Reduces groups, converted to the type of `out`. Without a `start`, a group begins with its first element. */
static tosaic_status reduce(const tosaic_tensor *x, uint32_t dims, bool keepdim, tosaic_tensor *out,
                            combine_function *combine, const tosaic_number *start) {
    if (!tosaic_is_number(x->dtype) || !tosaic_is_number(out->dtype) ||
        (x->dtype == TOSAIC_FLOAT32 && out->dtype != TOSAIC_FLOAT32 && out->dtype != TOSAIC_BOOL)) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_groups groups;
    tosaic_status status = tosaic_reduce_begin(&groups, x, dims, keepdim, out);
    if (status != TOSAIC_OK) {
        return status;
    }
    if (start == NULL && groups.reduced.count == 0 && groups.kept.count != 0) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < groups.kept.count; i++) {
        tosaic_number result = {.whole = 0};
        for (uint32_t k = 0; k < groups.reduced.count; k++) {
            tosaic_number element = tosaic_get_number(x, groups.kept.at + groups.reduced.at);
            element = tosaic_cast(element, x->dtype, out->dtype);
            if (k == 0) {
                result = start == NULL ? element : combine(*start, element, out->dtype);
            } else {
                result = combine(result, element, out->dtype);
            }
            tosaic_next(&groups.reduced);
        }
        tosaic_set_number(out, i, groups.reduced.count == 0 ? *start : result);
        tosaic_next(&groups.kept);
    }
    return TOSAIC_OK;
}

static tosaic_number make_one(uint32_t dtype) {
    return dtype == TOSAIC_FLOAT32 ? (tosaic_number){.real = 1.0f} : (tosaic_number){.whole = 1};
}

/* ---- Sums, means and products ----------------------------------------------------------------------------------- */

static tosaic_status sum(const tosaic_call *call, const tosaic_tensor *x, uint32_t dims, bool keepdim, uint32_t dtype,
                         tosaic_tensor *out) {
    const tosaic_number zero = {.whole = 0};
    if (!tosaic_is_dtype_at(call, dtype, out)) {
        return TOSAIC_BAD_TYPE;
    }
    return reduce(x, dims, keepdim, out, tosaic_add, &zero);
}

TOSAIC_KERNEL(sum_int_list_out, "aten::sum.IntList_out", "TI?bi?O") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return sum(call, x, dims, tosaic_bool_at(call, 2), 3, tosaic_tensor_at(call, 4));
}

static tosaic_status mean(const tosaic_call *call, const tosaic_tensor *x, uint32_t dims, bool keepdim, uint32_t dtype,
                          tosaic_tensor *out) {
    if (out->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    float count = 1.0f;
    for (uint32_t i = 0; i < x->rank; i++) {
        count *= (dims >> i & 1u) != 0 ? (float)x->sizes[i] : 1.0f;
    }
    tosaic_status status = sum(call, x, dims, keepdim, dtype, out);
    float *y = out->data;
    for (uint32_t i = 0; status == TOSAIC_OK && i < tosaic_count(out); i++) {
        y[i] /= count;
    }
    return status;
}

TOSAIC_KERNEL(mean_out, "aten::mean.out", "TI?bi?O") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, x->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return mean(call, x, dims, tosaic_bool_at(call, 2), 3, tosaic_tensor_at(call, 4));
}

TOSAIC_KERNEL(mean_dtype_out, "aten::mean.dtype_out", "Ti?O") {
    return mean(call, tosaic_tensor_at(call, 0), UINT32_MAX, false, 1, tosaic_tensor_at(call, 2));
}

static tosaic_status prod(const tosaic_call *call, uint32_t dims, bool keepdim, uint32_t dtype, tosaic_tensor *out) {
    tosaic_number one = make_one(out->dtype);
    if (!tosaic_is_dtype_at(call, dtype, out)) {
        return TOSAIC_BAD_TYPE;
    }
    return reduce(tosaic_tensor_at(call, 0), dims, keepdim, out, tosaic_multiply, &one);
}

TOSAIC_KERNEL(prod_out, "aten::prod.out", "Ti?O") {
    return prod(call, UINT32_MAX, false, 1, tosaic_tensor_at(call, 2));
}

TOSAIC_KERNEL(prod_int_out, "aten::prod.int_out", "Tibi?O") {
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, tosaic_tensor_at(call, 0)->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return prod(call, dims, tosaic_bool_at(call, 2), 3, tosaic_tensor_at(call, 4));
}

/* ---- The largest and the smallest -------------------------------------------------------------------------------- */

/* A NaN stays, whether the largest or the smallest element is asked for. */
static tosaic_number choose_larger(tosaic_number result, tosaic_number element, uint32_t dtype) {
    return tosaic_is_less(result, element, dtype) ? element : result;
}

static tosaic_number choose_smaller(tosaic_number result, tosaic_number element, uint32_t dtype) {
    if (dtype == TOSAIC_FLOAT32) {
        return element.real < result.real || tosaic_is_nan(element.real) ? element : result;
    }
    return element.whole < result.whole ? element : result;
}

static tosaic_status find_extreme(const tosaic_call *call, uint32_t dims, bool keepdim, tosaic_tensor *out,
                                  combine_function *choose) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    return x->dtype != out->dtype ? TOSAIC_BAD_TYPE : reduce(x, dims, keepdim, out, choose, NULL);
}

TOSAIC_KERNEL(amax_out, "aten::amax.out", "TIbO") {
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, tosaic_tensor_at(call, 0)->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return find_extreme(call, dims, tosaic_bool_at(call, 2), tosaic_tensor_at(call, 3), choose_larger);
}

TOSAIC_KERNEL(amin_out, "aten::amin.out", "TIbO") {
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, tosaic_tensor_at(call, 0)->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return find_extreme(call, dims, tosaic_bool_at(call, 2), tosaic_tensor_at(call, 3), choose_smaller);
}

TOSAIC_KERNEL(max_unary_out, "aten::max.unary_out", "TO") {
    return find_extreme(call, UINT32_MAX, false, tosaic_tensor_at(call, 1), choose_larger);
}

TOSAIC_KERNEL(min_unary_out, "aten::min.unary_out", "TO") {
    return find_extreme(call, UINT32_MAX, false, tosaic_tensor_at(call, 1), choose_smaller);
}

/* ---- Whether any is true ----------------------------------------------------------------------------------------- */

static tosaic_number find_any(tosaic_number result, tosaic_number element, uint32_t dtype) {
    (void)dtype;
    return (tosaic_number){.whole = result.whole | element.whole};
}

static tosaic_status any(const tosaic_call *call, uint32_t dims, bool keepdim, tosaic_tensor *out) {
    const tosaic_number no = {.whole = 0};
    return out->dtype != TOSAIC_BOOL ? TOSAIC_BAD_TYPE
                                     : reduce(tosaic_tensor_at(call, 0), dims, keepdim, out, find_any, &no);
}

TOSAIC_KERNEL(any_all_out, "aten::any.all_out", "TO") {
    return any(call, UINT32_MAX, false, tosaic_tensor_at(call, 1));
}

TOSAIC_KERNEL(any_out, "aten::any.out", "TibO") {
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, tosaic_tensor_at(call, 0)->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return any(call, dims, tosaic_bool_at(call, 2), tosaic_tensor_at(call, 3));
}

TOSAIC_KERNEL(any_dims_out, "aten::any.dims_out", "TI?bO") {
    uint32_t dims;
    if (!tosaic_dims_at(call, 1, tosaic_tensor_at(call, 0)->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    /* Unlike the other reductions, an empty list is no dimension here. */
    bool is_empty = !tosaic_is_none_at(call, 1) && tosaic_list_at(call, 1)->count == 0;
    return any(call, is_empty ? 0 : dims, tosaic_bool_at(call, 2), tosaic_tensor_at(call, 3));
}
