/* quantized_decomposed: numbers to integers and back, with one scale for the whole tensor or one for each channel. */
#include "floats.h"
#include "kernel.h"

/* Scale and zero point, and the range of integers. */
typedef struct quantization {
    float scale;
    int32_t zero_point;
    int32_t low;
    int32_t high;
} quantization;

static int32_t to_int32(int64_t x) { return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x; }

/* Limits to [low, high]; what is not a number becomes `low`. */
static int32_t clamp(float x, int32_t low, int32_t high) {
    if (!(x > (float)low)) {
        return low;
    }
    return x >= (float)high ? high : (int32_t)x;
}

/* out = clamp(round(input / scale) + zero_point, low, high); the division is a product with a float. */
static tosaic_status quantize(const quantization *q, const float *x, const tosaic_tensor *out, uint32_t start,
                              uint32_t count) {
    float inverse = 1.0f / q->scale;
    float zero_point = (float)q->zero_point;
    for (uint32_t i = start; i < start + count; i++) {
        int32_t y = clamp(tosaic_round(x[i] * inverse) + zero_point, q->low, q->high);
        switch (out->dtype) {
            case TOSAIC_INT8:
                ((int8_t *)out->data)[i] = (int8_t)y;
                break;
            case TOSAIC_UINT8:
                ((uint8_t *)out->data)[i] = (uint8_t)y;
                break;
            case TOSAIC_INT16:
                ((int16_t *)out->data)[i] = (int16_t)y;
                break;
            case TOSAIC_UINT16:
                ((uint16_t *)out->data)[i] = (uint16_t)y;
                break;
            case TOSAIC_INT32:
                ((int32_t *)out->data)[i] = y;
                break;
            default:
                return TOSAIC_BAD_TYPE;
        }
    }
    return TOSAIC_OK;
}

static bool read_integer(const tosaic_tensor *tensor, uint32_t index, int32_t *value) {
    switch (tensor->dtype) {
        case TOSAIC_INT8:
            *value = ((const int8_t *)tensor->data)[index];
            return true;
        case TOSAIC_UINT8:
            *value = ((const uint8_t *)tensor->data)[index];
            return true;
        case TOSAIC_INT16:
            *value = ((const int16_t *)tensor->data)[index];
            return true;
        case TOSAIC_UINT16:
            *value = ((const uint16_t *)tensor->data)[index];
            return true;
        case TOSAIC_INT32:
            *value = ((const int32_t *)tensor->data)[index];
            return true;
        default:
            return false;
    }
}

/* out = (input - zero_point) * scale */
static tosaic_status dequantize(const quantization *q, const tosaic_tensor *input, float *y, uint32_t start,
                                uint32_t count) {
    for (uint32_t i = start; i < start + count; i++) {
        int32_t x;
        if (!read_integer(input, i, &x)) {
            return TOSAIC_BAD_TYPE;
        }
        /* Unsigned: a difference that does not fit wraps around. */
        y[i] = (float)(int32_t)((uint32_t)x - (uint32_t)q->zero_point) * q->scale;
    }
    return TOSAIC_OK;
}

/* One direction for elements from `start` on. */
static tosaic_status convert(const quantization *q, const tosaic_tensor *input, tosaic_tensor *out, uint32_t start,
                             uint32_t count) {
    if (input->dtype == TOSAIC_FLOAT32) {
        return quantize(q, input->data, out, start, count);
    }
    return out->dtype == TOSAIC_FLOAT32 ? dequantize(q, input, out->data, start, count) : TOSAIC_BAD_TYPE;
}

static tosaic_status resize(tosaic_tensor *out, const tosaic_tensor *input, bool to_float) {
    if ((input->dtype == TOSAIC_FLOAT32) == to_float || (out->dtype == TOSAIC_FLOAT32) != to_float) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_status status = tosaic_resize_like(out, input);
    return status == TOSAIC_OK && tosaic_same_order(input, out) ? TOSAIC_OK : TOSAIC_BAD_SHAPE;
}

/* ---- One scale: the arguments are numbers ------------------------------------------------------------------------ */

static tosaic_status convert_tensor(const tosaic_call *call, uint32_t output, bool to_float) {
    const tosaic_tensor *input = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, output);
    quantization q = {tosaic_float_at(call, 1), to_int32(tosaic_int_at(call, 2)), to_int32(tosaic_int_at(call, 3)),
                      to_int32(tosaic_int_at(call, 4))};
    tosaic_status status = resize(out, input, to_float);
    return status == TOSAIC_OK ? convert(&q, input, out, 0, tosaic_count(input)) : status;
}

