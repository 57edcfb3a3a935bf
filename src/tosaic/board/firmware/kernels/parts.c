/* Parts of tensors: taken out, put in, joined, padded. */
#include "numbers.h"
#include "view.h"

/* ---- One part ---------------------------------------------------------------------------------------------------- */

static int64_t limit(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* Cuts a view to what arguments from `first` on say: dim, start, end, step. */
static tosaic_status slice(tosaic_view *view, const tosaic_call *call, uint32_t first) {
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, first), view->rank);
    int64_t step = tosaic_int_at(call, first + 3u);
    if (dim >= view->rank || step <= 0) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t size = view->sizes[dim];
    int64_t start = tosaic_is_none_at(call, first + 1u) ? 0 : tosaic_int_at(call, first + 1u);
    int64_t end = tosaic_is_none_at(call, first + 2u) ? size : tosaic_int_at(call, first + 2u);
    start = limit(start < 0 ? start + size : start, 0, size);
    end = limit(end < 0 ? end + size : end, start, size);
    /* A longer step than the dimension takes one element, too. */
    step = limit(step, 1, size + 1);
    tosaic_cut(view, dim, (uint32_t)start, (uint32_t)((end - start + step - 1) / step), (uint32_t)step);
    return TOSAIC_OK;
}

/* Leaves one element of a dimension, which goes. */
static tosaic_status select(tosaic_view *view, int64_t dimension, int64_t index) {
    uint32_t dim = tosaic_wrap_dim(dimension, view->rank);
    if (dim >= view->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t at = view->sizes[dim] == 0 ? UINT32_MAX : tosaic_wrap_dim(index, view->sizes[dim]);
    if (at == UINT32_MAX) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_cut(view, dim, at, 1, 1);
    tosaic_drop_dim(view, dim);
    return TOSAIC_OK;
}

TOSAIC_KERNEL(slice_copy_out, "aten::slice_copy.Tensor_out", "Tii?i?iO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    tosaic_status status = slice(&from, call, 1);
    return status == TOSAIC_OK ? tosaic_copy_to(tosaic_tensor_at(call, 5), &from) : status;
}

TOSAIC_KERNEL(select_copy_out, "aten::select_copy.int_out", "TiiO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    tosaic_status status = select(&from, tosaic_int_at(call, 1), tosaic_int_at(call, 2));
    return status == TOSAIC_OK ? tosaic_copy_to(tosaic_tensor_at(call, 3), &from) : status;
}

TOSAIC_KERNEL(narrow_copy_out, "aten::narrow_copy.out", "TiiiO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), from.rank);
    int64_t start = tosaic_int_at(call, 2);
    int64_t length = tosaic_int_at(call, 3);
    if (dim >= from.rank) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t size = from.sizes[dim];
    start += start < 0 ? size : 0;
    if (start < 0 || start > size || length < 0 || length > size - start) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_cut(&from, dim, (uint32_t)start, (uint32_t)length, 1);
    return tosaic_copy_to(tosaic_tensor_at(call, 4), &from);
}

/* out = self, but for the part that is `source` */
static tosaic_status put(tosaic_tensor *out, const tosaic_tensor *self, const tosaic_tensor *source,
                         const tosaic_view *part) {
    tosaic_view from = tosaic_view_of(self);
    tosaic_status status = tosaic_copy_to(out, &from);
    if (status != TOSAIC_OK) {
        return status;
    }
    from = tosaic_view_of(source);
    return tosaic_copy_view(part, &from);
}

/* The view of an output that has its size already: the sizes of the part depend on it. */
static tosaic_status view_resized(tosaic_tensor *out, const tosaic_tensor *self, tosaic_view *view) {
    tosaic_status status = tosaic_resize_like(out, self);
    *view = tosaic_view_of(out);
    return status;
}

TOSAIC_KERNEL(slice_scatter_out, "aten::slice_scatter.out", "TTii?i?iO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 6);
    tosaic_view part;
    tosaic_status status = view_resized(out, self, &part);
    if (status == TOSAIC_OK) {
        status = slice(&part, call, 2);
    }
    return status == TOSAIC_OK ? put(out, self, tosaic_tensor_at(call, 1), &part) : status;
}

TOSAIC_KERNEL(select_scatter_out, "aten::select_scatter.out", "TTiiO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 4);
    tosaic_view part;
    tosaic_status status = view_resized(out, self, &part);
    if (status == TOSAIC_OK) {
        status = select(&part, tosaic_int_at(call, 2), tosaic_int_at(call, 3));
    }
    return status == TOSAIC_OK ? put(out, self, tosaic_tensor_at(call, 1), &part) : status;
}

/* ---- Several parts ----------------------------------------------------------------------------------------------- */

/* Gives `out` the elements of `self` from `start` on. */
static tosaic_status take_part(const tosaic_tensor *self, uint32_t dim, int64_t start, int64_t length,
                               tosaic_tensor *out) {
    tosaic_view from = tosaic_view_of(self);
    if (length < 0 || start + length > from.sizes[dim]) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_cut(&from, dim, (uint32_t)start, (uint32_t)length, 1);
    return tosaic_copy_to(out, &from);
}

TOSAIC_KERNEL(split_with_sizes_copy_out, "aten::split_with_sizes_copy.out", "TIiW") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *sizes = tosaic_list_at(call, 1);
    const tosaic_list *outs = tosaic_list_at(call, 3);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 2), self->rank);
    if (dim >= self->rank || outs->count != sizes->count) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t start = 0;
    for (uint32_t i = 0; i < sizes->count; i++) {
        int64_t length = limit(sizes->items[i]->as.integer, -1, INT32_MAX);
        tosaic_status status = take_part(self, dim, start, length, outs->items[i]->as.tensor);
        if (status != TOSAIC_OK) {
            return status;
        }
        start += length;
    }
    return start == self->sizes[dim] ? TOSAIC_OK : TOSAIC_BAD_SHAPE;
}

