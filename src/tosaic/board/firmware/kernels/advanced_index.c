/* Tensors as indices: x[i, :, j] and x[i, :, j] = values, with broadcasting and masks. */
#include "elements.h"

/* Where the elements of x[indices] are in x. The dimensions of the result are those that indices give, together in one
 * place, and those that have no index. */
typedef struct places {
    const tosaic_tensor *x;
    const tosaic_list *indices;
    uint32_t strides[TOSAIC_MAX_RANK]; /* of x */
    uint32_t rank;                     /* of the result */
    int32_t sizes[TOSAIC_MAX_RANK];
    uint32_t steps[TOSAIC_MAX_RANK]; /* of the result's dimensions in x; 0 for those of indices */
    uint32_t coordinates[TOSAIC_MAX_RANK];
    uint32_t first; /* of the dimensions that indices give */
    uint32_t given;
    uint32_t true_counts[TOSAIC_MAX_RANK]; /* of each index that is a mask */
    uint32_t true_number[TOSAIC_MAX_RANK]; /* the last place found in each mask: its number, and where it is */
    uint32_t true_at[TOSAIC_MAX_RANK];
} places;

static const tosaic_tensor *get_index(const places *p, uint32_t i) {
    const tosaic_value *value = p->indices->items[i];
    return value->kind == TOSAIC_TENSOR ? value->as.tensor : NULL;
}

static bool is_mask(const tosaic_tensor *index) { return index->dtype == TOSAIC_BOOL; }

static uint32_t count_trues(const tosaic_tensor *mask) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < mask->bytes; i++) {
        count += ((const uint8_t *)mask->data)[i] != 0;
    }
    return count;
}

/* Broadcasts a size into `sizes`, which are counted from the last dimension. */
static bool broadcast(int32_t *sizes, uint32_t *rank, uint32_t dim, int32_t size) {
    for (; *rank <= dim; (*rank)++) {
        sizes[*rank] = 1;
    }
    bool fits = size == 1 || sizes[dim] == 1 || sizes[dim] == size;
    sizes[dim] = sizes[dim] == 1 ? size : sizes[dim];
    return fits;
}

/* Checks an index for the dimensions of x from `dim` on, and broadcasts its shape; returns how many it is for. */
static uint32_t check_index(places *p, uint32_t i, uint32_t dim, int32_t *sizes) {
    const tosaic_tensor *index = get_index(p, i);
    bool fits = tosaic_is_contiguous(index);
    if (is_mask(index)) {
        fits = fits && index->rank > 0 && dim + index->rank <= p->x->rank;
        for (uint32_t k = 0; fits && k < index->rank; k++) {
            fits = index->sizes[k] == p->x->sizes[dim + k];
        }
        p->true_counts[i] = count_trues(index);
        fits = fits && broadcast(sizes, &p->given, 0, (int32_t)p->true_counts[i]);
        return fits ? index->rank : 0;
    }
    for (uint32_t k = 0; fits && k < index->rank; k++) {
        fits = broadcast(sizes, &p->given, k, index->sizes[index->rank - 1u - k]);
    }
    return fits && dim < p->x->rank ? 1 : 0;
}

/* Finds the dimensions of x that have no index, and the shape that the indices give, from its last dimension on. */
static tosaic_status read_indices(places *p, uint32_t *kept, uint32_t *kept_count, int32_t *given) {
    uint32_t dim = 0;
    uint32_t blocks = 0;
    bool is_in_block = false;
    for (uint32_t i = 0; i < p->indices->count; i++) {
        const tosaic_tensor *index = get_index(p, i);
        if (dim >= p->x->rank) {
            return TOSAIC_BAD_SHAPE;
        }
        if (index == NULL) {
            kept[(*kept_count)++] = dim++;
            is_in_block = false;
            continue;
        }
        if (!is_mask(index) && index->dtype != TOSAIC_INT32 && index->dtype != TOSAIC_INT64) {
            return TOSAIC_BAD_TYPE;
        }
        if (!is_in_block) {
            /* The dimensions are where the first index is; in front if indices are not side by side. */
            p->first = blocks++ == 0 ? *kept_count : 0;
            is_in_block = true;
        }
        uint32_t taken = check_index(p, i, dim, given);
        if (taken == 0) {
            return TOSAIC_BAD_SHAPE;
        }
        dim += taken;
    }
    while (dim < p->x->rank) {
        kept[(*kept_count)++] = dim++;
    }
    return TOSAIC_OK;
}

