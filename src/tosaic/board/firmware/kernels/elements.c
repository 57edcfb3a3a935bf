#include "elements.h"

bool tosaic_is_number(uint32_t dtype) {
    return dtype <= TOSAIC_INT64 || dtype == TOSAIC_FLOAT32 || dtype == TOSAIC_BOOL;
}

tosaic_number tosaic_get_number(const tosaic_tensor *tensor, uint32_t at) {
    const void *element = tosaic_address(tensor, at);
    switch (tensor->dtype) {
        case TOSAIC_FLOAT32:
            return (tosaic_number){.real = *(const float *)element};
        case TOSAIC_INT64:
            return (tosaic_number){.whole = *(const int64_t *)element};
        case TOSAIC_INT32:
            return (tosaic_number){.whole = *(const int32_t *)element};
        case TOSAIC_INT16:
            return (tosaic_number){.whole = *(const int16_t *)element};
        case TOSAIC_INT8:
            return (tosaic_number){.whole = *(const int8_t *)element};
        case TOSAIC_BOOL:
            return (tosaic_number){.whole = *(const uint8_t *)element != 0};
        default:
            return (tosaic_number){.whole = *(const uint8_t *)element};
    }
}

void tosaic_set_number(tosaic_tensor *tensor, uint32_t at, tosaic_number number) {
    void *element = tosaic_address(tensor, at);
    switch (tensor->dtype) {
        case TOSAIC_FLOAT32:
            *(float *)element = number.real;
            return;
        case TOSAIC_INT64:
            *(int64_t *)element = number.whole;
            return;
        case TOSAIC_INT32:
            *(int32_t *)element = (int32_t)number.whole;
            return;
        case TOSAIC_INT16:
            *(int16_t *)element = (int16_t)number.whole;
            return;
        case TOSAIC_BOOL:
            *(uint8_t *)element = number.whole != 0;
            return;
        default:
            *(uint8_t *)element = (uint8_t)number.whole;
            return;
    }
}

tosaic_number tosaic_cast(tosaic_number number, uint32_t from, uint32_t to) {
    bool was_float = from == TOSAIC_FLOAT32;
    if (to == TOSAIC_BOOL) {
        return (tosaic_number){.whole = was_float ? number.real != 0.0f : number.whole != 0};
    }
    bool becomes_float = to == TOSAIC_FLOAT32 && !was_float;
    return becomes_float ? (tosaic_number){.real = (float)number.whole} : number;
}

tosaic_number tosaic_number_at(const tosaic_call *call, uint32_t index, uint32_t dtype) {
    if (dtype == TOSAIC_FLOAT32) {
        return (tosaic_number){.real = tosaic_float_at(call, index)};
    }
    return (tosaic_number){.whole = tosaic_whole_at(call, index)};
}

tosaic_number tosaic_add(tosaic_number a, tosaic_number b, uint32_t dtype) {
    if (dtype == TOSAIC_FLOAT32) {
        return (tosaic_number){.real = a.real + b.real};
    }
    return (tosaic_number){.whole = (int64_t)((uint64_t)a.whole + (uint64_t)b.whole)};
}

tosaic_number tosaic_multiply(tosaic_number a, tosaic_number b, uint32_t dtype) {
    if (dtype == TOSAIC_FLOAT32) {
        return (tosaic_number){.real = a.real * b.real};
    }
    return (tosaic_number){.whole = (int64_t)((uint64_t)a.whole * (uint64_t)b.whole)};
}

bool tosaic_is_less(tosaic_number a, tosaic_number b, uint32_t dtype) {
    if (dtype == TOSAIC_FLOAT32) {
        return a.real < b.real || (tosaic_is_nan(b.real) && !tosaic_is_nan(a.real));
    }
    return a.whole < b.whole;
}

bool tosaic_read_index(const tosaic_tensor *tensor, uint32_t at, int32_t size, uint32_t *index) {
    int64_t number = tosaic_get_number(tensor, at).whole;
    number += number < 0 ? size : 0;
    *index = (uint32_t)number;
    return number >= 0 && number < size;
}

void tosaic_copy(tosaic_tensor *to, const tosaic_tensor *from) {
    if (from->bytes != 0) {
        memmove(to->data, from->data, from->bytes);
    }
}
