/* Sizes of tensors, and what kernels ask about them. */
#include "tensor.h"

uint32_t tosaic_get_element_size(uint32_t dtype) {
    switch (dtype) {
        case TOSAIC_UINT8:
        case TOSAIC_INT8:
        case TOSAIC_BOOL:
            return 1;
        case TOSAIC_INT16:
        case TOSAIC_UINT16:
        case TOSAIC_FLOAT16:
        case TOSAIC_BFLOAT16:
            return 2;
        case TOSAIC_INT32:
        case TOSAIC_UINT32:
        case TOSAIC_FLOAT32:
            return 4;
        case TOSAIC_INT64:
        case TOSAIC_UINT64:
        case TOSAIC_FLOAT64:
            return 8;
        default:
            return 0;
    }
}

bool tosaic_measure(uint32_t dtype, uint32_t rank, const int32_t *sizes, uint32_t *bytes) {
    uint64_t total = tosaic_get_element_size(dtype);
    bool empty = false;
    for (uint32_t i = 0; i < rank; i++) {
        if (sizes[i] < 0) {
            return false;
        }
        /* A zero does not make up for other sizes that are too large. */
        empty = empty || sizes[i] == 0;
        total *= sizes[i] == 0 ? 1u : (uint32_t)sizes[i];
        if (total > UINT32_MAX) {
            return false;
        }
    }
    *bytes = empty ? 0 : (uint32_t)total;
    return total != 0;
}

tosaic_status tosaic_resize(tosaic_tensor *tensor, uint32_t rank, const int32_t *sizes) {
    uint32_t bytes;
    if (rank != tensor->rank || !tosaic_measure(tensor->dtype, rank, sizes, &bytes)) {
        return TOSAIC_BAD_SHAPE;
    }
    bool same = true;
    for (uint32_t i = 0; i < rank; i++) {
        same = same && sizes[i] == tensor->sizes[i];
    }
    if (same) {
        return TOSAIC_OK;
    }
    if (tensor->dynamism == TOSAIC_STATIC || tensor->access == TOSAIC_CONSTANT || bytes > tensor->capacity) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < rank; i++) {
        tensor->sizes[i] = sizes[i];
    }
    tensor->bytes = bytes;
    return TOSAIC_OK;
}

tosaic_status tosaic_resize_like(tosaic_tensor *out, const tosaic_tensor *x) {
    return tosaic_resize(out, x->rank, x->sizes);
}

uint32_t tosaic_count(const tosaic_tensor *tensor) { return tensor->bytes / tosaic_get_element_size(tensor->dtype); }

void tosaic_get_strides(const tosaic_tensor *tensor, uint32_t *strides) {
    uint32_t stride = 1;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        uint32_t dim = tensor->dim_order[i];
        strides[dim] = stride;
        stride *= (uint32_t)tensor->sizes[dim];
    }
}

bool tosaic_same_shape(const tosaic_tensor *a, const tosaic_tensor *b) {
    if (a->rank != b->rank) {
        return false;
    }
    for (uint32_t i = 0; i < a->rank; i++) {
        if (a->sizes[i] != b->sizes[i]) {
            return false;
        }
    }
    return true;
}

bool tosaic_same_order(const tosaic_tensor *a, const tosaic_tensor *b) {
    uint32_t left[TOSAIC_MAX_RANK];
    uint32_t right[TOSAIC_MAX_RANK];
    tosaic_get_strides(a, left);
    tosaic_get_strides(b, right);
    for (uint32_t i = 0; i < a->rank; i++) {
        /* The stride of a single element is never used. */
        if (a->sizes[i] != 1 && left[i] != right[i]) {
            return false;
        }
    }
    return true;
}

bool tosaic_is_contiguous(const tosaic_tensor *tensor) {
    uint32_t previous = 0;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        uint32_t dim = tensor->dim_order[i];
        if (tensor->sizes[dim] == 1) {
            continue; /* its place does not matter */
        }
        if (dim < previous) {
            return false;
        }
        previous = dim;
    }
    return true;
}

uint32_t tosaic_wrap_dim(int64_t dim, uint32_t rank) {
    /* A scalar has one dimension to count: 0 or -1. */
    int64_t count = rank == 0 ? 1 : (int64_t)rank;
    if (dim < -count || dim >= count) {
        return UINT32_MAX;
    }
    return (uint32_t)(dim < 0 ? dim + count : dim);
}
