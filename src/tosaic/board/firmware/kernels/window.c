#include "window.h"

bool tosaic_item_at(const tosaic_call *call, uint32_t arg, uint32_t index, int32_t missing, int32_t *number) {
    const tosaic_list *list = tosaic_list_at(call, arg);
    if (list->count == 0) {
        *number = missing;
        return true;
    }
    if (list->count != 1 && index >= list->count) {
        return false;
    }
    int64_t item = list->items[list->count == 1 ? 0 : index]->as.integer;
    *number = (int32_t)item;
    return item >= 0 && item <= INT32_MAX;
}

/* Stores a size. With it and twice the padding in 32 bits, so are all positions: they are within input and output. */
static bool store(tosaic_window *window, int64_t output) {
    int64_t larger = output > window->input ? output : window->input;
    window->output = (int32_t)output;
    return output > 0 && larger + 2 * (int64_t)window->padding <= INT32_MAX;
}

static bool is_possible(const tosaic_window *window) {
    return window->input > 0 && window->taps > 0 && window->stride > 0 && window->dilation > 0 && window->padding >= 0;
}

bool tosaic_window_place(tosaic_window *window, bool is_ceil) {
    if (!is_possible(window)) {
        return false;
    }
    int64_t reach = (int64_t)window->dilation * (window->taps - 1) + 1;
    int64_t room = window->input + 2 * (int64_t)window->padding - reach;
    if (room < 0) {
        return false;
    }
    int64_t output = (room + (is_ceil ? window->stride - 1 : 0)) / window->stride + 1;
    /* The last window must not begin in the padding behind the input. */
    if (is_ceil && (output - 1) * window->stride >= (int64_t)window->input + window->padding) {
        output--;
    }
    return store(window, output);
}

bool tosaic_window_place_transposed(tosaic_window *window, int32_t output_padding) {
    if (!is_possible(window) || output_padding < 0) {
        return false;
    }
    int64_t reach = (int64_t)window->dilation * (window->taps - 1) + 1;
    int64_t room = (int64_t)(window->input - 1) * window->stride - 2 * (int64_t)window->padding;
    return store(window, room + reach + output_padding);
}
