#include "numbers.h"

int64_t tosaic_to_int(float number) {
    if (!(number >= -0x1p63f)) {
        return INT64_MIN;
    }
    return number >= 0x1p63f ? INT64_MAX : (int64_t)number;
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
ACCESS(uint8_t, bool, x != 0 ? 1.0f : 0.0f, x != 0, x != 0.0f, x != 0)

const tosaic_access_to *tosaic_find_access(uint32_t dtype) {
    static const tosaic_access_to rows[] = {
        [TOSAIC_UINT8] = ROW(uint8),     [TOSAIC_INT8] = ROW(int8),   [TOSAIC_INT16] = ROW(int16),
        [TOSAIC_INT32] = ROW(int32),     [TOSAIC_INT64] = ROW(int64), [TOSAIC_FLOAT32] = ROW(float32),
        [TOSAIC_BOOL] = ROW(bool),
    };
    bool known = dtype < sizeof rows / sizeof rows[0] && rows[dtype].load_ints != (void *)0;
    return known ? &rows[dtype] : (const tosaic_access_to *)0;
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
    bool loses_fraction = from == TOSAIC_FLOAT32 && to != TOSAIC_FLOAT32;
    return !loses_fraction && (to != TOSAIC_BOOL || from == TOSAIC_BOOL);
}

int64_t tosaic_narrow(uint32_t dtype, int64_t number) {
    tosaic_room room = {0};
    tosaic_write_int(dtype, &room, 0, number);
    return tosaic_read_int(dtype, &room, 0);
}

tosaic_tensor tosaic_make_tensor(const tosaic_call *call, uint32_t index, uint32_t dtype, tosaic_room *room) {
    if (dtype == TOSAIC_FLOAT32) {
        room->number = tosaic_float_at(call, index);
    } else {
        tosaic_write_int(dtype, room, 0, tosaic_whole_at(call, index));
    }
    return (tosaic_tensor){.data = room, .dtype = (uint8_t)dtype, .bytes = tosaic_get_element_size(dtype)};
}
