/* Elements of planes at positions that are themselves a tensor: nearest, bilinear and bicubic. */
#include "elements.h"

enum { BILINEAR = 0, NEAREST = 1, BICUBIC = 2 }; /* as in the operator's schema */
enum { ZEROS = 0, BORDER = 1, REFLECTION = 2 };

/* What the call asks for. */
typedef struct sampler {
    int64_t interpolation;
    int64_t padding;
    bool aligns_corners;
} sampler;

/* The elements of one dimension that make up a result: `count` of them from `first` on, and their shares. */
typedef struct taps {
    int32_t first;
    int32_t count;
    float shares[4];
} taps;

/* Brings a position that is outside back into the input; with padding of zeros it stays. */
static float bring_back(const sampler *s, float x, int32_t size) {
    if (s->padding == ZEROS) {
        return x;
    }
    if (s->padding == REFLECTION) {
        float low = s->aligns_corners ? 0.0f : -0.5f;
        float span = (float)size - (s->aligns_corners ? 1.0f : 0.0f);
        float far = span == 0.0f ? 0.0f : tosaic_fmod(tosaic_abs(x - low), 2.0f * span);
        x = (far > span ? 2.0f * span - far : far) + low;
    }
    float last = (float)(size - 1);
    return x > last ? last : x > 0.0f ? x : 0.0f;
}

/* The share of an element at a distance between 0 and 2, by cubic convolution. */
static float find_cubic_share(float distance) {
    const float a = -0.75f;
    if (distance <= 1.0f) {
        return ((a + 2.0f) * distance - (a + 3.0f)) * distance * distance + 1.0f;
    }
    return ((a * distance - 5.0f * a) * distance + 8.0f * a) * distance - 4.0f * a;
}

/* Finds the elements for a coordinate, where -1 and 1 are the ends of the input. */
static taps find_taps(const sampler *s, float coordinate, int32_t size) {
    float x = s->aligns_corners ? (coordinate + 1.0f) / 2.0f * (float)(size - 1)
                                : ((coordinate + 1.0f) * (float)size - 1.0f) / 2.0f;
    if (s->interpolation != BICUBIC) {
        x = bring_back(s, x, size);
    }
    /* What is further away is outside, and must fit in an integer. A NaN is outside too. */
    x = !(x > -0x1p24f) ? -0x1p24f : x > 0x1p24f ? 0x1p24f : x;
    if (s->interpolation == NEAREST) {
        return (taps){(int32_t)tosaic_round(x), 1, {1.0f}};
    }
    float whole = tosaic_floor(x);
    float rest = x - whole;
    if (s->interpolation == BILINEAR) {
        return (taps){(int32_t)whole, 2, {1.0f - rest, rest}};
    }
    return (taps){(int32_t)whole - 1,
                  4,
                  {find_cubic_share(rest + 1.0f), find_cubic_share(rest), find_cubic_share(1.0f - rest),
                   find_cubic_share(2.0f - rest)}};
}

/* Finds an element of a dimension; false if it is outside, and zero. */
static bool find_place(const sampler *s, int32_t at, int32_t size, uint32_t *place) {
    int32_t inside = s->padding == ZEROS ? at : (int32_t)bring_back(s, (float)at, size);
    *place = (uint32_t)inside;
    return inside >= 0 && inside < size;
}

static float sample(const sampler *s, const float *plane, const int32_t *sizes, const uint32_t *strides, taps rows,
                    taps columns) {
    float sum = 0.0f;
    for (int32_t i = 0; i < rows.count; i++) {
        uint32_t row;
        if (!find_place(s, rows.first + i, sizes[2], &row)) {
            continue;
        }
        for (int32_t k = 0; k < columns.count; k++) {
            uint32_t column;
            if (find_place(s, columns.first + k, sizes[3], &column)) {
                sum += plane[row * strides[2] + column * strides[3]] * rows.shares[i] * columns.shares[k];
            }
        }
    }
    return sum;
}

TOSAIC_KERNEL(grid_sampler_2d_out, "aten::grid_sampler_2d.out", "TTiibO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_tensor *grid = tosaic_tensor_at(call, 1);
    sampler s = {tosaic_int_at(call, 2), tosaic_int_at(call, 3), tosaic_bool_at(call, 4)};
    tosaic_tensor *out = tosaic_tensor_at(call, 5);
    if (x->dtype != TOSAIC_FLOAT32 || grid->dtype != TOSAIC_FLOAT32 || out->dtype != TOSAIC_FLOAT32) {
        return TOSAIC_BAD_TYPE;
    }
    if (x->rank != 4 || grid->rank != 4 || x->sizes[0] != grid->sizes[0] || grid->sizes[3] != 2 || x->sizes[2] == 0 ||
        x->sizes[3] == 0 || s.interpolation < BILINEAR || s.interpolation > BICUBIC || s.padding < ZEROS ||
        s.padding > REFLECTION || x == out || grid == out) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t sizes[] = {x->sizes[0], x->sizes[1], grid->sizes[1], grid->sizes[2]};
    uint32_t from[4];
    uint32_t where[4];
    uint32_t to[4];
    tosaic_status status = tosaic_resize(out, 4, sizes);
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_get_strides(x, from);
    tosaic_get_strides(grid, where);
    tosaic_get_strides(out, to);
    const float *positions = grid->data;
    uint32_t area = (uint32_t)sizes[2] * (uint32_t)sizes[3];
    for (uint32_t i = 0; i < (uint32_t)sizes[0] * area; i++) {
        uint32_t batch = i / area;
        uint32_t row = i % area / (uint32_t)sizes[3];
        uint32_t column = i % (uint32_t)sizes[3];
        const float *position = positions + batch * where[0] + row * where[1] + column * where[2];
        taps columns = find_taps(&s, position[0], x->sizes[3]);
        taps rows = find_taps(&s, position[where[3]], x->sizes[2]);
        for (uint32_t channel = 0; channel < (uint32_t)sizes[1]; channel++) {
            const float *plane = (const float *)x->data + batch * from[0] + channel * from[1];
            uint32_t at = batch * to[0] + channel * to[1] + row * to[2] + column * to[3];
            ((float *)out->data)[at] = sample(&s, plane, x->sizes, from, rows, columns);
        }
    }
    return TOSAIC_OK;
}
