/* Pools: the mean or the largest element of each window of a plane. */
#include "elements.h"
#include "window.h"

/* The elements of a window in one dimension: first, first + step, ... below end. */
typedef struct span {
    int32_t first;
    int32_t end;
    int32_t step;
} span;

/* A pool over [channels, height, width] or [batch, channels, height, width]. */
typedef struct pool {
    const tosaic_tensor *x;
    tosaic_tensor *out;
    uint32_t planes[2]; /* batch, channels */
    uint32_t x_strides[4];
    uint32_t y_strides[4];
    int32_t height;
    int32_t width;
    int32_t out_height;
    int32_t out_width;
} pool;

static void get_strides(const tosaic_tensor *tensor, uint32_t *strides) {
    uint32_t own[TOSAIC_MAX_RANK];
    tosaic_get_strides(tensor, own);
    strides[0] = 0;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        strides[i + 4u - tensor->rank] = own[i];
    }
}

/* Gives `out`, and `also` unless it is NULL, the sizes of the result, and prepares the pool. */
static tosaic_status begin(pool *p, const tosaic_tensor *x, tosaic_tensor *out, tosaic_tensor *also, int32_t height,
                           int32_t width) {
    uint32_t rank = x->rank;
    int32_t sizes[4];
    for (uint32_t i = 0; i < rank; i++) {
        sizes[i] = i + 2u < rank ? x->sizes[i] : i + 1u < rank ? height : width;
    }
    *p = (pool){.x = x, .out = out, .height = x->sizes[rank - 2u], .width = x->sizes[rank - 1u]};
    p->out_height = height;
    p->out_width = width;
    p->planes[0] = rank == 4 ? (uint32_t)x->sizes[0] : 1u;
    p->planes[1] = (uint32_t)x->sizes[rank - 3u];
    get_strides(x, p->x_strides);
    tosaic_status status = tosaic_resize(out, rank, sizes);
    if (status == TOSAIC_OK && also != NULL) {
        status = tosaic_resize(also, rank, sizes);
    }
    if (status != TOSAIC_OK || (also != NULL && !tosaic_same_order(out, also))) {
        return TOSAIC_BAD_SHAPE;
    }
    get_strides(out, p->y_strides);
    return TOSAIC_OK;
}

static bool has_planes(const tosaic_tensor *x) { return x->rank == 3 || x->rank == 4; }

static uint32_t find_x(const pool *p, uint32_t plane, int32_t row, int32_t column) {
    return plane / p->planes[1] * p->x_strides[0] + plane % p->planes[1] * p->x_strides[1] +
           (uint32_t)row * p->x_strides[2] + (uint32_t)column * p->x_strides[3];
}

static uint32_t find_y(const pool *p, uint32_t plane, int32_t row, int32_t column) {
    return plane / p->planes[1] * p->y_strides[0] + plane % p->planes[1] * p->y_strides[1] +
           (uint32_t)row * p->y_strides[2] + (uint32_t)column * p->y_strides[3];
}

static int32_t get_smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* The part of a window that is within the input. */
static span cut(const tosaic_window *w, int32_t place) {
    int32_t first = place * w->stride - w->padding;
    int32_t end = get_smaller(first + w->dilation * (w->taps - 1) + 1, w->input);
    while (first < 0) {
        first += w->dilation;
    }
    return (span){first, end, w->dilation};
}

/* Reads the windows of a pool; a pool without strides moves by its own size. */
static bool read_windows(const tosaic_call *call, const tosaic_tensor *x, tosaic_window *windows, uint32_t dilation,
                         bool is_ceil) {
    for (uint32_t i = 0; i < 2; i++) {
        tosaic_window *w = &windows[i];
        *w = (tosaic_window){.input = x->sizes[x->rank - 2u + i], .dilation = 1};
        if (!tosaic_item_at(call, 1, i, 0, &w->taps) || !tosaic_item_at(call, 2, i, w->taps, &w->stride) ||
            !tosaic_item_at(call, 3, i, 0, &w->padding) ||
            (dilation != 0 && !tosaic_item_at(call, dilation, i, 1, &w->dilation)) || w->padding > w->taps / 2 ||
            !tosaic_window_place(w, is_ceil)) {
            return false;
        }
    }
    return true;
}

/* ---- Means ------------------------------------------------------------------------------------------------------- */

static tosaic_number add_up(const pool *p, uint32_t plane, span rows, span columns) {
    tosaic_number sum = {.whole = 0};
    for (int32_t i = rows.first; i < rows.end; i++) {
        for (int32_t k = columns.first; k < columns.end; k++) {
            sum = tosaic_add(sum, tosaic_get_number(p->x, find_x(p, plane, i, k)), p->x->dtype);
        }
    }
    return sum;
}

static tosaic_number divide(tosaic_number sum, int64_t divisor, uint32_t dtype) {
    if (dtype == TOSAIC_FLOAT32) {
        return (tosaic_number){.real = sum.real / (float)divisor};
    }
    /* The lowest number divided by -1 is not an integer of 64 bits. */
    bool overflows = divisor == -1;
    return (tosaic_number){.whole = overflows ? (int64_t)(0u - (uint64_t)sum.whole) : sum.whole / divisor};
}

