#include "numbers.h"

#include "floats.h"

int64_t tosaic_to_int(float number) {
    if (!(number >= -0x1p63f)) {
        return INT64_MIN;
    }
    return number >= 0x1p63f ? INT64_MAX : (int64_t)number;
}

/* A float16 has 5 bits of exponent and 10 of mantissa. */
static float from_half(uint16_t half) {
    uint32_t exponent = half >> 10 & 31u;
    uint32_t mantissa = half & 0x3ffu;
    float x = (float)mantissa * 0x1p-24f; /* without an exponent, it counts the smallest numbers */
    if (exponent == 31u) {
        x = tosaic_from_bits(0x7f800000u | mantissa << 13);
    } else if (exponent != 0) {
        x = tosaic_from_bits((exponent + 112u) << 23 | mantissa << 13);
    }
    return half >> 15 != 0 ? -x : x;
}

static uint16_t to_half(float x) {
    uint32_t sign = tosaic_get_bits(x) >> 16 & 0x8000u;
    float a = tosaic_abs(x);
    uint32_t half = 0x7e00u; /* not a number */
    if (a >= 65520.0f) {
        half = 0x7c00u;
    } else if (a < 0x1p-14f) {
        half = (uint32_t)tosaic_round(a * 0x1p24f);
    } else if (!tosaic_is_nan(a)) {
        /* Half of the last bit, less one if that bit is even: halves go to the even one. */
        uint32_t bits = tosaic_get_bits(a);
        half = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(sign | half);
}

/* The four functions of a type: how an element becomes a float and an integer, and what they become. */
#define ACCESS(type, name, to_float, to_int, from_float, from_int)                      \
    static void load_floats_##name(const tosaic_row *row, float *to, uint32_t spread) { \
        for (uint32_t i = 0, at = row->at; i < row->count; i++, at += row->step) {      \
            type x = ((const type *)row->data)[at];                                     \
            to[i * spread] = to_float;                                                  \
        }                                                                               \
    }                                                                                   \
    static void load_ints_##name(const tosaic_row *row, int64_t *to, uint32_t spread) { \
        for (uint32_t i = 0, at = row->at; i < row->count; i++, at += row->step) {      \
            type x = ((const type *)row->data)[at];                                     \
            to[i * spread] = to_int;                                                    \
        }                                                                               \
    }                                                                                   \
    static void store_floats_##name(const tosaic_row *row, const float *from) {         \
        for (uint32_t i = 0, at = row->at; i < row->count; i++, at += row->step) {      \
            float x = from[i];                                                          \
            ((type *)row->data)[at] = from_float;                                       \
        }                                                                               \
    }                                                                                   \
    static void store_ints_##name(const tosaic_row *row, const int64_t *from) {         \
        for (uint32_t i = 0, at = row->at; i < row->count; i++, at += row->step) {      \
            int64_t x = from[i];                                                        \
            ((type *)row->data)[at] = from_int;                                         \
        }                                                                               \
    }

#define INTEGER(type, name) ACCESS(type, name, (float)x, (int64_t)x, (type)tosaic_to_int(x), (type)x)
#define ROW(name) {load_floats_##name, load_ints_##name, store_floats_##name, store_ints_##name}

INTEGER(uint8_t, uint8)
INTEGER(int8_t, int8)
INTEGER(int16_t, int16)
INTEGER(int32_t, int32)
INTEGER(int64_t, int64)
ACCESS(float, float32, x, tosaic_to_int(x), x, (float)x)
ACCESS(uint16_t, float16, from_half(x), tosaic_to_int(from_half(x)), to_half(x), to_half((float)x))
ACCESS(uint8_t, bool, x != 0 ? 1.0f : 0.0f, x != 0, x != 0.0f, x != 0)

const tosaic_access_to *tosaic_find_access(uint32_t dtype) {
    static const tosaic_access_to rows[] = {
        [TOSAIC_UINT8] = ROW(uint8),     [TOSAIC_INT8] = ROW(int8),   [TOSAIC_INT16] = ROW(int16),
        [TOSAIC_INT32] = ROW(int32),     [TOSAIC_INT64] = ROW(int64), [TOSAIC_FLOAT32] = ROW(float32),
        [TOSAIC_BOOL] = ROW(bool),       [TOSAIC_FLOAT16] = ROW(float16),
    };
    bool known = dtype < sizeof rows / sizeof rows[0] && rows[dtype].load_ints != NULL;
    return known ? &rows[dtype] : NULL;
}

int64_t tosaic_read_int(uint32_t dtype, const void *data, uint32_t at) {
    int64_t number;
    tosaic_row row = {(void *)(uintptr_t)data, at, 0, 1};
    tosaic_find_access(dtype)->load_ints(&row, &number, 0);
    return number;
}

void tosaic_write_int(uint32_t dtype, void *data, uint32_t at, int64_t number) {
    tosaic_row row = {data, at, 0, 1};
    tosaic_find_access(dtype)->store_ints(&row, &number);
}

/* From lower to higher types; 255 for those that are not computed with. */
static uint32_t get_level(uint32_t dtype) {
    switch (dtype) {
        case TOSAIC_BOOL:
            return 0;
        case TOSAIC_UINT8:
            return 1;
        case TOSAIC_INT8:
            return 2;
        case TOSAIC_INT16:
        case TOSAIC_INT32:
        case TOSAIC_INT64:
        case TOSAIC_FLOAT32:
            return dtype + 1u;
        default:
            return 255;
    }
}

uint32_t tosaic_promote(uint32_t a, uint32_t b) {
    uint32_t left = get_level(a);
    uint32_t right = get_level(b);
    if (left == 255u || right == 255u) {
        return TOSAIC_UINT64;
    }
    /* Neither holds the numbers of the other. */
    if (left + right == 3u && left != 0 && right != 0) {
        return TOSAIC_INT16;
    }
    return left > right ? a : b;
}

uint32_t tosaic_promote_number(uint32_t dtype, const tosaic_value *number) {
    if (number->kind == TOSAIC_DOUBLE && get_level(dtype) < get_level(TOSAIC_FLOAT32)) {
        return TOSAIC_FLOAT32;
    }
    return number->kind == TOSAIC_INT && dtype == TOSAIC_BOOL ? TOSAIC_INT64 : dtype;
}

bool tosaic_can_cast(uint32_t from, uint32_t to) {
    bool loses_fraction = tosaic_is_float(from) && !tosaic_is_float(to);
    return !loses_fraction && (to != TOSAIC_BOOL || from == TOSAIC_BOOL);
}

int64_t tosaic_narrow(uint32_t dtype, int64_t number) {
    tosaic_room room = {0};
    tosaic_write_int(dtype, &room, 0, number);
    return tosaic_read_int(dtype, &room, 0);
}

tosaic_tensor tosaic_make_tensor(const tosaic_call *call, uint32_t index, uint32_t dtype, tosaic_room *room) {
    if (tosaic_is_float(dtype)) {
        float number = tosaic_float_at(call, index);
        tosaic_row row = {room, 0, 0, 1};
        tosaic_find_access(dtype)->store_floats(&row, &number);
    } else {
        tosaic_write_int(dtype, room, 0, tosaic_whole_at(call, index));
    }
    return (tosaic_tensor){.data = room, .dtype = (uint8_t)dtype, .bytes = tosaic_get_element_size(dtype)};
}
