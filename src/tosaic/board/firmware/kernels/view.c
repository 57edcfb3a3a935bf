#include "view.h"

#include "numbers.h"
#include "walk.h"

tosaic_view tosaic_view_of(const tosaic_tensor *tensor) {
    tosaic_view view = {.data = tensor->data, .dtype = tensor->dtype, .rank = tensor->rank};
    tosaic_get_strides(tensor, view.strides);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        view.sizes[i] = (uint32_t)tensor->sizes[i];
    }
    return view;
}

void tosaic_cut(tosaic_view *view, uint32_t dim, uint32_t start, uint32_t length, uint32_t step) {
    view->offset += start * view->strides[dim];
    view->sizes[dim] = length;
    view->strides[dim] *= step;
}

void tosaic_drop_dim(tosaic_view *view, uint32_t dim) {
    view->rank--;
    for (uint32_t i = dim; i < view->rank; i++) {
        view->sizes[i] = view->sizes[i + 1u];
        view->strides[i] = view->strides[i + 1u];
    }
}

bool tosaic_stretch(tosaic_view *view, uint32_t rank, const uint32_t *sizes) {
    if (rank < view->rank || rank > TOSAIC_MAX_RANK) {
        return false;
    }
    uint32_t missing = rank - view->rank;
    for (uint32_t i = rank; i-- > 0;) {
        uint32_t size = i < missing ? 1u : view->sizes[i - missing];
        if (size != 1u && size != sizes[i]) {
            return false;
        }
        view->strides[i] = size == 1u ? 0 : view->strides[i - missing];
        view->sizes[i] = sizes[i];
    }
    view->rank = rank;
    return true;
}

/* Elements that are converted at once. */
#define BLOCK 16u

/* Copies a row between types: from floats as floats, else as integers. */
static void convert(const tosaic_view *to, const tosaic_view *from, tosaic_row target, tosaic_row source) {
    const tosaic_access_to *writer = tosaic_find_access(to->dtype);
    const tosaic_access_to *reader = tosaic_find_access(from->dtype);
    uint32_t left = source.count;
    while (left > 0) {
        source.count = target.count = left < BLOCK ? left : BLOCK;
        if (tosaic_is_float(from->dtype)) {
            float block[BLOCK];
            reader->load_floats(&source, block, 1);
            writer->store_floats(&target, block);
        } else {
            int64_t block[BLOCK];
            reader->load_ints(&source, block, 1);
            writer->store_ints(&target, block);
        }
        left -= source.count;
        source.at += source.count * source.step;
        target.at += target.count * target.step;
    }
}

/* Copies elements of one size, whatever they are. */
#define MOVE(type)                                                                                     \
    for (uint32_t i = 0; i < source->count; i++) {                                                      \
        ((type *)target->data)[target->at + i * target->step] =                                         \
            ((const type *)source->data)[source->at + i * source->step];                                \
    }                                                                                                  \
    break

/* Copies a row of elements of `size` bytes. */
static void move(const tosaic_row *target, const tosaic_row *source, uint32_t size) {
    if (target->step == 1u && source->step == 1u) {
        memmove((uint8_t *)target->data + target->at * size, (const uint8_t *)source->data + source->at * size,
                source->count * size);
        return;
    }
    switch (size) {
        case 1:
            MOVE(uint8_t);
        case 2:
            MOVE(uint16_t);
        case 4:
            MOVE(uint32_t);
        default:
            MOVE(uint64_t);
    }
}

tosaic_status tosaic_copy_view(const tosaic_view *to, const tosaic_view *from) {
    tosaic_walk walk = {.at = {to->offset, from->offset}, .rank = to->rank, .inputs = 2};
    uint32_t count = 1;
    if (to->rank != from->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < to->rank; i++) {
        if (to->sizes[i] != from->sizes[i]) {
            return TOSAIC_BAD_SHAPE;
        }
        count *= to->sizes[i];
        walk.sizes[i] = to->sizes[i];
        walk.strides[0][i] = to->strides[i];
        walk.strides[1][i] = from->strides[i];
    }
    bool converts = to->dtype != from->dtype;
    if (converts && (tosaic_find_access(to->dtype) == NULL || tosaic_find_access(from->dtype) == NULL)) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_walk_join(&walk);
    uint32_t length = tosaic_walk_by_rows(&walk);
    for (uint32_t start = 0; start < count; start += length) {
        tosaic_row target = {to->data, walk.at[0], walk.strides[0][walk.rank], length};
        tosaic_row source = {from->data, walk.at[1], walk.strides[1][walk.rank], length};
        if (converts) {
            convert(to, from, target, source);
        } else {
            move(&target, &source, tosaic_get_element_size(to->dtype));
        }
        tosaic_walk_next(&walk);
    }
    return TOSAIC_OK;
}

tosaic_status tosaic_copy_to(tosaic_tensor *out, const tosaic_view *from) {
    int32_t sizes[TOSAIC_MAX_RANK];
    for (uint32_t i = 0; i < from->rank; i++) {
        sizes[i] = (int32_t)from->sizes[i];
    }
    tosaic_status status = tosaic_resize(out, from->rank, sizes);
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_view to = tosaic_view_of(out);
    return tosaic_copy_view(&to, from);
}
