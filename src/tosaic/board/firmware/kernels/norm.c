/* Normalization: of layers, of groups of channels, and of batches with given statistics. */
#include "elements.h"
#include "steps.h"

static bool is_float(const tosaic_tensor *tensor) { return tensor == NULL || tensor->dtype == TOSAIC_FLOAT32; }

/* Whether an optional tensor has one number for each of `count` elements. */
static bool has_count(const tosaic_tensor *tensor, uint32_t count) {
    return tensor == NULL || (tosaic_count(tensor) == count && tosaic_is_contiguous(tensor));
}

/* The element of an optional tensor. */
static float get(const tosaic_tensor *tensor, uint32_t at, float missing) {
    return tensor == NULL ? missing : ((const float *)tensor->data)[at];
}

/* The outputs of a normalization, and its weights. */
typedef struct norm {
    const tosaic_tensor *weight;
    const tosaic_tensor *bias;
    float epsilon;
    tosaic_tensor *out;
    tosaic_tensor *mean;
    tosaic_tensor *inverse; /* of the standard deviation */
} norm;

static norm get_norm(const tosaic_call *call, uint32_t weight, uint32_t epsilon) {
    return (norm){tosaic_tensor_at(call, weight),      tosaic_tensor_at(call, weight + 1u),
                  tosaic_float_at(call, epsilon),      tosaic_tensor_at(call, epsilon + 1u),
                  tosaic_tensor_at(call, epsilon + 2u), tosaic_tensor_at(call, epsilon + 3u)};
}

static bool has_floats(const norm *n, const tosaic_tensor *x) {
    return is_float(x) && is_float(n->weight) && is_float(n->bias) && is_float(n->out) && is_float(n->mean) &&
           is_float(n->inverse);
}

/* Normalizes `rows` rows of `length` elements. Elements share weights in runs of `run`; there are `weights` of them. */
static void normalize(const norm *n, const float *x, uint32_t rows, uint32_t length, uint32_t run, uint32_t weights) {
    float *y = n->out->data;
    float *means = n->mean->data;
    float *inverses = n->inverse->data;
    for (uint32_t i = 0; i < rows; i++) {
        float sum = 0.0f;
        float squares = 0.0f;
        for (uint32_t k = 0; k < length; k++) {
            sum += x[i * length + k];
        }
        float mean = length == 0 ? 0.0f : sum / (float)length;
        for (uint32_t k = 0; k < length; k++) {
            float distance = x[i * length + k] - mean;
            squares += distance * distance;
        }
        /* Without elements, 0 / 0: a NaN. */
        float inverse = 1.0f / tosaic_sqrt(squares / (float)length + n->epsilon);
        for (uint32_t k = 0; k < length; k++) {
            uint32_t at = i * length + k;
            uint32_t which = at / run % weights;
            y[at] = (x[at] - mean) * inverse * get(n->weight, which, 1.0f) + get(n->bias, which, 0.0f);
        }
        means[i] = mean;
        inverses[i] = inverse;
    }
}

/* Resizes the outputs; all must be in default order, and none the input. */
static bool resize(const norm *n, const tosaic_tensor *x, uint32_t rank, const int32_t *sizes, uint32_t rows) {
    return x != n->mean && x != n->inverse && tosaic_resize_like(n->out, x) == TOSAIC_OK &&
           tosaic_resize(n->mean, rank, sizes) == TOSAIC_OK && tosaic_resize(n->inverse, rank, sizes) == TOSAIC_OK &&
           tosaic_same_shape(n->out, x) && tosaic_count(n->mean) == rows && tosaic_is_contiguous(x) &&
           tosaic_is_contiguous(n->out) && tosaic_is_contiguous(n->mean) && tosaic_is_contiguous(n->inverse);
}

TOSAIC_KERNEL(native_layer_norm_out, "aten::native_layer_norm.out", "TIT?T?dOOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_list *shape = tosaic_list_at(call, 1);
    norm n = get_norm(call, 2, 4);
    if (!has_floats(&n, x)) {
        return TOSAIC_BAD_TYPE;
    }
    if (shape->count == 0 || shape->count > x->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t rows = 1;
    uint32_t length = 1;
    uint32_t first = x->rank - shape->count;
    for (uint32_t i = 0; i < x->rank; i++) {
        sizes[i] = i < first ? x->sizes[i] : 1;
        *(i < first ? &rows : &length) *= (uint32_t)x->sizes[i];
        if (i >= first && shape->items[i - first]->as.integer != x->sizes[i]) {
            return TOSAIC_BAD_SHAPE;
        }
    }
    if (!has_count(n.weight, length) || !has_count(n.bias, length) || !resize(&n, x, x->rank, sizes, rows)) {
        return TOSAIC_BAD_SHAPE;
    }
    normalize(&n, x->data, rows, length, 1, length);
    return TOSAIC_OK;
}

TOSAIC_KERNEL(native_group_norm_out, "aten::native_group_norm.out", "TT?T?iiiidOOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    int64_t batch = tosaic_int_at(call, 3);
    int64_t channels = tosaic_int_at(call, 4);
    int64_t area = tosaic_int_at(call, 5);
    int64_t groups = tosaic_int_at(call, 6);
    norm n = get_norm(call, 1, 7);
    if (!has_floats(&n, x)) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank < 2 || batch != x->sizes[0] || channels != x->sizes[1] || groups <= 0 || groups > INT32_MAX ||
        channels % groups != 0) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t rest = 1;
    for (uint32_t i = 2; i < x->rank; i++) {
        rest *= (uint32_t)x->sizes[i];
    }
    int32_t sizes[] = {(int32_t)batch, (int32_t)groups};
    uint32_t rows = (uint32_t)batch * (uint32_t)groups;
    if (area != rest || !has_count(n.weight, (uint32_t)channels) || !has_count(n.bias, (uint32_t)channels) ||
        !resize(&n, x, 2, sizes, rows)) {
        return TOSAIC_BAD_SHAPE;
    }
    normalize(&n, x->data, rows, (uint32_t)(channels / groups) * rest, rest, (uint32_t)channels);
    return TOSAIC_OK;
}

