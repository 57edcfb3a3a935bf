/* Convolution in one, two or three dimensions, with groups, dilation and transposition. */
#include "dot.h"
#include "window.h"

#define MAX_SPACE 3u

/* A convolution. All arrays have three dimensions of space, the first ones with a single element where there are
 * fewer. */
typedef struct convolution {
    const tosaic_tensor *x;
    const tosaic_tensor *weight;
    const tosaic_tensor *bias;
    tosaic_window windows[MAX_SPACE];
    uint32_t x_strides[MAX_SPACE + 2u]; /* batch, channel, space */
    uint32_t w_strides[MAX_SPACE + 2u]; /* output channel, input channel, space */
    uint32_t y_strides[MAX_SPACE + 2u];
    uint32_t inputs;  /* channels of a group */
    uint32_t outputs;
    bool is_transposed;
} convolution;

/* Finds the input that a tap of the window meets at a place of the output. */
static bool find_input(const tosaic_window *w, bool is_transposed, int32_t place, int32_t tap, uint32_t *input) {
    int32_t at;
    if (is_transposed) {
        int32_t distance = place + w->padding - tap * w->dilation;
        at = distance / w->stride;
        if (distance < 0 || distance % w->stride != 0) {
            return false;
        }
    } else {
        at = place * w->stride + tap * w->dilation - w->padding;
    }
    *input = (uint32_t)at;
    return at >= 0 && at < w->input;
}

/* Computes one element: for each tap that meets the input, the product over all channels of the group. */
static tosaic_number compute(const convolution *c, uint32_t x_at, uint32_t w_at, const int32_t *place) {
    tosaic_number sum = {.whole = 0};
    uint32_t at[MAX_SPACE];
    const tosaic_window *w = c->windows;
    for (int32_t i = 0; i < w[0].taps; i++) {
        if (!find_input(&w[0], c->is_transposed, place[0], i, &at[0])) {
            continue;
        }
        for (int32_t j = 0; j < w[1].taps; j++) {
            if (!find_input(&w[1], c->is_transposed, place[1], j, &at[1])) {
                continue;
            }
            for (int32_t k = 0; k < w[2].taps; k++) {
                if (!find_input(&w[2], c->is_transposed, place[2], k, &at[2])) {
                    continue;
                }
                uint32_t in = x_at + at[0] * c->x_strides[2] + at[1] * c->x_strides[3] + at[2] * c->x_strides[4];
                uint32_t tap = w_at + (uint32_t)i * c->w_strides[2] + (uint32_t)j * c->w_strides[3] +
                               (uint32_t)k * c->w_strides[4];
                tosaic_strided inputs = {tosaic_address(c->x, in), c->x_strides[1]};
                tosaic_strided weights = {tosaic_address(c->weight, tap), c->w_strides[1]};
                sum = tosaic_dot(c->x->dtype, inputs, weights, c->inputs, sum);
            }
        }
    }
    return sum;
}

/* Computes the plane of one output channel. */
static void compute_plane(const convolution *c, uint32_t batch, uint32_t channel, tosaic_tensor *out) {
    uint32_t group = channel / c->outputs;
    uint32_t x_at = batch * c->x_strides[0] + group * c->inputs * c->x_strides[1];
    uint32_t w_at = channel * c->w_strides[0];
    if (c->is_transposed) {
        w_at = group * c->inputs * c->w_strides[1] + (channel - group * c->outputs) * c->w_strides[0];
    }
    uint32_t y_at = batch * c->y_strides[0] + channel * c->y_strides[1];
    int32_t place[MAX_SPACE];
    for (place[0] = 0; place[0] < c->windows[0].output; place[0]++) {
        for (place[1] = 0; place[1] < c->windows[1].output; place[1]++) {
            for (place[2] = 0; place[2] < c->windows[2].output; place[2]++) {
                tosaic_number sum = compute(c, x_at, w_at, place);
                if (c->bias != NULL) {
                    sum = tosaic_add(sum, tosaic_get_number(c->bias, channel), out->dtype);
                }
                tosaic_set_number(out,
                             y_at + (uint32_t)place[0] * c->y_strides[2] + (uint32_t)place[1] * c->y_strides[3] +
                                 (uint32_t)place[2] * c->y_strides[4],
                             sum);
            }
        }
    }
}