/* Parts of one size; the last may be shorter. */
TOSAIC_KERNEL(split_copy_out, "aten::split_copy.Tensor_out", "TiiW") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *outs = tosaic_list_at(call, 3);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 2), self->rank);
    int64_t length = limit(tosaic_int_at(call, 1), -1, INT32_MAX);
    if (dim >= self->rank || length < 0 || (length == 0 && self->sizes[dim] != 0)) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t start = 0;
    for (uint32_t i = 0; i < outs->count; i++) {
        int64_t rest = self->sizes[dim] - start;
        int64_t part = length < rest ? length : rest;
        tosaic_status status = take_part(self, dim, start, part, outs->items[i]->as.tensor);
        if (status != TOSAIC_OK) {
            return status;
        }
        start += part;
    }
    return start == self->sizes[dim] ? TOSAIC_OK : TOSAIC_BAD_SHAPE;
}

TOSAIC_KERNEL(unbind_copy_out, "aten::unbind_copy.int_out", "TiW") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *outs = tosaic_list_at(call, 2);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), self->rank);
    if (dim >= self->rank || outs->count != (uint32_t)self->sizes[dim]) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < outs->count; i++) {
        tosaic_view from = tosaic_view_of(self);
        tosaic_status status = select(&from, dim, i);
        if (status == TOSAIC_OK) {
            status = tosaic_copy_to(outs->items[i]->as.tensor, &from);
        }
        if (status != TOSAIC_OK) {
            return status;
        }
    }
    return TOSAIC_OK;
}

/* ---- Joined ------------------------------------------------------------------------------------------------------ */

/* An empty list of numbers may be joined with anything. */
static bool is_nothing(const tosaic_tensor *tensor) { return tensor->rank == 1 && tensor->sizes[0] == 0; }

