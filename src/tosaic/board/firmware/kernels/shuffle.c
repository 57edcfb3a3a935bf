/* Channels to space and back. */
#include "elements.h"
#include "steps.h"

/* Copies [..., C * f * f, H, W] to [..., C, H * f, W * f], or the other way. Both are walked in the order
 * [..., C, f, f, H, W], with the rows of blocks before their columns. */
static tosaic_status shuffle(const tosaic_call *call, bool to_space) {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    int64_t factor = tosaic_int_at(call, 1);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    uint32_t rank = x->rank;
    if (x->dtype != out->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (rank < 3 || factor <= 0 || factor > 0x7fff || x == out) {
        return TOSAIC_BAD_SHAPE;
    }
    int32_t f = (int32_t)factor;
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t planes = 1;
    for (uint32_t i = 0; i < rank; i++) {
        /* The dimension that shrinks must be divisible, the one that grows must not become too large. */
        int32_t part = i + 3u == rank ? f * f : i + 3u > rank ? f : 1;
        bool shrinks = (i + 3u == rank) == to_space;
        if (shrinks ? x->sizes[i] % part != 0 : x->sizes[i] > INT32_MAX / part) {
            return TOSAIC_BAD_SHAPE;
        }
        sizes[i] = shrinks ? x->sizes[i] / part : x->sizes[i] * part;
        planes *= i + 3u < rank ? (uint32_t)x->sizes[i] : 1u;
    }
    if (tosaic_resize(out, rank, sizes) != TOSAIC_OK || !tosaic_is_contiguous(x) || !tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    const int32_t *small = &(to_space ? sizes : x->sizes)[rank - 3u]; /* channels, height, width of the space side */
    uint32_t channels = (uint32_t)small[0];
    uint32_t height = (uint32_t)small[1] / (uint32_t)f;
    uint32_t width = (uint32_t)small[2] / (uint32_t)f;
    uint32_t block = (uint32_t)f;
    tosaic_steps space;
    tosaic_steps_begin(&space);
    tosaic_steps_add(&space, planes * channels, height * block * width * block);
    tosaic_steps_add(&space, block, width * block);
    tosaic_steps_add(&space, block, 1);
    tosaic_steps_add(&space, height, block * width * block);
    tosaic_steps_add(&space, width, block);
    uint32_t bytes = tosaic_get_element_size(x->dtype);
    for (uint32_t i = 0; i < space.count; i++) {
        memcpy(tosaic_address(out, to_space ? space.at : i), tosaic_address(x, to_space ? i : space.at), bytes);
        tosaic_next(&space);
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(pixel_shuffle_out, "aten::pixel_shuffle.out", "TiO") { return shuffle(call, true); }

TOSAIC_KERNEL(pixel_unshuffle_out, "aten::pixel_unshuffle.out", "TiO") { return shuffle(call, false); }
