/* Dimensions in another order, added, removed, reversed or repeated. */
#include "view.h"

static void swap(uint32_t *a, uint32_t *b) {
    uint32_t kept = *a;
    *a = *b;
    *b = kept;
}

TOSAIC_KERNEL(permute_copy_out, "aten::permute_copy.out", "TIO") {
    tosaic_view self = tosaic_view_of(tosaic_tensor_at(call, 0));
    const tosaic_list *dims = tosaic_list_at(call, 1);
    tosaic_view from = self;
    uint32_t seen = 0;
    if (dims->count != self.rank) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < self.rank; i++) {
        uint32_t dim = tosaic_wrap_dim(dims->items[i]->as.integer, self.rank);
        if (dim == UINT32_MAX || (seen >> dim & 1u) != 0) {
            return TOSAIC_BAD_SHAPE;
        }
        seen |= 1u << dim;
        from.sizes[i] = self.sizes[dim];
        from.strides[i] = self.strides[dim];
    }
    return tosaic_copy_to(tosaic_tensor_at(call, 2), &from);
}

static tosaic_status transpose(const tosaic_tensor *self, int64_t first, int64_t second, tosaic_tensor *out) {
    tosaic_view from = tosaic_view_of(self);
    uint32_t a = tosaic_wrap_dim(first, from.rank);
    uint32_t b = tosaic_wrap_dim(second, from.rank);
    if (a == UINT32_MAX || b == UINT32_MAX) {
        return TOSAIC_BAD_SHAPE;
    }
    swap(&from.sizes[a], &from.sizes[b]);
    swap(&from.strides[a], &from.strides[b]);
    return tosaic_copy_to(out, &from);
}

TOSAIC_KERNEL(transpose_copy_out, "aten::transpose_copy.int_out", "TiiO") {
    return transpose(tosaic_tensor_at(call, 0), tosaic_int_at(call, 1), tosaic_int_at(call, 2),
                     tosaic_tensor_at(call, 3));
}

/* A matrix; a vector or scalar stays what it is. */
TOSAIC_KERNEL(t_copy_out, "aten::t_copy.out", "TO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    if (self->rank > 2) {
        return TOSAIC_BAD_SHAPE;
    }
    return transpose(self, 0, -1, tosaic_tensor_at(call, 1));
}

/* ---- Dimensions of size 1 ---------------------------------------------------------------------------------------- */

TOSAIC_KERNEL(unsqueeze_copy_out, "aten::unsqueeze_copy.out", "TiO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), from.rank + 1u);
    if (dim == UINT32_MAX || from.rank == TOSAIC_MAX_RANK) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = from.rank++; i > dim; i--) {
        from.sizes[i] = from.sizes[i - 1u];
        from.strides[i] = from.strides[i - 1u];
    }
    from.sizes[dim] = 1;
    return tosaic_copy_to(tosaic_tensor_at(call, 2), &from);
}

/* Removes the dimensions of a set, one bit each, that have size 1. */
static tosaic_status squeeze(const tosaic_tensor *self, uint32_t dims, tosaic_tensor *out) {
    tosaic_view from = tosaic_view_of(self);
    for (uint32_t dim = from.rank; dim-- > 0;) {
        if ((dims >> dim & 1u) != 0 && from.sizes[dim] == 1u) {
            tosaic_drop_dim(&from, dim);
        }
    }
    return tosaic_copy_to(out, &from);
}

TOSAIC_KERNEL(squeeze_copy_dim_out, "aten::squeeze_copy.dim_out", "TiO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), self->rank);
    return dim == UINT32_MAX ? TOSAIC_BAD_SHAPE : squeeze(self, 1u << dim, tosaic_tensor_at(call, 2));
}

/* The dimensions of a list as a set; false if one is not there. */
static bool make_set(const tosaic_list *list, uint32_t rank, uint32_t *dims) {
    *dims = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t dim = tosaic_wrap_dim(list->items[i]->as.integer, rank);
        if (dim == UINT32_MAX) {
            return false;
        }
        *dims |= 1u << dim;
    }
    return true;
}

