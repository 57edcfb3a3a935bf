#include "dot.h"

bool tosaic_has_dot(uint32_t dtype) {
    return dtype == TOSAIC_FLOAT32 || dtype == TOSAIC_INT8 || dtype == TOSAIC_INT32 || dtype == TOSAIC_INT64;
}

/* Adds products of elements of a type to `total`; integers as 64 bits without sign, which may wrap around. */
#define ADD_PRODUCTS(type, sum_type)                               \
    for (uint32_t i = 0; i < count; i++) {                         \
        sum_type left = (sum_type)((const type *)a.first)[i * a.step];  \
        sum_type right = (sum_type)((const type *)b.first)[i * b.step]; \
        total += left * right;                                     \
    }

tosaic_number tosaic_dot(uint32_t dtype, tosaic_strided a, tosaic_strided b, uint32_t count, tosaic_number sum) {
    if (dtype == TOSAIC_FLOAT32) {
        float total = sum.real;
        ADD_PRODUCTS(float, float)
        return (tosaic_number){.real = total};
    }
    uint64_t total = (uint64_t)sum.whole;
    if (dtype == TOSAIC_INT8) {
        ADD_PRODUCTS(int8_t, uint64_t)
    } else if (dtype == TOSAIC_INT32) {
        ADD_PRODUCTS(int32_t, uint64_t)
    } else {
        ADD_PRODUCTS(int64_t, uint64_t)
    }
    return (tosaic_number){.whole = (int64_t)total};
}
