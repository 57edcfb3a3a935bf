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

/* A copy between types: from a float in floats, else in integers. */
static void convert(const tosaic_view *to, const tosaic_view *from, const tosaic_walk *walk, uint32_t count) {
    const tosaic_access_to *writer = tosaic_find_access(to->dtype);
    const tosaic_access_to *reader = tosaic_find_access(from->dtype);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = walk->at[0] + i;
        uint32_t source = walk->at[1] + i;
        if (from->dtype == TOSAIC_FLOAT32) {
            writer->store_float(to->data, at, reader->load_float(from->data, source));
        } else {
            writer->store_int(to->data, at, reader->load_int(from->data, source));
        }
    }
}

tosaic_status tosaic_copy_view(const tosaic_view *to, const tosaic_view *from) {
    tosaic_walk walk = {.at = {to->offset, from->offset}, .rank = to->rank, .inputs = 2};
    uint32_t steps = 1;
    if (to->rank != from->rank) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < to->rank; i++) {
        if (to->sizes[i] != from->sizes[i]) {
            return TOSAIC_BAD_SHAPE;
        }
        steps *= to->sizes[i];
        walk.sizes[i] = to->sizes[i];
        walk.strides[0][i] = to->strides[i];
        walk.strides[1][i] = from->strides[i];
    }
    bool converts = to->dtype != from->dtype;
    if (converts && (tosaic_find_access(to->dtype) == (void *)0 || tosaic_find_access(from->dtype) == (void *)0)) {
        return TOSAIC_BAD_TYPE;
    }
    tosaic_walk_join(&walk);
    /* Elements that are next to each other on both sides are one step. */
    uint32_t last = walk.rank - 1u;
    uint32_t run = 1;
    if (walk.rank > 0 && walk.strides[0][last] == 1u && walk.strides[1][last] == 1u && steps > 0) {
        run = walk.sizes[last];
        walk.rank = last;
    }
    uint32_t size = tosaic_get_element_size(to->dtype);
    for (uint32_t i = 0; i < steps; i += run) {
        if (converts) {
            convert(to, from, &walk, run);
        } else {
            memmove((uint8_t *)to->data + walk.at[0] * size, (const uint8_t *)from->data + walk.at[1] * size,
                    run * size);
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

bool tosaic_is_plain(const tosaic_tensor *tensor) {
    uint32_t previous = 0;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        uint32_t dim = tensor->dim_order[i];
        if (tensor->sizes[dim] == 1) {
            continue;
        }
        if (dim < previous) {
            return false;
        }
        previous = dim;
    }
    return true;
}