/* Finds the shape of x[indices], and begins at its first element. */
static tosaic_status begin(places *p, const tosaic_tensor *x, const tosaic_list *indices) {
    uint32_t kept[TOSAIC_MAX_RANK];
    uint32_t kept_count = 0;
    int32_t given[TOSAIC_MAX_RANK];
    *p = (places){.x = x, .indices = indices};
    tosaic_get_strides(x, p->strides);
    tosaic_status status = read_indices(p, kept, &kept_count, given);
    if (status != TOSAIC_OK) {
        return status;
    }
    p->rank = kept_count + p->given;
    if (p->rank > TOSAIC_MAX_RANK) {
        return TOSAIC_BAD_SHAPE;
    }
    for (uint32_t i = 0; i < p->rank; i++) {
        bool is_given = i >= p->first && i < p->first + p->given;
        uint32_t from = is_given ? 0 : kept[i < p->first ? i : i - p->given];
        p->sizes[i] = is_given ? given[p->first + p->given - 1u - i] : x->sizes[from];
        p->steps[i] = is_given ? 0 : p->strides[from];
    }
    return TOSAIC_OK;
}

/* Finds a true element of a mask by its number. The search goes on from the last one where it can. */
static bool find_true(places *p, uint32_t i, uint32_t number, uint32_t *at) {
    const tosaic_tensor *mask = get_index(p, i);
    const uint8_t *data = mask->data;
    if (number < p->true_number[i]) {
        p->true_number[i] = 0;
        p->true_at[i] = 0;
    }
    for (; p->true_at[i] < mask->bytes; p->true_at[i]++) {
        if (data[p->true_at[i]] == 0) {
            continue;
        }
        if (p->true_number[i] == number) {
            *at = p->true_at[i];
            return true;
        }
        p->true_number[i]++;
    }
    return false; /* the mask has changed meanwhile */
}

/* Finds what an index adds to the place in x. */
static bool follow(places *p, uint32_t i, uint32_t dim, uint32_t *place) {
    const tosaic_tensor *index = get_index(p, i);
    const uint32_t *given = &p->coordinates[p->first];
    uint32_t at = 0;
    if (is_mask(index)) {
        if (!find_true(p, i, p->true_counts[i] == 1 ? 0 : given[p->given - 1u], &at)) {
            return false;
        }
        for (uint32_t k = index->rank; k-- > 0;) {
            uint32_t size = (uint32_t)index->sizes[k];
            *place += at % size * p->strides[dim + k];
            at /= size;
        }
        return true;
    }
    for (uint32_t k = 0; k < index->rank; k++) {
        at = at * (uint32_t)index->sizes[k] + (index->sizes[k] == 1 ? 0 : given[p->given - index->rank + k]);
    }
    uint32_t position;
    bool is_inside = tosaic_read_index(index, at, p->x->sizes[dim], &position);
    *place += position * p->strides[dim];
    return is_inside;
}

/* Finds the current element in x. */
static bool locate(places *p, uint32_t *place) {
    *place = 0;
    for (uint32_t i = 0; i < p->rank; i++) {
        *place += p->coordinates[i] * p->steps[i];
    }
    uint32_t dim = 0;
    for (uint32_t i = 0; i < p->indices->count; i++) {
        const tosaic_tensor *index = get_index(p, i);
        if (index != NULL && !follow(p, i, dim, place)) {
            return false;
        }
        dim += index != NULL && is_mask(index) ? index->rank : 1u;
    }
    return true;
}

static void go_on(places *p) {
    for (uint32_t i = p->rank; i-- > 0;) {
        if (++p->coordinates[i] < (uint32_t)p->sizes[i]) {
            return;
        }
        p->coordinates[i] = 0;
    }
}