/* Reads the strides of a tensor, the missing dimensions of space being the first ones. */
static void get_strides(const tosaic_tensor *tensor, uint32_t *strides) {
    uint32_t own[TOSAIC_MAX_RANK];
    uint32_t missing = MAX_SPACE + 2u - tensor->rank;
    tosaic_get_strides(tensor, own);
    for (uint32_t i = 0; i < MAX_SPACE + 2u; i++) {
        strides[i] = i < 2 ? own[i] : i < 2 + missing ? 0 : own[i - missing];
    }
}

/* Reads the windows, and computes the sizes of the output's space. */
static bool read_windows(const tosaic_call *call, convolution *c, int32_t *sizes) {
    uint32_t missing = MAX_SPACE + 2u - c->x->rank;
    for (uint32_t i = 0; i < MAX_SPACE; i++) {
        tosaic_window *w = &c->windows[i];
        *w = (tosaic_window){1, 1, 1, 1, 0, 1};
        if (i < missing) {
            continue;
        }
        uint32_t item = i - missing;
        int32_t output_padding;
        w->input = c->x->sizes[item + 2u];
        w->taps = c->weight->sizes[item + 2u];
        if (!tosaic_item_at(call, 3, item, 1, &w->stride) || !tosaic_item_at(call, 4, item, 0, &w->padding) ||
            !tosaic_item_at(call, 5, item, 1, &w->dilation) || !tosaic_item_at(call, 7, item, 0, &output_padding)) {
            return false;
        }
        if (!(c->is_transposed ? tosaic_window_place_transposed(w, output_padding) : tosaic_window_place(w, false))) {
            return false;
        }
        sizes[item + 2u] = w->output;
    }
    return true;
}

TOSAIC_KERNEL(convolution_out, "aten::convolution.out", "TTT?IIIbIiO") {
    convolution c = {.x = tosaic_tensor_at(call, 0),
                     .weight = tosaic_tensor_at(call, 1),
                     .bias = tosaic_tensor_at(call, 2),
                     .is_transposed = tosaic_bool_at(call, 6)};
    int64_t groups = tosaic_int_at(call, 8);
    tosaic_tensor *out = tosaic_tensor_at(call, 9);
    const tosaic_tensor *x = c.x;
    const tosaic_tensor *weight = c.weight;
    int32_t sizes[MAX_SPACE + 2u];
    if (!tosaic_has_dot(x->dtype) || weight->dtype != x->dtype || out->dtype != x->dtype ||
        (c.bias != NULL && c.bias->dtype != x->dtype)) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank < 3 || x->rank > MAX_SPACE + 2u || weight->rank != x->rank || groups <= 0 || groups > x->sizes[1] ||
        x->sizes[1] % groups != 0 || weight->sizes[0] % groups != 0 || !read_windows(call, &c, sizes)) {
        return TOSAIC_BAD_SHAPE;
    }
    /* The weights are [outputs, inputs of a group, ...], or transposed [inputs, outputs of a group, ...]. */
    c.inputs = (uint32_t)(x->sizes[1] / groups);
    c.outputs = (uint32_t)weight->sizes[1];
    int64_t channels = (int64_t)weight->sizes[1] * groups;
    if (!c.is_transposed) {
        channels = weight->sizes[0];
        c.outputs = (uint32_t)(channels / groups);
    }
    if ((uint32_t)weight->sizes[c.is_transposed ? 0 : 1] != (c.is_transposed ? (uint32_t)x->sizes[1] : c.inputs) ||
        channels > INT32_MAX ||
        (c.bias != NULL && (c.bias->rank != 1 || c.bias->sizes[0] != channels))) {
        return TOSAIC_BAD_SHAPE;
    }
    sizes[0] = x->sizes[0];
    sizes[1] = (int32_t)channels;
    get_strides(x, c.x_strides);
    get_strides(weight, c.w_strides);
    if (c.is_transposed) {
        uint32_t first = c.w_strides[0];
        c.w_strides[0] = c.w_strides[1];
        c.w_strides[1] = first;
    }
    tosaic_status status = tosaic_resize(out, x->rank, sizes);
    if (status != TOSAIC_OK) {
        return status;
    }
    get_strides(out, c.y_strides);
    for (int32_t batch = 0; batch < sizes[0]; batch++) {
        for (int32_t channel = 0; channel < sizes[1]; channel++) {
            compute_plane(&c, (uint32_t)batch, (uint32_t)channel, out);
        }
    }
    return TOSAIC_OK;
}