TOSAIC_KERNEL(squeeze_copy_dims_out, "aten::squeeze_copy.dims_out", "TIO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    uint32_t dims;
    if (!make_set(tosaic_list_at(call, 1), self->rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    return squeeze(self, dims, tosaic_tensor_at(call, 2));
}

/* ---- Reversed, repeated, rolled ---------------------------------------------------------------------------------- */

TOSAIC_KERNEL(flip_out, "aten::flip.out", "TIO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    uint32_t dims;
    if (!make_set(tosaic_list_at(call, 1), from.rank, &dims)) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t dim = 0; dim < from.rank; dim++) {
        if ((dims >> dim & 1u) != 0 && from.sizes[dim] > 0) {
            from.offset += from.strides[dim] * (from.sizes[dim] - 1u);
            from.strides[dim] = 0u - from.strides[dim];
        }
    }
    return tosaic_copy_to(tosaic_tensor_at(call, 2), &from);
}

/* Every dimension of the output is seen as two: which repetition, and which element. */
TOSAIC_KERNEL(repeat_out, "aten::repeat.out", "TIO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *repeats = tosaic_list_at(call, 1);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    uint32_t rank = repeats->count;
    if (rank < self->rank || 2u * rank > TOSAIC_MAX_RANK) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_view from = {.data = self->data, .dtype = self->dtype, .rank = 2u * rank};
    tosaic_view own = tosaic_view_of(self);
    int32_t sizes[TOSAIC_MAX_RANK];
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t missing = rank - self->rank;
        int64_t times = repeats->items[i]->as.integer;
        uint32_t size = i < missing ? 1u : own.sizes[i - missing];
        if (times < 0 || times > INT32_MAX || (int64_t)size * times > INT32_MAX) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i] = (int32_t)(size * (uint32_t)times);
        from.sizes[2u * i] = (uint32_t)times;
        from.sizes[2u * i + 1u] = size;
        from.strides[2u * i + 1u] = i < missing ? 0 : own.strides[i - missing];
    }
    tosaic_status status = tosaic_resize(out, rank, sizes);
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_view whole = tosaic_view_of(out);
    tosaic_view to = from;
    to.data = out->data;
    to.dtype = out->dtype;
    for (uint32_t i = 0; i < rank; i++) {
        to.strides[2u * i] = whole.strides[i] * from.sizes[2u * i + 1u];
        to.strides[2u * i + 1u] = whole.strides[i];
    }
    return tosaic_copy_view(&to, &from);
}

/* Each rolled dimension has two parts, which change places. */
static tosaic_status roll(const tosaic_view *to, const tosaic_view *from, const uint32_t *shifts) {
    for (uint32_t parts = 0; parts >> to->rank == 0; parts++) {
        tosaic_view target = *to;
        tosaic_view source = *from;
        for (uint32_t dim = 0; dim < to->rank; dim++) {
            uint32_t rest = to->sizes[dim] - shifts[dim];
            bool is_second = (parts >> dim & 1u) != 0;
            uint32_t length = is_second ? shifts[dim] : rest;
            tosaic_cut(&target, dim, is_second ? 0 : shifts[dim], length, 1);
            tosaic_cut(&source, dim, is_second ? rest : 0, length, 1);
        }
        tosaic_status status = tosaic_copy_view(&target, &source);
        if (status != TOSAIC_OK) {
            return status;
        }
    }
    return TOSAIC_OK;
}

/* Without dimensions the tensor is rolled as one row. */
TOSAIC_KERNEL(roll_out, "aten::roll.out", "TIIO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *amounts = tosaic_list_at(call, 1);
    const tosaic_list *dims = tosaic_list_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    tosaic_status status = tosaic_resize_like(out, self);
    bool is_row = dims->count == 0;
    if (status != TOSAIC_OK || amounts->count != (is_row ? 1u : dims->count) ||
        (is_row && (!tosaic_is_contiguous(self) || !tosaic_is_contiguous(out)))) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_view from = tosaic_view_of(self);
    tosaic_view to = tosaic_view_of(out);
    if (is_row) {
        from.rank = to.rank = 1;
        from.sizes[0] = to.sizes[0] = tosaic_count(self);
        from.strides[0] = to.strides[0] = 1;
    }
    uint32_t shifts[TOSAIC_MAX_RANK] = {0};
    for (uint32_t i = 0; i < amounts->count; i++) {
        uint32_t dim = is_row ? 0 : tosaic_wrap_dim(dims->items[i]->as.integer, from.rank);
        if (dim >= from.rank) {
            return TOSAIC_BAD_SHAPE;
        }
        int64_t size = from.sizes[dim] != 0 ? (int64_t)from.sizes[dim] : 1;
        int64_t shift = (amounts->items[i]->as.integer % size + (int64_t)shifts[dim]) % size;
        shifts[dim] = (uint32_t)(shift < 0 ? shift + size : shift);
    }
    return roll(&to, &from, shifts);
}

