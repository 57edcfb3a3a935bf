/* Products of matrices. */
#include "dot.h"

/* A matrix: where elements are, and how far apart rows and columns are. */
typedef struct matrix {
    const tosaic_tensor *tensor;
    uint32_t batch; /* strides */
    uint32_t row;
    uint32_t column;
} matrix;

/* A tensor as a matrix, or as a batch of them if it has three dimensions. */
static matrix get_matrix(const tosaic_tensor *tensor) {
    uint32_t strides[TOSAIC_MAX_RANK];
    tosaic_get_strides(tensor, strides);
    return (matrix){tensor, tensor->rank == 3 ? strides[0] : 0, strides[tensor->rank - 2u], strides[tensor->rank - 1u]};
}

/* The elements from `at` on; an empty tensor has no address. */
static tosaic_strided get_row(const matrix *m, uint32_t at, uint32_t step) {
    return (tosaic_strided){m->tensor->bytes == 0 ? NULL : tosaic_address(m->tensor, at), step};
}

/* Writes a x b for `batches` matrices of `rows` x `shared` and `shared` x `columns`. */
static void multiply(const matrix *a, const matrix *b, uint32_t batches, uint32_t rows, uint32_t shared,
                     uint32_t columns, tosaic_tensor *out, const matrix *to) {
    const tosaic_number zero = {.whole = 0};
    for (uint32_t n = 0; n < batches; n++) {
        for (uint32_t i = 0; i < rows; i++) {
            tosaic_strided left = get_row(a, n * a->batch + i * a->row, a->column);
            for (uint32_t j = 0; j < columns; j++) {
                tosaic_strided right = get_row(b, n * b->batch + j * b->column, b->row);
                tosaic_number sum = tosaic_dot(out->dtype, left, right, shared, zero);
                tosaic_set_number(out, n * to->batch + i * to->row + j * to->column, sum);
            }
        }
    }
}

static bool has_types(const tosaic_tensor *a, const tosaic_tensor *b, const tosaic_tensor *out) {
    return tosaic_has_dot(out->dtype) && a->dtype == out->dtype && b->dtype == out->dtype;
}

/* Multiplies matrices (rank 2) or batches of matrices (rank 3). */
static tosaic_status multiply_tensors(const tosaic_tensor *a, const tosaic_tensor *b, tosaic_tensor *out,
                                      uint32_t rank) {
    if (!has_types(a, b, out)) {
        return TOSAIC_BAD_TYPE;
    }
    if (a->rank != rank || b->rank != rank || a->sizes[rank - 1u] != b->sizes[rank - 2u] ||
        (rank == 3 && a->sizes[0] != b->sizes[0])) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[3];
    for (uint32_t i = 0; i < rank; i++) {
        sizes[i] = i == rank - 1u ? b->sizes[i] : a->sizes[i];
    }
    uint32_t shared = (uint32_t)a->sizes[rank - 1u];
    matrix left = get_matrix(a);
    matrix right = get_matrix(b);
    tosaic_status status = tosaic_resize(out, rank, sizes);
    if (status != TOSAIC_OK) {
        return status;
    }
    matrix to = get_matrix(out);
    multiply(&left, &right, rank == 3 ? (uint32_t)sizes[0] : 1u, (uint32_t)sizes[rank - 2u], shared,
             (uint32_t)sizes[rank - 1u], out, &to);
    return TOSAIC_OK;
}

TOSAIC_KERNEL(mm_out, "aten::mm.out", "TTO") {
    return multiply_tensors(tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 1), tosaic_tensor_at(call, 2), 2);
}

TOSAIC_KERNEL(bmm_out, "aten::bmm.out", "TTO") {
    return multiply_tensors(tosaic_tensor_at(call, 0), tosaic_tensor_at(call, 1), tosaic_tensor_at(call, 2), 3);
}

/* The stride of a dimension, counted from the last one, in a tensor that is broadcast to `size`. */
static bool find_stride(const tosaic_tensor *tensor, uint32_t from_last, int32_t size, uint32_t *stride) {
    uint32_t strides[TOSAIC_MAX_RANK];
    *stride = 0;
    if (from_last >= tensor->rank) {
        return true;
    }
    uint32_t dim = tensor->rank - 1u - from_last;
    tosaic_get_strides(tensor, strides);
    *stride = tensor->sizes[dim] == 1 ? 0 : strides[dim];
    return tensor->sizes[dim] == 1 || tensor->sizes[dim] == size;
}

/* out = beta * self + alpha * (mat1 x mat2) */
TOSAIC_KERNEL(addmm_out, "aten::addmm.out", "TTTddO") {
    const tosaic_tensor *self = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 5);
    uint32_t dtype = out->dtype;
    tosaic_number beta = tosaic_number_at(call, 3, dtype);
    tosaic_number alpha = tosaic_number_at(call, 4, dtype);
    uint32_t row;
    uint32_t column;
    if (self->dtype != dtype) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_status status = multiply_tensors(tosaic_tensor_at(call, 1), tosaic_tensor_at(call, 2), out, 2);
    if (status != TOSAIC_OK) {
        return status;
    }
    if (self->rank > 2 || !find_stride(self, 1, out->sizes[0], &row) ||
        !find_stride(self, 0, out->sizes[1], &column)) {
        return TOSAIC_BAD_SHAPE;
    }
    matrix to = get_matrix(out);
    for (uint32_t i = 0; i < (uint32_t)out->sizes[0]; i++) {
        for (uint32_t j = 0; j < (uint32_t)out->sizes[1]; j++) {
            uint32_t at = i * to.row + j * to.column;
            tosaic_number product = tosaic_multiply(alpha, tosaic_get_number(out, at), dtype);
            tosaic_number offset = tosaic_multiply(beta, tosaic_get_number(self, i * row + j * column), dtype);
            tosaic_set_number(out, at, tosaic_add(offset, product, dtype));
        }
    }
    return TOSAIC_OK;
}

/* out = input x transposed weight + bias */
TOSAIC_KERNEL(linear_out, "aten::linear.out", "TTT?O") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_tensor *weight = tosaic_tensor_at(call, 1);
    const tosaic_tensor *bias = tosaic_tensor_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 3);
    if (!has_types(x, weight, out) || (bias != NULL && bias->dtype != out->dtype)) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank == 0 || weight->rank != 2 || x->sizes[x->rank - 1u] != weight->sizes[1] || !tosaic_is_contiguous(x) ||
        (bias != NULL && (bias->rank != 1 || bias->sizes[0] != weight->sizes[0]))) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t rows = 1;
    for (uint32_t i = 0; i < x->rank; i++) {
        sizes[i] = i + 1u < x->rank ? x->sizes[i] : weight->sizes[0];
        rows *= i + 1u < x->rank ? (uint32_t)x->sizes[i] : 1u;
    }
    uint32_t inputs = (uint32_t)weight->sizes[1];
    uint32_t outputs = (uint32_t)weight->sizes[0];
    matrix to_weight = get_matrix(weight);
    if (weight == out || bias == out || tosaic_resize(out, x->rank, sizes) != TOSAIC_OK || !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    matrix left = {x, 0, inputs, 1};
    matrix right = {weight, 0, to_weight.column, to_weight.row};
    matrix to = {out, 0, outputs, 1};
    multiply(&left, &right, 1, rows, inputs, outputs, out, &to);
    for (uint32_t i = 0; bias != NULL && i < rows * outputs; i++) {
        tosaic_number sum = tosaic_get_number(out, i);
        tosaic_set_number(out, i, tosaic_add(sum, tosaic_get_number(bias, i % outputs), out->dtype));
    }
    return TOSAIC_OK;
}
