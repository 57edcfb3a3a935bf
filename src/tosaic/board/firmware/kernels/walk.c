#include "walk.h"

/* The size of dimension `dim`, counted from the last one, of a tensor; 1 where it has none. */
static int32_t get_size(const tosaic_tensor *tensor, uint32_t dim) {
    return dim < tensor->rank ? tensor->sizes[tensor->rank - 1u - dim] : 1;
}

static tosaic_status resize(tosaic_tensor *out, const tosaic_tensor *const *inputs, uint32_t count) {
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t rank = 0;
    for (uint32_t k = 0; k < count; k++) {
        rank = inputs[k]->rank > rank ? inputs[k]->rank : rank;
    }
    for (uint32_t dim = 0; dim < rank; dim++) {
        int32_t size = 1;
        for (uint32_t k = 0; k < count; k++) {
            int32_t own = get_size(inputs[k], dim);
            if (own != 1 && size != 1 && own != size) {
                return TOSAIC_BAD_SHAPE;
            }
            size = own != 1 ? own : size;
        }
        sizes[rank - 1u - dim] = size;
    }
    return tosaic_resize(out, rank, sizes);
}

tosaic_status tosaic_walk_begin(tosaic_walk *walk, tosaic_tensor *out, const tosaic_tensor *const *inputs,
                                uint32_t count) {
    tosaic_status status = resize(out, inputs, count);
    if (status != TOSAIC_OK) {
        return status;
    }
    *walk = (tosaic_walk){.rank = out->rank, .inputs = count};
    for (uint32_t k = 0; k < count; k++) {
        const tosaic_tensor *input = inputs[k];
        uint32_t own[TOSAIC_MAX_RANK];
        uint32_t missing = (uint32_t)out->rank - input->rank;
        tosaic_get_strides(input, own);
        for (uint32_t i = 0; i < out->rank; i++) {
            uint32_t dim = out->dim_order[i];
            bool is_broadcast = dim < missing || input->sizes[dim - missing] == 1;
            walk->sizes[i] = (uint32_t)out->sizes[dim];
            walk->strides[k][i] = is_broadcast ? 0 : own[dim - missing];
        }
    }
    tosaic_walk_join(walk);
    return TOSAIC_OK;
}

static bool can_join(const tosaic_walk *walk, uint32_t outer, uint32_t inner) {
    for (uint32_t k = 0; k < walk->inputs; k++) {
        if (walk->strides[k][outer] != walk->strides[k][inner] * walk->sizes[inner]) {
            return false;
        }
    }
    return true;
}

void tosaic_walk_join(tosaic_walk *walk) {
    uint32_t rank = 0;
    for (uint32_t i = 0; i < walk->rank; i++) {
        if (walk->sizes[i] == 1u) {
            continue;
        }
        uint32_t size = walk->sizes[i];
        bool joins = rank > 0 && can_join(walk, rank - 1u, i);
        rank += joins ? 0u : 1u;
        walk->sizes[rank - 1u] = joins ? walk->sizes[rank - 1u] * size : size;
        for (uint32_t k = 0; k < walk->inputs; k++) {
            walk->strides[k][rank - 1u] = walk->strides[k][i];
        }
    }
    walk->rank = rank;
}

uint32_t tosaic_walk_by_rows(tosaic_walk *walk) {
    if (walk->rank == 0) {
        return 1;
    }
    walk->rank--;
    return walk->sizes[walk->rank];
}

void tosaic_walk_next(tosaic_walk *walk) {
    for (uint32_t i = walk->rank; i-- > 0;) {
        bool more = ++walk->index[i] < walk->sizes[i];
        for (uint32_t k = 0; k < walk->inputs; k++) {
            uint32_t stride = walk->strides[k][i];
            walk->at[k] += more ? stride : 0u - stride * (walk->sizes[i] - 1u);
        }
        if (more) {
            return;
        }
        walk->index[i] = 0;
    }
}
