/* Copies of whole tensors: to another type, another order in memory, another shape. */
#include "view.h"

/* out = self, in the type and the order of `out` */
static tosaic_status copy(const tosaic_call *call, uint32_t out) {
    tosaic_view from = tosaic_view_of(tosaic_tensor_at(call, 0));
    return tosaic_copy_to(tosaic_tensor_at(call, out), &from);
}

TOSAIC_KERNEL(to_copy_out, "aten::_to_copy.out", "Tb*O") { return copy(call, 3); }
TOSAIC_KERNEL(to_dim_order_copy_out, "dim_order_ops::_to_dim_order_copy.out", "TbI?O") { return copy(call, 3); }
TOSAIC_KERNEL(clone_dim_order_out, "dim_order_ops::_clone_dim_order.out", "TbI?O") { return copy(call, 3); }
TOSAIC_KERNEL(clone_out, "aten::clone.out", "T*O") { return copy(call, 2); }
TOSAIC_KERNEL(alias_copy_out, "aten::alias_copy.out", "TO") { return copy(call, 1); }
TOSAIC_KERNEL(detach_copy_out, "aten::detach_copy.out", "TO") { return copy(call, 1); }
TOSAIC_KERNEL(lift_fresh_copy_out, "aten::lift_fresh_copy.out", "TO") { return copy(call, 1); }

/* out = source, stretched to the shape of `self` */
static tosaic_status stretch_to(tosaic_tensor *out, const tosaic_tensor *self, const tosaic_tensor *source) {
    tosaic_view shape = tosaic_view_of(self);
    tosaic_view from = tosaic_view_of(source);
    return tosaic_stretch(&from, shape.rank, shape.sizes) ? tosaic_copy_to(out, &from) : TOSAIC_BAD_SHAPE;
}

TOSAIC_KERNEL(copy_out, "aten::copy.out", "TTbO") {
    return stretch_to(tosaic_tensor_at(call, 3), tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 1));
}

TOSAIC_KERNEL(copy_in_place, "aten::copy_", "OTb") {
    return stretch_to(tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 1));
}

/* A size of -1 keeps the size of the dimension. */
TOSAIC_KERNEL(expand_copy_out, "aten::expand_copy.out", "TIbO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    const tosaic_list *wanted = tosaic_list_at(call, 1);
    if (wanted->count < self->rank || wanted->count > TOSAIC_MAX_RANK) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t sizes[TOSAIC_MAX_RANK];
    uint32_t missing = wanted->count - self->rank;
    for (uint32_t i = 0; i < wanted->count; i++) {
        int64_t size = wanted->items[i]->as.integer;
        if (size == -1 && i >= missing) {
            size = self->sizes[i - missing];
        }
        if (size < 0 || size > INT32_MAX) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i] = (uint32_t)size;
    }
    tosaic_view from = tosaic_view_of(self);
    return tosaic_stretch(&from, wanted->count, sizes) ? tosaic_copy_to(tosaic_tensor_at(call, 3), &from)
                                                       : TOSAIC_BAD_SHAPE;
}

/* ---- The same elements in another shape -------------------------------------------------------------------------- */

/* Gives `out` a shape with as many elements as `self`; a size of -1 is what remains. */
static tosaic_status reshape(tosaic_tensor *out, const tosaic_tensor *self, const tosaic_list *wanted) {
    int32_t sizes[TOSAIC_MAX_RANK];
    uint64_t product = 1; /* of all sizes but zeros */
    uint32_t open = UINT32_MAX;
    uint32_t count = tosaic_count(self);
    bool is_empty = false;
    if (wanted->count > TOSAIC_MAX_RANK || out->dtype != self->dtype) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < wanted->count; i++) {
        int64_t size = wanted->items[i]->as.integer;
        if (size < -1 || size > INT32_MAX || (size == -1 && open != UINT32_MAX)) {
            return TOSAIC_BAD_SHAPE;
        }
        open = size == -1 ? i : open;
        is_empty = is_empty || size == 0;
        product *= size > 0 ? (uint64_t)size : 1u;
        if (product > UINT32_MAX) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i] = (int32_t)size;
    }
    if (open != UINT32_MAX) {
        sizes[open] = (int32_t)(count / product);
        product *= (uint32_t)sizes[open];
    }
    return (is_empty ? 0 : product) == count ? tosaic_resize(out, wanted->count, sizes) : TOSAIC_BAD_SHAPE;
}

TOSAIC_KERNEL(view_copy_out, "aten::view_copy.out", "TIO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    tosaic_status status = reshape(out, self, tosaic_list_at(call, 1));
    if (status != TOSAIC_OK || !tosaic_is_contiguous(self) || !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    if (out->bytes > 0) {
        memmove(out->data, self->data, out->bytes);
    }
    return TOSAIC_OK;
}

/* No copy: the result has the memory of `self`. */
TOSAIC_KERNEL(et_view, "executorch_prim::et_view.default", "TIV") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    const tosaic_tensor before = *out;
    out->data = self->data;
    out->capacity = self->capacity;
    out->access = self->access == TOSAIC_CALLERS ? TOSAIC_VIEW : self->access;
    tosaic_status status = reshape(out, self, tosaic_list_at(call, 1));
    if (status != TOSAIC_OK) {
        *out = before; /* its size fits its old memory */
    }
    return status;
}
