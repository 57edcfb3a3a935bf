/* Elements and rows of a tensor, chosen by a tensor of indices; and elements put at such places. */
#include "elements.h"
#include "steps.h"

static bool is_index(const tosaic_tensor *tensor) {
    return tensor->dtype == TOSAIC_INT64 || tensor->dtype == TOSAIC_INT32;
}

/* Reads an index that is not counted from the end. */
static bool read_position(const tosaic_tensor *index, uint32_t at, uint32_t size, uint32_t *position) {
    int64_t number = tosaic_get_number(index, at).whole;
    *position = (uint32_t)number;
    return number >= 0 && number < size;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Copies for each of `outer` blocks of `size` rows of `bytes` bytes those that the indices name. */
static tosaic_status copy_rows(const tosaic_tensor *x, uint32_t outer, uint32_t size, uint32_t bytes,
                               const tosaic_tensor *index, tosaic_tensor *out) {
    const uint8_t *from = x->data;
    uint8_t *to = out->data;
    uint32_t count = tosaic_count(index);
    for (uint32_t i = 0; i < outer; i++) {
        for (uint32_t k = 0; k < count; k++) {
            uint32_t row;
            if (!read_position(index, k, size, &row)) {
                return TOSAIC_BAD_INDEX;
            }
            if (bytes != 0) {
                memmove(to + (i * count + k) * bytes, from + (i * size + row) * bytes, bytes);
            }
        }
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(index_select_out, "aten::index_select.out", "TiTO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), x->rank);
    const tosaic_tensor *index = tosaic_tensor_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    if (x->dtype != out->dtype || !is_index(index)) {
        return TOSAIC_BAD_TYPE;
    }
    bool fits = dim != UINT32_MAX && index->rank <= 1 && (x->rank != 0 || tosaic_count(index) == 1);
    if (!fits || index == out || x == out) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t outer = 1;
    uint32_t bytes = tosaic_get_element_size(x->dtype);
    for (uint32_t i = 0; i < x->rank; i++) {
        sizes[i] = i == dim ? (int32_t)tosaic_count(index) : x->sizes[i];
        outer *= i < dim ? (uint32_t)x->sizes[i] : 1u;
        bytes *= i > dim ? (uint32_t)x->sizes[i] : 1u;
    }
    if (tosaic_resize(out, x->rank, sizes) != TOSAIC_OK || !tosaic_is_contiguous(x) || !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    return copy_rows(x, outer, x->rank == 0 ? 1u : (uint32_t)x->sizes[dim], bytes, index, out);
}

TOSAIC_KERNEL(embedding_out, "aten::embedding.out", "TTibbO") {
    const tosaic_tensor *weight = tosaic_tensor_at(call, 0);
    const tosaic_tensor *index = tosaic_tensor_at(call, 1);
    tosaic_tensor *out = tosaic_tensor_at(call, 5);
    if (weight->dtype != out->dtype || !is_index(index)) {
        return TOSAIC_BAD_TYPE;
    }
    if (weight->rank != 2 || index->rank >= TOSAIC_MAX_RANK || weight == out || index == out) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    for (uint32_t i = 0; i < index->rank; i++) {
        sizes[i] = index->sizes[i];
    }
    sizes[index->rank] = weight->sizes[1];
    if (tosaic_resize(out, index->rank + 1u, sizes) != TOSAIC_OK || !tosaic_is_contiguous(weight) ||
        !tosaic_is_contiguous(index) || !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t bytes = (uint32_t)weight->sizes[1] * tosaic_get_element_size(weight->dtype);
    return copy_rows(weight, 1, (uint32_t)weight->sizes[0], bytes, index, out);
}

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

/* A scalar counts as a tensor with one dimension here. */
static uint32_t get_rank(const tosaic_tensor *tensor) { return tensor->rank == 0 ? 1 : tensor->rank; }

static uint32_t get_size(const tosaic_tensor *tensor, uint32_t dim) {
    return tensor->rank == 0 ? 1 : (uint32_t)tensor->sizes[dim];
}

/* Walks over the elements of a tensor that have the places of `index`, except in dimension `dim` if it has one. */
static void begin(tosaic_steps *steps, const tosaic_tensor *tensor, const tosaic_tensor *index, uint32_t dim) {
    uint32_t strides[TOSAIC_MAX_RANK] = {0};
    tosaic_get_strides(tensor, strides);
    tosaic_steps_begin(steps);
    for (uint32_t i = 0; i < get_rank(index); i++) {
        tosaic_steps_add(steps, get_size(index, i), i == dim ? 0 : strides[i]);
    }
}

/* The stride of a dimension. */
static uint32_t get_stride(const tosaic_tensor *tensor, uint32_t dim) {
    uint32_t strides[TOSAIC_MAX_RANK] = {0};
    tosaic_get_strides(tensor, strides);
    return strides[dim];
}

/* Whether `index` is within a tensor in all dimensions but `dim`. */
static bool is_within(const tosaic_tensor *index, const tosaic_tensor *tensor, uint32_t dim) {
    if (get_rank(index) != get_rank(tensor)) {
        return false;
    }
    for (uint32_t i = 0; i < get_rank(index); i++) {
        if (i != dim && get_size(index, i) > get_size(tensor, i)) {
            return false;
        }
    }
    return true;
}

TOSAIC_KERNEL(gather_out, "aten::gather.out", "TiTbO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), x->rank);
    const tosaic_tensor *index = tosaic_tensor_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 4);
    if (x->dtype != out->dtype || index->dtype != TOSAIC_INT64) {
        return TOSAIC_BAD_TYPE;
    }
    if (dim == UINT32_MAX || x == out || index == out || tosaic_resize_like(out, index) != TOSAIC_OK) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t count = tosaic_count(index);
    if (count != 0 && !is_within(index, x, dim)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t bytes = tosaic_get_element_size(x->dtype);
    tosaic_steps from;
    tosaic_steps where;
    tosaic_steps to;
    begin(&from, x, index, dim);
    begin(&where, index, index, UINT32_MAX);
    begin(&to, out, index, UINT32_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position;
        if (!read_position(index, where.at, get_size(x, dim), &position)) {
            return TOSAIC_BAD_INDEX;
        }
        memmove(tosaic_address(out, to.at), tosaic_address(x, from.at + position * get_stride(x, dim)), bytes);
        tosaic_next(&from);
        tosaic_next(&where);
        tosaic_next(&to);
    }
    return TOSAIC_OK;
}

/* Copies `x` to `out`, then puts elements of `source`, or one number if it is NULL, where the indices say. */
static tosaic_status scatter(const tosaic_call *call, const tosaic_tensor *source, tosaic_number number, bool adds) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), x->rank);
    const tosaic_tensor *index = tosaic_tensor_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 4);
    if (!tosaic_is_number(x->dtype) || x->dtype != out->dtype || index->dtype != TOSAIC_INT64 ||
        (source != NULL && source->dtype != x->dtype)) {
        return TOSAIC_BAD_TYPE;
    }
    if (dim == UINT32_MAX || index == out || source == out || tosaic_resize_like(out, x) != TOSAIC_OK ||
        !tosaic_same_order(x, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t count = tosaic_count(index);
    if (count != 0 &&
        (!is_within(index, x, dim) || (source != NULL && !is_within(index, source, UINT32_MAX)))) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_copy(out, x);
    tosaic_steps to;
    tosaic_steps where;
    tosaic_steps from;
    begin(&to, out, index, dim);
    begin(&where, index, index, UINT32_MAX);
    begin(&from, source == NULL ? index : source, index, UINT32_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position;
        if (!read_position(index, where.at, get_size(out, dim), &position)) {
            return TOSAIC_BAD_INDEX;
        }
        uint32_t at = to.at + position * get_stride(out, dim);
        tosaic_number element = source == NULL ? number : tosaic_get_number(source, from.at);
        tosaic_set_number(out, at, adds ? tosaic_add(tosaic_get_number(out, at), element, out->dtype) : element);
        tosaic_next(&to);
        tosaic_next(&where);
        tosaic_next(&from);
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(scatter_src_out, "aten::scatter.src_out", "TiTTO") {
    return scatter(call, tosaic_tensor_at(call, 3), (tosaic_number){.whole = 0}, false);
}

TOSAIC_KERNEL(scatter_value_out, "aten::scatter.value_out", "TiTdO") {
    uint32_t dtype = tosaic_tensor_at(call, 4)->dtype;
    return scatter(call, NULL, tosaic_number_at(call, 3, dtype), false);
}

TOSAIC_KERNEL(scatter_add_out, "aten::scatter_add.out", "TiTTO") {
    return scatter(call, tosaic_tensor_at(call, 3), (tosaic_number){.whole = 0}, true);
}