/* The size of a window with its padding on both sides, but without what is behind that. */
static int64_t measure(const tosaic_window *w, int32_t place) {
    int32_t first = place * w->stride - w->padding;
    return get_smaller(first + w->taps, w->input + w->padding) - first;
}

TOSAIC_KERNEL(avg_pool2d_out, "aten::avg_pool2d.out", "TIIIbbi?O") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 7);
    bool counts_padding = tosaic_bool_at(call, 5);
    int64_t divisor = tosaic_is_none_at(call, 6) ? 0 : tosaic_int_at(call, 6);
    tosaic_window w[2];
    pool p;
    if ((x->dtype != TOSAIC_FLOAT32 && x->dtype != TOSAIC_INT64) || out->dtype != x->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (!has_planes(x) || !read_windows(call, x, w, 0, tosaic_bool_at(call, 4)) ||
        (divisor == 0 && !tosaic_is_none_at(call, 6)) ||
        begin(&p, x, out, NULL, w[0].output, w[1].output) != TOSAIC_OK) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t plane = 0; plane < p.planes[0] * p.planes[1]; plane++) {
        for (int32_t i = 0; i < p.out_height; i++) {
            for (int32_t k = 0; k < p.out_width; k++) {
                span rows = cut(&w[0], i);
                span columns = cut(&w[1], k);
                int64_t count = counts_padding ? measure(&w[0], i) * measure(&w[1], k)
                                               : (int64_t)(rows.end - rows.first) * (columns.end - columns.first);
                tosaic_number sum = add_up(&p, plane, rows, columns);
                tosaic_set_number(out, find_y(&p, plane, i, k), divide(sum, divisor != 0 ? divisor : count, x->dtype));
            }
        }
    }
    return TOSAIC_OK;
}

/* The part of a dimension that belongs to a place of the output: parts may overlap by one. */
static span divide_up(int32_t place, int32_t input, int32_t output) {
    int64_t first = (int64_t)place * input / output;
    int64_t end = ((int64_t)(place + 1) * input + output - 1) / output;
    return (span){(int32_t)first, (int32_t)end, 1};
}

TOSAIC_KERNEL(adaptive_avg_pool2d_out, "aten::_adaptive_avg_pool2d.out", "TIO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    int32_t height;
    int32_t width;
    pool p;
    if (x->dtype != TOSAIC_FLOAT32 || out->dtype != x->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (!has_planes(x) || tosaic_list_at(call, 1)->count != 2 || !tosaic_item_at(call, 1, 0, 0, &height) ||
        !tosaic_item_at(call, 1, 1, 0, &width) || begin(&p, x, out, NULL, height, width) != TOSAIC_OK ||
        p.height == 0 || p.width == 0) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t plane = 0; plane < p.planes[0] * p.planes[1]; plane++) {
        for (int32_t i = 0; i < height; i++) {
            for (int32_t k = 0; k < width; k++) {
                span rows = divide_up(i, p.height, height);
                span columns = divide_up(k, p.width, width);
                int64_t count = (int64_t)(rows.end - rows.first) * (columns.end - columns.first);
                tosaic_number sum = add_up(&p, plane, rows, columns);
                tosaic_set_number(out, find_y(&p, plane, i, k), divide(sum, count, x->dtype));
            }
        }
    }
    return TOSAIC_OK;
}

/* ---- Largest elements -------------------------------------------------------------------------------------------- */

/* Finds the largest element of a window, and its place in the plane. */
static tosaic_number find_largest(const pool *p, uint32_t plane, span rows, span columns, int64_t *where) {
    tosaic_number largest = {.whole = 0};
    bool is_first = true;
    *where = 0;
    for (int32_t i = rows.first; i < rows.end; i += rows.step) {
        for (int32_t k = columns.first; k < columns.end; k += columns.step) {
            tosaic_number element = tosaic_get_number(p->x, find_x(p, plane, i, k));
            bool is_float = p->x->dtype == TOSAIC_FLOAT32;
            bool is_larger = is_float ? element.real > largest.real : element.whole > largest.whole;
            if (is_first || is_larger) {
                largest = element;
                *where = (int64_t)i * p->width + k;
                is_first = false;
            }
        }
    }
    return largest;
}

TOSAIC_KERNEL(max_pool2d_with_indices_out, "aten::max_pool2d_with_indices.out", "TIIIIbOO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    tosaic_tensor *out = tosaic_tensor_at(call, 6);
    tosaic_tensor *indices = tosaic_tensor_at(call, 7);
    tosaic_window w[2];
    pool p;
    if (!tosaic_is_number(x->dtype) || out->dtype != x->dtype || indices->dtype != TOSAIC_INT64) {
        return TOSAIC_BAD_TYPE;
    }
    if (!has_planes(x) || !read_windows(call, x, w, 4, tosaic_bool_at(call, 5)) ||
        begin(&p, x, out, indices, w[0].output, w[1].output) != TOSAIC_OK) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t plane = 0; plane < p.planes[0] * p.planes[1]; plane++) {
        for (int32_t i = 0; i < p.out_height; i++) {
            for (int32_t k = 0; k < p.out_width; k++) {
                int64_t where;
                uint32_t at = find_y(&p, plane, i, k);
                tosaic_set_number(out, at, find_largest(&p, plane, cut(&w[0], i), cut(&w[1], k), &where));
                ((int64_t *)indices->data)[at] = where;
            }
        }
    }
    return TOSAIC_OK;
}