/* The number of elements of the result; UINT32_MAX for too many. */
static uint32_t count_all(const places *p) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < p->rank; i++) {
        count *= (uint32_t)p->sizes[i];
        count = count > UINT32_MAX ? UINT32_MAX : count;
    }
    return (uint32_t)count;
}

static bool has_index(const tosaic_list *indices, const tosaic_tensor *tensor) {
    for (uint32_t i = 0; i < indices->count; i++) {
        if (indices->items[i]->kind == TOSAIC_TENSOR && indices->items[i]->as.tensor == tensor) {
            return true;
        }
    }
    return false;
}

TOSAIC_KERNEL(index_tensor_out, "aten::index.Tensor_out", "TlO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_list *indices = tosaic_list_at(call, 1);
    tosaic_tensor *out = tosaic_tensor_at(call, 2);
    places p;
    if (x->dtype != out->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (x == out || has_index(indices, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_status status = begin(&p, x, indices);
    if (status == TOSAIC_OK) {
        status = tosaic_resize(out, p.rank, p.sizes);
    }
    if (status != TOSAIC_OK) {
        return status;
    }
    if (!tosaic_is_contiguous(out)) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t bytes = tosaic_get_element_size(x->dtype);
    uint32_t count = tosaic_count(out);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place;
        if (!locate(&p, &place)) {
            return TOSAIC_BAD_INDEX;
        }
        memmove(tosaic_address(out, i), tosaic_address(x, place), bytes);
        go_on(&p);
    }
    return TOSAIC_OK;
}

/* Puts values, broadcast to the shape of out[indices], into `out`. */
static tosaic_status put(tosaic_tensor *out, const tosaic_list *indices, const tosaic_tensor *values, bool adds) {
    places p;
    tosaic_status status = begin(&p, out, indices);
    if (status != TOSAIC_OK) {
        return status;
    }
    if (values->rank > p.rank) {
        return TOSAIC_BAD_SHAPE;
    }
    uint32_t strides[TOSAIC_MAX_RANK];
    uint32_t missing = p.rank - values->rank;
    tosaic_get_strides(values, strides);
    for (uint32_t i = 0; i < values->rank; i++) {
        if (values->sizes[i] == 1) {
            strides[i] = 0;
        } else if (values->sizes[i] != p.sizes[missing + i]) {
            return TOSAIC_BAD_SHAPE;
        }
    }
    uint32_t count = count_all(&p);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from = 0;
        uint32_t place;
        for (uint32_t k = 0; k < values->rank; k++) {
            from += p.coordinates[missing + k] * strides[k];
        }
        if (!locate(&p, &place)) {
            return TOSAIC_BAD_INDEX;
        }
        tosaic_number element = tosaic_get_number(values, from);
        tosaic_set_number(out, place, adds ? tosaic_add(tosaic_get_number(out, place), element, out->dtype) : element);
        go_on(&p);
    }
    return TOSAIC_OK;
}

TOSAIC_KERNEL(index_put_out, "aten::index_put.out", "TlTbO") {
    const tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_list *indices = tosaic_list_at(call, 1);
    const tosaic_tensor *values = tosaic_tensor_at(call, 2);
    tosaic_tensor *out = tosaic_tensor_at(call, 4);
    if (!tosaic_is_number(x->dtype) || values->dtype != x->dtype || out->dtype != x->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    if (tosaic_resize_like(out, x) != TOSAIC_OK || !tosaic_same_order(x, out)) {
        return TOSAIC_BAD_SHAPE;
    }
    tosaic_copy(out, x);
    return put(out, indices, values, tosaic_bool_at(call, 3));
}

TOSAIC_KERNEL(index_put_in_place, "aten::index_put_", "OlTb") {
    tosaic_tensor *x = tosaic_tensor_at(call, 0);
    const tosaic_tensor *values = tosaic_tensor_at(call, 2);
    if (!tosaic_is_number(x->dtype) || values->dtype != x->dtype) {
        return TOSAIC_BAD_TYPE;
    }
    return put(x, tosaic_list_at(call, 1), values, tosaic_bool_at(call, 3));
}
