/* quantized_decomposed: numbers to integers and back, with one scale and zero point for the whole tensor. */
#include "kernel.h"

/* Rounds to the nearest integer, halves to the even one. From 2^23 on, every float is an integer. */
static float round_even(float x) {
    const float magic = 0x1p23f;
    if (x >= 0.0f) {
        return x < magic ? (x + magic) - magic : x;
    }
    return x > -magic ? (x - magic) + magic : x;
}

/* Limits to [low, high]; what is not a number becomes `low`. */
static int32_t clamp(float x, int32_t low, int32_t high) {
    if (!(x > (float)low)) {
        return low;
    }
    return x >= (float)high ? high : (int32_t)x;
}

static int32_t to_int32(int64_t x) { return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x; }

/* out = clamp(round(input / scale) + zero_point, quant_min, quant_max); the division is a product with a float. */
TOSAIC_KERNEL(quantize_per_tensor_out, "quantized_decomposed::quantize_per_tensor.out", "TdiiiiO") {
    const tosaic_tensor *input = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 6);
    float inverse = 1.0f / tosaic_float_at(call, 1);
    float zero_point = (float)tosaic_int_at(call, 2);
    int32_t low = to_int32(tosaic_int_at(call, 3));
    int32_t high = to_int32(tosaic_int_at(call, 4));
    if (input->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_status status = tosaic_resize_like(out, input);
    if (status != TOSAIC_OK || !tosaic_same_order(input, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    const float *x = input->data;
    uint32_t count = tosaic_count(input);
    for (uint32_t i = 0; i < count; i++) {
        int32_t q = clamp(round_even(x[i] * inverse) + zero_point, low, high);
        switch (out->dtype) {
            case TOSAIC_INT8:
                ((int8_t *)out->data)[i] = (int8_t)q;
                break;
            case TOSAIC_UINT8:
                ((uint8_t *)out->data)[i] = (uint8_t)q;
                break;
            case TOSAIC_INT16:
                ((int16_t *)out->data)[i] = (int16_t)q;
                break;
            case TOSAIC_UINT16:
                ((uint16_t *)out->data)[i] = (uint16_t)q;
                break;
            case TOSAIC_INT32:
                ((int32_t *)out->data)[i] = q;
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
TOSAIC_KERNEL(dequantize_per_tensor_out, "quantized_decomposed::dequantize_per_tensor.out", "Tdiiiii?O") {
    const tosaic_tensor *input = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 7);
    float scale = tosaic_float_at(call, 1);
    uint32_t zero_point = (uint32_t)to_int32(tosaic_int_at(call, 2));
    if (out->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_status status = tosaic_resize_like(out, input);
    if (status != TOSAIC_OK || !tosaic_same_order(input, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    float *y = out->data;
    uint32_t count = tosaic_count(input);
    for (uint32_t i = 0; i < count; i++) {
        int32_t q;
        if (!read_integer(input, i, &q)) {
            return TOSAIC_BAD_TYPE;
        }
        /* Unsigned: a difference that does not fit wraps around. */
        y[i] = (float)(int32_t)((uint32_t)q - zero_point) * scale;
    }
    return TOSAIC_OK;
}