TOSAIC_KERNEL(cat_out, "aten::cat.out", "LiO") {
    const tosaic_list *inputs = tosaic_list_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), out->rank);
    int64_t total = 0;
    int32_t sizes[TOSAIC_MAX_RANK] = {0};
    for (uint32_t i = 0; i < inputs->count; i++) {
        const tosaic_tensor *input = inputs->items[i]->as.tensor;
        if (is_nothing(input)) {
            continue;
        }
        if (input->rank != out->rank || dim >= out->rank) {
            return TOSAIC_BAD_SHAPE;
        }
        for (uint32_t k = 0; k < out->rank; k++) {
            sizes[k] = input->sizes[k];
        }
        total += input->sizes[dim];
    }
    if (dim >= out->rank || total > INT32_MAX) {
        return TOSAIC_BAD_SHAPE;
    }
    sizes[dim] = (int32_t)total;
    tosaic_status status = tosaic_resize(out, out->rank, sizes);
    uint32_t start = 0;
    for (uint32_t i = 0; i < inputs->count && status == TOSAIC_OK; i++) {
        const tosaic_tensor *input = inputs->items[i]->as.tensor;
        if (is_nothing(input)) {
            continue;
        }
        tosaic_view from = tosaic_view_of(input);
        tosaic_view to = tosaic_view_of(out);
        /* An input that is the output has grown with it. */
        if (from.sizes[dim] > to.sizes[dim] - start) {
            return TOSAIC_BAD_SHAPE;
        }
        tosaic_cut(&to, dim, start, from.sizes[dim], 1);
        status = tosaic_copy_view(&to, &from);
        start += from.sizes[dim];
    }
    return status;
}

TOSAIC_KERNEL(stack_out, "aten::stack.out", "LiO") {
    const tosaic_list *inputs = tosaic_list_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), out->rank);
    if (inputs->count == 0 || dim >= out->rank || inputs->items[0]->as.tensor->rank + 1u != out->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    for (uint32_t i = 0; i < out->rank; i++) {
        sizes[i] = i == dim ? (int32_t)inputs->count : inputs->items[0]->as.tensor->sizes[i - (i > dim ? 1u : 0u)];
    }
    tosaic_status status = tosaic_resize(out, out->rank, sizes);
    for (uint32_t i = 0; i < inputs->count && status == TOSAIC_OK; i++) {
        tosaic_view from = tosaic_view_of(inputs->items[i]->as.tensor);
        tosaic_view to = tosaic_view_of(out);
        status = select(&to, dim, i);
        if (status == TOSAIC_OK) {
            status = tosaic_copy_view(&to, &from);
        }
    }
    return status;
}

/* ---- Padded ------------------------------------------------------------------------------------------------------ */

/* `pad` has two numbers for each dimension, from the last one on; negative ones cut off. */
TOSAIC_KERNEL(constant_pad_nd_out, "aten::constant_pad_nd.out", "TIdO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *pad = tosaic_list_at(call, 1);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    int32_t sizes[TOSAIC_MAX_RANK];
    if (tosaic_find_access(out->dtype) == NULL) {
        return TOSAIC_BAD_TYPE;
    }
    if (pad->count % 2u != 0 || pad->count / 2u > self->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t before[TOSAIC_MAX_RANK] = {0};
    for (uint32_t i = 0; i < self->rank; i++) {
        uint32_t pair = 2u * (self->rank - 1u - i);
        bool is_padded = pair < pad->count;
        before[i] = is_padded ? limit(pad->items[pair]->as.integer, INT32_MIN, INT32_MAX) : 0;
        int64_t after = is_padded ? limit(pad->items[pair + 1u]->as.integer, INT32_MIN, INT32_MAX) : 0;
        int64_t size = before[i] + self->sizes[i] + after;
        if (size < 0 || size > INT32_MAX) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i] = (int32_t)size;
    }
    tosaic_status status = tosaic_resize(out, self->rank, sizes);
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_room room;
    tosaic_tensor value = tosaic_make_tensor(call, 2, out->dtype, &room);
    tosaic_view from = tosaic_view_of(&value);
    tosaic_view to = tosaic_view_of(out);
    if (!tosaic_stretch(&from, to.rank, to.sizes)) {
        return TOSAIC_BAD_SHAPE;
    }
    status = tosaic_copy_view(&to, &from);
    from = tosaic_view_of(self);
    for (uint32_t i = 0; i < self->rank && status == TOSAIC_OK; i++) {
        /* Where the part that remains begins in the output, and in the input. */
        int64_t start = limit(before[i], 0, sizes[i]);
        int64_t source = limit(-before[i], 0, self->sizes[i]);
        int64_t length = self->sizes[i] - source;
        length = length < sizes[i] - start ? length : sizes[i] - start;
        tosaic_cut(&to, i, (uint32_t)start, (uint32_t)length, 1);
        tosaic_cut(&from, i, (uint32_t)source, (uint32_t)length, 1);
    }
    return status == TOSAIC_OK ? tosaic_copy_view(&to, &from) : status;
}
