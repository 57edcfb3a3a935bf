#include "numbers.h"

int64_t tosaic_to_int(float number) {
    if (!(number >= -0x1p63f)) {
        return INT64_MIN;
    }
    return number >= 0x1p63f ? INT64_MAX : (int64_t)number;
}

/* The four functions of an integer type. */
#define INTEGER(type, name)                                                                           \
    static float load_float_##name(const void *data, uint32_t i) { return (float)((const type *)data)[i]; } \
    static int64_t load_int_##name(const void *data, uint32_t i) { return ((const type *)data)[i]; }        \
    static void store_int_##name(void *data, uint32_t i, int64_t x) { ((type *)data)[i] = (type)x; }        \
    static void store_float_##name(void *data, uint32_t i, float x) { ((type *)data)[i] = (type)tosaic_to_int(x); }

#define ROW(name) {load_float_##name, load_int_##name, store_float_##name, store_int_##name}

INTEGER(uint8_t, uint8)
INTEGER(int8_t, int8)
INTEGER(int16_t, int16)
INTEGER(int32_t, int32)
INTEGER(int64_t, int64)

static float load_float_float32(const void *data, uint32_t i) { return ((const float *)data)[i]; }
static int64_t load_int_float32(const void *data, uint32_t i) { return tosaic_to_int(((const float *)data)[i]); }
static void store_float_float32(void *data, uint32_t i, float x) { ((float *)data)[i] = x; }
static void store_int_float32(void *data, uint32_t i, int64_t x) { ((float *)data)[i] = (float)x; }

static float load_float_bool(const void *data, uint32_t i) { return ((const uint8_t *)data)[i] != 0 ? 1.0f : 0.0f; }
static int64_t load_int_bool(const void *data, uint32_t i) { return ((const uint8_t *)data)[i] != 0; }
static void store_float_bool(void *data, uint32_t i, float x) { ((uint8_t *)data)[i] = x != 0.0f; }
static void store_int_bool(void *data, uint32_t i, int64_t x) { ((uint8_t *)data)[i] = x != 0; }

const tosaic_access_to *tosaic_find_access(uint32_t dtype) {
    static const tosaic_access_to rows[] = {
        [TOSAIC_UINT8] = ROW(uint8),     [TOSAIC_INT8] = ROW(int8),   [TOSAIC_INT16] = ROW(int16),
        [TOSAIC_INT32] = ROW(int32),     [TOSAIC_INT64] = ROW(int64), [TOSAIC_FLOAT32] = ROW(float32),
        [TOSAIC_BOOL] = ROW(bool),
    };
    bool known = dtype < sizeof rows / sizeof rows[0] && rows[dtype].load_int != (void *)0;
    return known ? &rows[dtype] : (const tosaic_access_to *)0;
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
    const tosaic_access_to *access = tosaic_find_access(dtype);
    access->store_int(&room, 0, number);
    return access->load_int(&room, 0);
}

tosaic_tensor tosaic_make_tensor(const tosaic_call *call, uint32_t index, uint32_t dtype, tosaic_room *room) {
    const tosaic_access_to *access = tosaic_find_access(dtype);
    if (dtype == TOSAIC_FLOAT32) {
        room->number = tosaic_float_at(call, index);
    } else {
        access->store_int(room, 0, tosaic_whole_at(call, index));
    }
    return (tosaic_tensor){.data = room, .dtype = (uint8_t)dtype, .bytes = tosaic_get_element_size(dtype)};
}