/* With the statistics of training: no mean and deviation are computed, and those outputs are empty. */
TOSAIC_KERNEL(batch_norm_out, "aten::_native_batch_norm_legit_no_training.out", "TT?T?TTddOOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_tensor *mean = tosaic_tensor_at(call, 3);
    const tosaic_tensor *variance = tosaic_tensor_at(call, 4);
    norm n = get_norm(call, 1, 6);
    const int32_t none[] = {0};
    if (!has_floats(&n, x) || !is_float(mean) || !is_float(variance)) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank < 2 || tosaic_resize(n.mean, 1, none) != TOSAIC_OK || tosaic_resize(n.inverse, 1, none) != TOSAIC_OK ||
        tosaic_resize_like(n.out, x) != TOSAIC_OK || !tosaic_same_order(x, n.out)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t channels = (uint32_t)x->sizes[1];
    uint32_t strides[TOSAIC_MAX_RANK];
    tosaic_get_strides(x, strides);
    if (!has_count(n.weight, channels) || !has_count(n.bias, channels) || !has_count(mean, channels) ||
        !has_count(variance, channels)) {
        return TOSAIC_BAD_SHAPE;
    }
    const float *in = x->data;
    float *y = n.out->data;
    uint32_t count = tosaic_count(x);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t channel = i / strides[1] % channels;
        float inverse = 1.0f / tosaic_sqrt(get(variance, channel, 0.0f) + n.epsilon);
        float normal = (in[i] - get(mean, channel, 0.0f)) * inverse;
        y[i] = normal * get(n.weight, channel, 1.0f) + get(n.bias, channel, 0.0f);
    }
    return TOSAIC_OK;
}

/* With the statistics of the batch itself, one mean and deviation for each channel. */
TOSAIC_KERNEL(batch_norm_no_stats_out, "aten::_native_batch_norm_legit.no_stats_out", "TT?T?bddOOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    norm n = get_norm(call, 1, 5);
    if (!has_floats(&n, x)) {
        return TOSAIC_BAD_TYPE;
    }
    if (!tosaic_bool_at(call, 3) || x->rank < 2 || x == n.mean || x == n.inverse || n.out == n.mean ||
        n.out == n.inverse || tosaic_resize_like(n.out, x) != TOSAIC_OK || !tosaic_same_order(x, n.out)) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t channels = x->sizes[1];
    tosaic_groups groups;
    tosaic_groups_begin(&groups, x, ~2u);
    uint32_t length = groups.reduced.count;
    if (!has_count(n.weight, (uint32_t)channels) || !has_count(n.bias, (uint32_t)channels) || length == 0 ||
        tosaic_resize(n.mean, 1, &channels) != TOSAIC_OK || tosaic_resize(n.inverse, 1, &channels) != TOSAIC_OK) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < groups.kept.count; i++) {
        const float *in = (const float *)x->data + groups.kept.at;
        float *y = (float *)n.out->data + groups.kept.at;
        float sum = 0.0f;
        for (uint32_t k = 0; k < length; k++, tosaic_next(&groups.reduced)) {
            sum += in[groups.reduced.at];
        }
        float mean = sum / (float)length;
        float squares = 0.0f;
        for (uint32_t k = 0; k < length; k++, tosaic_next(&groups.reduced)) {
            float distance = in[groups.reduced.at] - mean;
            squares += distance * distance;
        }
        float inverse = 1.0f / tosaic_sqrt(squares / (float)length + n.epsilon);
        for (uint32_t k = 0; k < length; k++, tosaic_next(&groups.reduced)) {
            uint32_t at = groups.reduced.at;
            y[at] = (in[at] - mean) * inverse * get(n.weight, i, 1.0f) + get(n.bias, i, 0.0f);
        }
        ((float *)n.mean->data)[i] = mean;
        ((float *)n.inverse->data)[i] = inverse;
        tosaic_next(&groups.kept);
    }
    return TOSAIC_OK;
}
