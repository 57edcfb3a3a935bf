/* Distances between rows. */
#include "elements.h"

/* The p-norm of the difference of two rows; p = 0 counts the differences, infinity takes the largest one. */
static float find_distance(const float *a, const float *b, uint32_t count, float p) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        float difference = tosaic_abs(a[i] - b[i]);
        if (p == TOSAIC_INFINITY) {
            sum = difference > sum || tosaic_is_nan(difference) ? difference : sum;
        } else if (p == 0.0f) {
            sum += difference != 0.0f ? 1.0f : 0.0f;
        } else {
            sum += p == 1.0f ? difference : p == 2.0f ? difference * difference : tosaic_pow(difference, p);
        }
    }
    if (p == 0.0f || p == 1.0f || p == TOSAIC_INFINITY) {
        return sum;
    }
    return p == 2.0f ? tosaic_sqrt(sum) : tosaic_pow(sum, 1.0f / p);
}

/* The size of dimension `dim` of a tensor, counted from the last one; 1 where it has none. */
static int32_t get_size(const tosaic_tensor *tensor, uint32_t dim) {
    return dim < tensor->rank ? tensor->sizes[tensor->rank - 1u - dim] : 1;
}

/* Finds a matrix of a batch: `number` counts over the batch of `out`, to which that of the tensor is broadcast. */
static const float *find_matrix(const tosaic_tensor *tensor, const tosaic_tensor *out, uint32_t number) {
    uint32_t at = 0;
    uint32_t stride = (uint32_t)get_size(tensor, 0) * (uint32_t)get_size(tensor, 1);
    for (uint32_t dim = 2; dim < tensor->rank; dim++) {
        uint32_t size = (uint32_t)get_size(out, dim);
        at += get_size(tensor, dim) == 1 ? 0 : number % size * stride;
        number /= size;
        stride *= (uint32_t)get_size(tensor, dim);
    }
    return tensor->bytes == 0 ? NULL : (const float *)tensor->data + at;
}

/* Distances of all rows of x1 to all rows of x2. How Euclidean distances are computed (compute_mode) is ours to choose.
 */
TOSAIC_KERNEL(cdist_forward_out, "aten::_cdist_forward.out", "TTdi?O") {
    const tosaic_tensor *a = tosaic_tensor_at(call, 0);
    const tosaic_tensor *b = tosaic_tensor_at(call, 1);
    float p = tosaic_float_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 4);
    if (a->dtype != TOSAIC_FLOAT32 || b->dtype != TOSAIC_FLOAT32 || out->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    uint32_t rank = a->rank > b->rank ? a->rank : b->rank;
    if (a->rank < 2 || b->rank < 2 || get_size(a, 0) != get_size(b, 0) || !(p >= 0.0f) || a == out || b == out ||
        !tosaic_is_contiguous(a) || !tosaic_is_contiguous(b)) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t batches = 1;
    for (uint32_t dim = 2; dim < rank; dim++) {
        int32_t left = get_size(a, dim);
        int32_t right = get_size(b, dim);
        if (left != right && left != 1 && right != 1) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[rank - 1u - dim] = left == 1 ? right : left;
        batches *= (uint32_t)sizes[rank - 1u - dim];
    }
    sizes[rank - 2u] = get_size(a, 1);
    sizes[rank - 1u] = get_size(b, 1);
    if (tosaic_resize(out, rank, sizes) != TOSAIC_OK || !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t count = (uint32_t)get_size(a, 0);
    float *y = out->data;
    for (uint32_t i = 0; i < batches; i++) {
        const float *left = find_matrix(a, out, i);
        const float *right = find_matrix(b, out, i);
        for (uint32_t j = 0; j < (uint32_t)get_size(a, 1); j++) {
            for (uint32_t k = 0; k < (uint32_t)get_size(b, 1); k++) {
                *y++ = find_distance(left + j * count, right + k * count, count, p);
            }
        }
    }
    return TOSAIC_OK;
}