/* ---- Views of other dimensions ----------------------------------------------------------------------------------- */

/* The diagonal of two dimensions becomes the last one; it begins `offset` columns to the right, or rows below. */
TOSAIC_KERNEL(diagonal_copy_out, "aten::diagonal_copy.out", "TiiiO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    int64_t offset = tosaic_int_at(call, 1);
    uint32_t row = tosaic_wrap_dim(tosaic_int_at(call, 2), from.rank);
    uint32_t column = tosaic_wrap_dim(tosaic_int_at(call, 3), from.rank);
    if (row >= from.rank || column >= from.rank || row == column) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t rows = (int64_t)from.sizes[row] + (offset < 0 ? offset : 0);
    int64_t columns = (int64_t)from.sizes[column] - (offset > 0 ? offset : 0);
    int64_t length = rows < columns ? rows : columns;
    uint32_t stride = from.strides[row] + from.strides[column];
    if (length > 0) {
        from.offset += offset > 0 ? (uint32_t)offset * from.strides[column] : (uint32_t)-offset * from.strides[row];
    }
    tosaic_drop_dim(&from, row > column ? row : column);
    tosaic_drop_dim(&from, row < column ? row : column);
    from.sizes[from.rank] = length > 0 ? (uint32_t)length : 0;
    from.strides[from.rank++] = stride;
    return tosaic_copy_to(tosaic_tensor_at(call, 4), &from);
}

/* Windows of a dimension: it counts them, and a new last dimension has their elements. */
TOSAIC_KERNEL(unfold_copy_out, "aten::unfold_copy.out", "TiiiO") {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    uint32_t dim = tosaic_wrap_dim(tosaic_int_at(call, 1), from.rank);
    int64_t size = tosaic_int_at(call, 2);
    int64_t step = tosaic_int_at(call, 3);
    if (dim >= from.rank || from.rank == TOSAIC_MAX_RANK || size < 0 || size > from.sizes[dim] || step <= 0) {
        return TOSAIC_BAD_SHAPE;
    }
    int64_t count = ((int64_t)from.sizes[dim] - size) / step + 1;
    from.sizes[from.rank] = (uint32_t)size;
    from.strides[from.rank++] = from.strides[dim];
    from.sizes[dim] = (uint32_t)count;
    from.strides[dim] *= count > 1 ? (uint32_t)step : 1u;
    return tosaic_copy_to(tosaic_tensor_at(call, 4), &from);
}

/* Any sizes and strides that stay in the tensor. */
TOSAIC_KERNEL(as_strided_copy_out, "aten::as_strided_copy.out", "TIIi?O") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *sizes = tosaic_list_at(call, 1);
    const tosaic_list *strides = tosaic_list_at(call, 2);
    int64_t offset = tosaic_is_none_at(call, 3) ? 0 : tosaic_int_at(call, 3);
    uint32_t count = tosaic_count(self);
    if (sizes->count != strides->count || sizes->count > TOSAIC_MAX_RANK || offset < 0 || offset >= count) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_view from = {.data = self->data, .dtype = self->dtype, .offset = (uint32_t)offset, .rank = sizes->count};
    int64_t last = offset;
    for (uint32_t i = 0; i < from.rank; i++) {
        int64_t size = sizes->items[i]->as.integer;
        int64_t stride = strides->items[i]->as.integer;
        if (size < 0 || size > INT32_MAX || stride < 0 || stride > INT32_MAX) {
            return TOSAIC_BAD_SHAPE;
        }
        last += size > 0 ? (size - 1) * stride : 0;
        if (last >= count) {
            return TOSAIC_BAD_SHAPE;
        }
        from.sizes[i] = (uint32_t)size;
        from.strides[i] = (uint32_t)stride;
    }
    return tosaic_copy_to(tosaic_tensor_at(call, 4), &from);
}
