#include "steps.h"

void tosaic_steps_begin(tosaic_steps *steps) {
    steps->at = 0;
    steps->count = 1;
    steps->rank = 0;
}

void tosaic_steps_add(tosaic_steps *steps, uint32_t size, uint32_t stride) {
    steps->sizes[steps->rank] = size;
    steps->strides[steps->rank] = stride;
    steps->index[steps->rank] = 0;
    steps->rank++;
    steps->count *= size;
}

void tosaic_next(tosaic_steps *steps) {
    for (uint32_t i = steps->rank; i-- > 0;) {
        steps->at += steps->strides[i];
        if (++steps->index[i] < steps->sizes[i]) {
            return;
        }
        steps->at -= steps->strides[i] * steps->sizes[i];
        steps->index[i] = 0;
    }
}

void tosaic_groups_begin(tosaic_groups *groups, const tosaic_tensor *tensor, uint32_t dims) {
    uint32_t strides[TOSAIC_MAX_RANK];
    tosaic_get_strides(tensor, strides);
    tosaic_steps_begin(&groups->kept);
    tosaic_steps_begin(&groups->reduced);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        bool is_reduced = (dims >> i & 1u) != 0;
        tosaic_steps_add(is_reduced ? &groups->reduced : &groups->kept, (uint32_t)tensor->sizes[i], strides[i]);
    }
}

/* Puts the dimensions of a walk in the order of a tensor in memory. `numbers` are those of the walk's dimensions. */
static void reorder(tosaic_steps *steps, const tosaic_tensor *tensor, const uint32_t *numbers) {
    tosaic_steps old = *steps;
    tosaic_steps_begin(steps);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        for (uint32_t k = 0; k < old.rank; k++) {
            if (numbers[k] == tensor->dim_order[i]) {
                tosaic_steps_add(steps, old.sizes[k], old.strides[k]);
            }
        }
    }
}

tosaic_status tosaic_reduce_begin(tosaic_groups *groups, const tosaic_tensor *tensor, uint32_t dims, bool keepdim,
                                  tosaic_tensor *out) {
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t numbers[TOSAIC_MAX_RANK];
    uint32_t rank = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        bool is_reduced = (dims >> i & 1u) != 0;
        if (!is_reduced) {
            numbers[kept++] = rank;
        }
        if (!is_reduced || keepdim) {
            sizes[rank++] = is_reduced ? 1 : tensor->sizes[i];
        }
    }
    tosaic_groups_begin(groups, tensor, dims);
    tosaic_status status = tosaic_resize(out, rank, sizes);
    if (status == TOSAIC_OK) {
        reorder(&groups->kept, out, numbers);
    }
    return status;
}

bool tosaic_dims_at(const tosaic_call *call, uint32_t index, uint32_t rank, uint32_t *dims) {
    const tosaic_value *value = call->args[index];
    bool is_list = value->kind == TOSAIC_INT_LIST;
    uint32_t count = is_list ? value->as.list.count : value->kind == TOSAIC_INT ? 1u : 0u;
    *dims = 0;
    if (count == 0) {
        *dims = UINT32_MAX;
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t dim = tosaic_wrap_dim(is_list ? value->as.list.items[i]->as.integer : value->as.integer, rank);
        if (dim == UINT32_MAX || (*dims >> dim & 1u) != 0) {
            return false;
        }
        *dims |= 1u << dim;
    }
    return true;
}

bool tosaic_is_dtype_at(const tosaic_call *call, uint32_t index, const tosaic_tensor *out) {
    return tosaic_is_none_at(call, index) || tosaic_int_at(call, index) == out->dtype;
}
