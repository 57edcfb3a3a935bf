/* Tensors of one number, and sequences of numbers. */
#include "numbers.h"
#include "view.h"

/* Gives `out` the sizes of a list. */
static tosaic_status resize(tosaic_tensor *out, const tosaic_list *list) {
    int32_t sizes[TOSAIC_MAX_RANK];
    if (list->count > TOSAIC_MAX_RANK) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        int64_t size = list->items[i]->as.integer;
        if (size < 0 || size > INT32_MAX) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i] = (int32_t)size;
    }
    return tosaic_resize(out, list->count, sizes);
}

/* All elements are that of a tensor with one element. */
static tosaic_status fill_from(tosaic_tensor *out, const tosaic_tensor *value) {
    tosaic_view from = tosaic_view_of(value);
    tosaic_view to = tosaic_view_of(out);
    if (tosaic_count(value) != 1u) {
        return TOSAIC_BAD_SHAPE;
    }
    from.rank = 0;
    return tosaic_stretch(&from, to.rank, to.sizes) ? tosaic_copy_view(&to, &from) : TOSAIC_BAD_SHAPE;
}

/* All elements are the number of an argument. */
static tosaic_status fill(const tosaic_call *call, uint32_t number, uint32_t out, tosaic_status status) {
    tosaic_tensor *tensor = tosaic_tensor_at(call, out);
    if (tosaic_find_access(tensor->dtype) == NULL) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_room room;
    tosaic_tensor value = tosaic_make_tensor(call, number, tensor->dtype, &room);
    return status == TOSAIC_OK ? fill_from(tensor, &value) : status;
}

TOSAIC_KERNEL(full_out, "aten::full.out", "IdO") {
    return fill(call, 1, 2, resize(tosaic_tensor_at(call, 2), tosaic_list_at(call, 0)));
}

TOSAIC_KERNEL(full_like_out, "aten::full_like.out", "Td*O") {
    return fill(call, 1, 3, tosaic_resize_like(tosaic_tensor_at(call, 3), tosaic_tensor_at(call, 0)));
}

TOSAIC_KERNEL(fill_number_out, "aten::fill.Scalar_out", "TdO") {
    return fill(call, 1, 2, tosaic_resize_like(tosaic_tensor_at(call, 2), tosaic_tensor_at(call, 0)));
}

TOSAIC_KERNEL(fill_out, "aten::fill.Tensor_out", "TTO") {
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    tosaic_status status = tosaic_resize_like(out, tosaic_tensor_at(call, 0));
    return status == TOSAIC_OK ? fill_from(out, tosaic_tensor_at(call, 1)) : status;
}

TOSAIC_KERNEL(scalar_tensor_out, "aten::scalar_tensor.out", "dO") {
    return fill(call, 0, 1, tosaic_resize(tosaic_tensor_at(call, 1), 0, NULL));
}

/* Zero has no bits in any type. */
TOSAIC_KERNEL(zeros_out, "aten::zeros.out", "IO") {
    tosaic_tensor *out = tosaic_tensor_at(call, 1);
    tosaic_status status = resize(out, tosaic_list_at(call, 0));
    if (status == TOSAIC_OK && out->bytes > 0) {
        memset(out->data, 0, out->bytes);
    }
    return status;
}

TOSAIC_KERNEL(ones_out, "aten::ones.out", "IO") {
    tosaic_tensor *out = tosaic_tensor_at(call, 1);
    uint8_t one = 1;
    const tosaic_tensor value = {.data = &one, .dtype = TOSAIC_UINT8, .bytes = 1};
    tosaic_status status = resize(out, tosaic_list_at(call, 0));
    return status == TOSAIC_OK ? fill_from(out, &value) : status;
}

/* The elements are not set. */
TOSAIC_KERNEL(empty_out, "aten::empty.out", "I*O") {
    return resize(tosaic_tensor_at(call, 2), tosaic_list_at(call, 0));
}

TOSAIC_KERNEL(empty_dim_order_out, "dim_order_ops::_empty_dim_order.out", "II?O") {
    return resize(tosaic_tensor_at(call, 2), tosaic_list_at(call, 0));
}

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

static double get_number(const tosaic_value *value) {
    return value->kind == TOSAIC_DOUBLE ? value->as.number
           : value->kind == TOSAIC_INT  ? (double)value->as.integer
                                        : (value->as.boolean ? 1.0 : 0.0);
}

/* start, start + step, ... before `end`. In doubles: the number of elements must be exact. */
static tosaic_status count_up(tosaic_tensor *out, double start, double end, double step) {
    double length = (end - start) / step;
    if (tosaic_find_access(out->dtype) == NULL || out->dtype == TOSAIC_FLOAT16) {
        return TOSAIC_BAD_TYPE;
    }
    if (!(length >= 0.0 && length <= (double)INT32_MAX)) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t count = (int32_t)length;
    count += (double)count < length ? 1 : 0;
    tosaic_status status = tosaic_resize(out, 1, &count);
    for (int32_t i = 0; i < count && status == TOSAIC_OK; i++) {
        double number = start + step * i;
        if (out->dtype == TOSAIC_FLOAT32) {
            ((float *)out->data)[i] = (float)number;
        } else if (number > -0x1p63 && number < 0x1p63) {
            tosaic_write_int(out->dtype, out->data, (uint32_t)i, (int64_t)number);
        } else {
            return TOSAIC_BAD_TYPE;
        }
    }
    return status;
}

TOSAIC_KERNEL(arange_out, "aten::arange.out", "dO") {
    return count_up(tosaic_tensor_at(call, 1), 0.0, get_number(call->args[0]), 1.0);
}

TOSAIC_KERNEL(arange_start_out, "aten::arange.start_out", "dddO") {
    return count_up(tosaic_tensor_at(call, 3), get_number(call->args[0]), get_number(call->args[1]),
                    get_number(call->args[2]));
}
