/* Planes in another size: nearest and bilinear. */
#include "elements.h"

/* One dimension of a plane: its sizes, and the distance in the input that belongs to one step in the output. */
typedef struct axis {
    int32_t input;
    int32_t output;
    float step;
    bool aligns_corners;
} axis;

/* A resize of [batch, channels, height, width]. */
typedef struct resize {
    const tosaic_tensor *x;
    tosaic_tensor *out;
    axis axes[2];
    uint32_t x_strides[4];
    uint32_t y_strides[4];
} resize;

/* Computes size and step of a dimension. `scale` is 0 if the size is given. The file has scales as doubles: a float
 * would move the borders between elements, so this is the only place where kernels use doubles. */
static bool prepare(axis *a, double scale) {
    if (scale != 0.0) {
        double output = (double)a->input * scale;
        if (!(output >= 1.0 && output < 0x1p31)) {
            return false;
        }
        a->output = (int32_t)output;
        a->step = (float)(1.0 / scale);
    } else if (a->output > 0) {
        a->step = (float)a->input / (float)a->output;
    } else {
        return false;
    }
    if (a->aligns_corners) {
        a->step = a->output > 1 ? (float)(a->input - 1) / (float)(a->output - 1) : 0.0f;
    }
    return a->input > 0;
}

/* Reads sizes or scales, the only one of which that is not None, and resizes the output. */
static tosaic_status begin(resize *r, const tosaic_call *call, uint32_t scales_arg, bool aligns_corners,
                           uint32_t out_arg) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    *r = (resize){.x = x, .out = tosaic_tensor_at(call, out_arg)};
    bool has_sizes = !tosaic_is_none_at(call, 1);
    const tosaic_list *list = tosaic_list_at(call, has_sizes ? 1 : scales_arg);
    if (x->dtype != r->out->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank != 4 || x == r->out || has_sizes != tosaic_is_none_at(call, scales_arg) || list->count != 2) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[4] = {x->sizes[0], x->sizes[1], 0, 0};
    for (uint32_t i = 0; i < 2; i++) {
        axis *a = &r->axes[i];
        int64_t size = has_sizes ? list->items[i]->as.integer : 0;
        double scale = has_sizes ? 0.0 : list->items[i]->as.number;
        *a = (axis){.input = x->sizes[i + 2u], .output = (int32_t)size, .aligns_corners = aligns_corners};
        if (size < 0 || size > INT32_MAX || (!has_sizes && scale == 0.0) || !prepare(a, scale)) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i + 2u] = a->output;
    }
    tosaic_get_strides(x, r->x_strides);
    tosaic_status status = tosaic_resize(r->out, 4, sizes);
    if (status == TOSAIC_OK) {
        tosaic_get_strides(r->out, r->y_strides);
    }
    return status;
}

/* Finds the element of the input that is nearest, counted from the corner. */
static uint32_t find_nearest(const axis *a, int32_t place) {
    float position = (float)place * a->step;
    return position < (float)a->input ? (uint32_t)position : (uint32_t)a->input - 1u;
}

/* The offset of a plane. */
static uint32_t find_plane(const resize *r, uint32_t plane, const uint32_t *strides) {
    uint32_t channels = (uint32_t)r->x->sizes[1];
    return plane / channels * strides[0] + plane % channels * strides[1];
}

static uint32_t count_planes(const resize *r) { return (uint32_t)r->x->sizes[0] * (uint32_t)r->x->sizes[1]; }

TOSAIC_KERNEL(upsample_nearest2d_vec_out, "aten::upsample_nearest2d.vec_out", "TI?D?O") {
    resize r;
    tosaic_status status = begin(&r, call, 2, false, 3);
    if (status != TOSAIC_OK) {
        return status;
    }
    uint32_t bytes = tosaic_get_element_size(r.x->dtype);
    for (uint32_t plane = 0; plane < count_planes(&r); plane++) {
        uint32_t from = find_plane(&r, plane, r.x_strides);
        uint32_t to = find_plane(&r, plane, r.y_strides);
        for (int32_t i = 0; i < r.axes[0].output; i++) {
            uint32_t row = from + find_nearest(&r.axes[0], i) * r.x_strides[2];
            for (int32_t k = 0; k < r.axes[1].output; k++) {
                uint32_t source = row + find_nearest(&r.axes[1], k) * r.x_strides[3];
                uint32_t target = to + (uint32_t)i * r.y_strides[2] + (uint32_t)k * r.y_strides[3];
                memcpy(tosaic_address(r.out, target), tosaic_address(r.x, source), bytes);
            }
        }
    }
    return TOSAIC_OK;
}

/* Two neighbors in the input, and the share of the second one. */
typedef struct pair {
    uint32_t first;
    uint32_t second;
    float share;
} pair;

static pair find_pair(const axis *a, int32_t place) {
    uint32_t last = (uint32_t)a->input - 1u;
    if (a->input == a->output) {
        return (pair){(uint32_t)place, (uint32_t)place, 0.0f};
    }
    float position = a->aligns_corners ? (float)place * a->step : ((float)place + 0.5f) * a->step - 0.5f;
    position = position > 0.0f ? position : 0.0f;
    uint32_t first = position < (float)last ? (uint32_t)position : last;
    float share = position - (float)first;
    return (pair){first, first < last ? first + 1u : last, share < 1.0f ? share : 1.0f};
}

TOSAIC_KERNEL(upsample_bilinear2d_vec_out, "aten::upsample_bilinear2d.vec_out", "TI?bD?O") {
    resize r;
    tosaic_status status = begin(&r, call, 3, tosaic_bool_at(call, 2), 4);
    if (status != TOSAIC_OK) {
        return status;
    }
    if (r.x->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    for (uint32_t plane = 0; plane < count_planes(&r); plane++) {
        const float *x = (const float *)r.x->data + find_plane(&r, plane, r.x_strides);
        float *y = (float *)r.out->data + find_plane(&r, plane, r.y_strides);
        for (int32_t i = 0; i < r.axes[0].output; i++) {
            pair rows = find_pair(&r.axes[0], i);
            const float *top = x + rows.first * r.x_strides[2];
            const float *bottom = x + rows.second * r.x_strides[2];
            for (int32_t k = 0; k < r.axes[1].output; k++) {
                pair columns = find_pair(&r.axes[1], k);
                uint32_t left = columns.first * r.x_strides[3];
                uint32_t right = columns.second * r.x_strides[3];
                float above = top[left] * (1.0f - columns.share) + top[right] * columns.share;
                float below = bottom[left] * (1.0f - columns.share) + bottom[right] * columns.share;
                y[(uint32_t)i * r.y_strides[2] + (uint32_t)k * r.y_strides[3]] =
                    above * (1.0f - rows.share) + below * rows.share;
            }
        }
    }
    return TOSAIC_OK;
}