TOSAIC_KERNEL(quantize_per_tensor_out, "quantized_decomposed::quantize_per_tensor.out", "TdiiiiO") {
    return convert_tensor(call, 6, false);
}

TOSAIC_KERNEL(dequantize_per_tensor_out, "quantized_decomposed::dequantize_per_tensor.out", "Tdiiiii?O") {
    return convert_tensor(call, 7, true);
}

/* ---- A scale for each channel: the arguments are tensors, then the range from `range` on ------------------------- */

static bool read_scale(const tosaic_tensor *scales, uint32_t channel, float *scale) {
    if (scales->dtype == TOSAIC_FLOAT64) {
        *scale = (float)((const double *)scales->data)[channel];
    } else if (scales->dtype == TOSAIC_FLOAT32) {
        *scale = ((const float *)scales->data)[channel];
    } else {
        return false;
    }
    return true;
}

static bool read_zero_point(const tosaic_tensor *zero_points, uint32_t channel, int32_t *zero_point) {
    *zero_point = 0;
    if (zero_points != NULL && zero_points->dtype == TOSAIC_INT64) {
        *zero_point = to_int32(((const int64_t *)zero_points->data)[channel]);
        return true;
    }
    return zero_points == NULL || read_integer(zero_points, channel, zero_point);
}

/* Elements that are next to each other and of one channel are converted at once: `run` of them. */
static tosaic_status convert_channels(const tosaic_call *call, uint32_t channels, uint32_t run, uint32_t range,
                                      tosaic_tensor *out) {
    const tosaic_tensor *input = tosaic_tensor_at(call, 0);
    const tosaic_tensor *scales = tosaic_tensor_at(call, 1);
    const tosaic_tensor *zero_points = tosaic_tensor_at(call, 2);
    if (tosaic_count(scales) != channels || (zero_points != NULL && tosaic_count(zero_points) != channels)) {
        return TOSAIC_BAD_SHAPE;
    }
    quantization q = {0.0f, 0, to_int32(tosaic_int_at(call, range)), to_int32(tosaic_int_at(call, range + 1u))};
    uint32_t count = tosaic_count(input);
    uint32_t channel = 0;
    tosaic_status status = TOSAIC_OK;
    for (uint32_t i = 0; i < count && status == TOSAIC_OK; i += run) {
        if (!read_scale(scales, channel, &q.scale) || !read_zero_point(zero_points, channel, &q.zero_point)) {
            return TOSAIC_BAD_TYPE;
        }
        status = convert(&q, input, out, i, run);
        channel = channel + 1u < channels ? channel + 1u : 0;
    }
    return status;
}

static tosaic_status convert_axis(const tosaic_call *call, uint32_t output, bool to_float) {
    const tosaic_tensor *input = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, output);
    uint32_t axis = tosaic_wrap_dim(tosaic_int_at(call, 3), input->rank);
    uint32_t strides[TOSAIC_MAX_RANK];
    if (axis >= input->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_get_strides(input, strides);
    tosaic_status status = resize(out, input, to_float);
    if (status != TOSAIC_OK) {
        return status;
    }
    return convert_channels(call, (uint32_t)input->sizes[axis], strides[axis], 4, out);
}

TOSAIC_KERNEL(quantize_per_channel_out, "quantized_decomposed::quantize_per_channel.out", "TTTiiiiO") {
    return convert_axis(call, 7, false);
}

TOSAIC_KERNEL(dequantize_per_channel_out, "quantized_decomposed::dequantize_per_channel.out", "TTT?iiiii?O") {
    return convert_axis(call, 8, true);
}

/* ---- One scale that a tensor holds ------------------------------------------------------------------------------- */

static tosaic_status convert_by_tensors(const tosaic_call *call, uint32_t output, bool to_float) {
    const tosaic_tensor *input = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, output);
    tosaic_status status = resize(out, input, to_float);
    return status == TOSAIC_OK ? convert_channels(call, 1, tosaic_count(input), 3, out) : status;
}

TOSAIC_KERNEL(quantize_by_tensors_out, "quantized_decomposed::quantize_per_tensor.Tensor_out", "TTTiiiO") {
    return convert_by_tensors(call, 6, false);
}

TOSAIC_KERNEL(dequantize_by_tensors_out, "quantized_decomposed::dequantize_per_tensor.Tensor_out", "TTTiiii?O") {
    return convert_by_tensors(call, 7, true);
}
