/* Makes the values of a method from its plan. */
#include "fields.h"
#include "memory.h"
#include "method.h"
#include "tensor.h"

_Static_assert(TOSAIC_NONE + 1 == (int)KERNEL_TYPES_NULL, "kinds are numbered as in the file, less one");
_Static_assert(TOSAIC_OPTIONAL_TENSOR_LIST + 1 == (int)KERNEL_TYPES_OPTIONAL_TENSOR_LIST, "and so is the last");
_Static_assert((int)INT_LIST_ITEMS == (int)DOUBLE_LIST_ITEMS, "all lists have their items in the same field");

/* What stands for None in a list of optional tensors. */
static const tosaic_value none = {.kind = TOSAIC_NONE, .as = {.integer = 0}};

/* The planned buffers. */
typedef struct buffers {
    uint8_t **starts; /* by the memory id, from 1 on */
    uint32_t *sizes;
    uint32_t count;
} buffers;

/* Takes the planned buffers from the planned pool. Entry 0 of the file's list is not a buffer. */
static tosaic_status take_buffers(tosaic_method *method, flat *file, buffers *planned) {
    flat_vector sizes = flat_get_vector(file, method->plan, EXECUTION_PLAN_NON_CONST_BUFFER_SIZES, 8);
    void *starts;
    void *lengths;
    tosaic_status status = tosaic_take_for(method, sizes.count, sizeof(uint8_t *), &starts);
    if (status == TOSAIC_OK) {
        status = tosaic_take_for(method, sizes.count, sizeof(uint32_t), &lengths);
    }
    if (status != TOSAIC_OK) {
        return status;
    }
    *planned = (buffers){starts, lengths, sizes.count};
    for (uint32_t i = 1; i < sizes.count; i++) {
        uint64_t size = flat_read_u64(file, sizes.at + 8u * i);
        void *start;
        tosaic_pool *pool = method->setup->planned;
        if (size > UINT32_MAX || !tosaic_take(pool, 1, (uint32_t)size, &start)) {
            return tosaic_fail(method, TOSAIC_PLANNED_POOL, size > UINT32_MAX ? UINT32_MAX : pool->peak);
        }
        if (size != 0) {
            memset(start, 0, (uint32_t)size);
        }
        planned->starts[i] = start;
        planned->sizes[i] = (uint32_t)size;
    }
    return TOSAIC_OK;
}

/* Copies sizes and dimension order; false if they are not possible. */
static bool read_shape(flat *file, tosaic_tensor *tensor, flat_vector sizes, flat_vector order) {
    uint32_t seen = 0;
    for (uint32_t i = 0; i < sizes.count; i++) {
        tensor->sizes[i] = (int32_t)flat_read_u32(file, sizes.at + 4u * i);
        uint32_t dim = flat_read_u8(file, order.at + i);
        seen |= dim < TOSAIC_MAX_RANK ? 1u << dim : 0;
    }
    tensor->dim_order = file->data + order.at;
    return seen == (1u << sizes.count) - 1u &&
           tosaic_measure(tensor->dtype, tensor->rank, tensor->sizes, &tensor->bytes);
}

/* Gives a tensor its place in planned memory, if it has one. */
static bool place(flat *file, tosaic_tensor *tensor, flat_table details, const buffers *planned) {
    tensor->access = TOSAIC_CALLERS;
    if (details == 0) {
        return true;
    }
    uint32_t id = flat_get_u32(file, details, ALLOCATION_DETAILS_MEMORY_ID);
    uint32_t offset = flat_get_u32(file, details, ALLOCATION_DETAILS_MEMORY_OFFSET_LOW);
    uint32_t high = flat_get_u32(file, details, ALLOCATION_DETAILS_MEMORY_OFFSET_HIGH);
    if (id == 0 || id >= planned->count || high != 0 || offset > planned->sizes[id] ||
        tensor->bytes > planned->sizes[id] - offset || offset % tosaic_get_element_size(tensor->dtype) != 0) {
        return false;
    }
    tensor->access = TOSAIC_PLANNED;
    tensor->capacity = tensor->bytes;
    tensor->data = tensor->bytes == 0 ? NULL : planned->starts[id] + offset;
    return true;
}

/* Gives a tensor its data in the file: the content of a constant, or the first content of a tensor that is written. */
static tosaic_status set_data(tosaic_method *method, flat *file, flat_table row, tosaic_tensor *tensor,
                              uint32_t number) {
    flat_table extra = flat_get_table(file, row, TENSOR_EXTRA_TENSOR_INFO);
    if (flat_get_u8(file, extra, EXTRA_TENSOR_INFO_LOCATION) == 1) {
        return tosaic_fail(method, TOSAIC_EXTERNAL_DATA, number);
    }
    uint32_t index = flat_get_u32(file, row, TENSOR_DATA_BUFFER_IDX);
    bool planned = tensor->access == TOSAIC_PLANNED;
    if (index == 0 || (planned && tensor->bytes == 0)) {
        return TOSAIC_OK;
    }
    uint64_t list = flat_get_u64(file, extra, EXTRA_TENSOR_INFO_MUTABLE_DATA_SEGMENTS_IDX);
    tosaic_piece data = tosaic_get_tensor_data(file, method->program, index, planned ? (int64_t)list : -1);
    if (file->bad) {
        return tosaic_fail(method, TOSAIC_DAMAGED, file->bad_at);
    }
    if (data.size < tensor->bytes) {
        return tosaic_fail(method, TOSAIC_BAD_TENSOR, number);
    }
    const uint8_t *start = method->program->file.data + data.at;
    if (planned) {
        memcpy(tensor->data, start, tensor->bytes);
        return TOSAIC_OK;
    }
    if (data.at % tosaic_get_element_size(tensor->dtype) != 0) {
        return tosaic_fail(method, TOSAIC_MISALIGNED, data.at);
    }
    tensor->access = TOSAIC_CONSTANT;
    tensor->capacity = tensor->bytes;
    tensor->data = (void *)(uintptr_t)start; /* never written: the access says so */
    return TOSAIC_OK;
}

static tosaic_status load_tensor(tosaic_method *method, flat *file, flat_table row, const buffers *planned,
                                 uint32_t number, tosaic_value *value) {
    flat_vector sizes = flat_get_vector(file, row, TENSOR_SIZES, 4);
    flat_vector order = flat_get_vector(file, row, TENSOR_DIM_ORDER, 1);
    uint32_t dtype = flat_get_u8(file, row, TENSOR_SCALAR_TYPE);
    uint32_t dynamism = flat_get_u8(file, row, TENSOR_SHAPE_DYNAMISM);
    if (sizes.count > TOSAIC_MAX_RANK || order.count != sizes.count || dynamism > TOSAIC_UNBOUND ||
        tosaic_get_element_size(dtype) == 0 || flat_get_u32(file, row, TENSOR_STORAGE_OFFSET) != 0) {
        return tosaic_fail(method, TOSAIC_BAD_TENSOR, number);
    }
    /* One piece of memory for the tensor and its sizes. */
    void *memory;
    tosaic_status status =
        tosaic_take_for(method, 1, (uint32_t)(sizeof(tosaic_tensor) + sizes.count * sizeof(int32_t)), &memory);
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_tensor *tensor = memory;
    *tensor = (tosaic_tensor){.sizes = (int32_t *)(tensor + 1),
                              .dtype = (uint8_t)dtype,
                              .rank = (uint8_t)sizes.count,
                              .dynamism = (uint8_t)dynamism};
    flat_table details = flat_get_table(file, row, TENSOR_ALLOCATION_INFO);
    if (!read_shape(file, tensor, sizes, order) || !place(file, tensor, details, planned)) {
        return tosaic_fail(method, TOSAIC_BAD_TENSOR, number);
    }
    value->as.tensor = tensor;
    return set_data(method, file, row, tensor, number);
}

/* Makes a list. Its items are values of the plan, or for doubles and bools new values that only the list has. */
static tosaic_status load_list(tosaic_method *method, flat *file, flat_table row, tosaic_value *value) {
    uint32_t kind = value->kind;
    bool own = kind == TOSAIC_DOUBLE_LIST || kind == TOSAIC_BOOL_LIST;
    uint32_t width = kind == TOSAIC_BOOL_LIST ? 1 : kind == TOSAIC_INT_LIST || own ? 8 : 4;
    flat_vector numbers = flat_get_vector(file, row, INT_LIST_ITEMS, width);
    void *memory;
    void *fresh = NULL;
    tosaic_status status = tosaic_take_for(method, numbers.count, sizeof(tosaic_value *), &memory);
    if (status == TOSAIC_OK && own) {
        status = tosaic_take_for(method, numbers.count, sizeof(tosaic_value), &fresh);
    }
    if (status != TOSAIC_OK) {
        return status;
    }
    tosaic_value **items = memory;
    for (uint32_t i = 0; i < numbers.count; i++) {
        uint32_t at = numbers.at + width * i;
        if (own) {
            items[i] = (tosaic_value *)fresh + i;
            items[i]->kind = kind == TOSAIC_BOOL_LIST ? TOSAIC_BOOLEAN : TOSAIC_DOUBLE;
            if (kind == TOSAIC_BOOL_LIST) {
                items[i]->as.boolean = flat_read_u8(file, at) != 0;
            } else {
                items[i]->as.integer = (int64_t)flat_read_u64(file, at); /* the bits of the double */
            }
            continue;
        }
        uint64_t number = width == 8 ? flat_read_u64(file, at) : flat_read_u32(file, at);
        if (kind == TOSAIC_OPTIONAL_TENSOR_LIST && number == UINT32_MAX) {
            items[i] = (tosaic_value *)(uintptr_t)&none;
        } else if (number < method->value_count) {
            items[i] = &method->values[number];
        } else {
            return tosaic_fail(method, TOSAIC_BAD_VALUE, number > UINT32_MAX ? UINT32_MAX : (uint32_t)number);
        }
    }
    value->as.list = (tosaic_list){items, numbers.count};
    return TOSAIC_OK;
}

/* Whether a list may have a member of this kind. */
static bool may_hold(uint32_t list, uint32_t member) {
    switch (list) {
        case TOSAIC_INT_LIST:
            return member == TOSAIC_INT;
        case TOSAIC_TENSOR_LIST:
            return member == TOSAIC_TENSOR;
        case TOSAIC_OPTIONAL_TENSOR_LIST:
            return member == TOSAIC_TENSOR || member == TOSAIC_NONE;
        default:
            return true; /* its members were made for it */
    }
}

/* Checks that the members of a list have its kind, once all values are there. */
static bool check_list(const tosaic_value *value) {
    if (value->kind < TOSAIC_INT_LIST) {
        return true;
    }
    for (uint32_t i = 0; i < value->as.list.count; i++) {
        if (!may_hold(value->kind, value->as.list.items[i]->kind)) {
            return false;
        }
    }
    return true;
}

static tosaic_status load_value(tosaic_method *method, flat *file, flat_table row, const buffers *planned,
                                uint32_t number) {
    tosaic_value *value = &method->values[number];
    uint32_t code = flat_get_u8(file, row, EVALUE_VAL_TYPE);
    flat_table member = flat_get_table(file, row, EVALUE_VAL);
    if (code < KERNEL_TYPES_NULL || code > KERNEL_TYPES_OPTIONAL_TENSOR_LIST ||
        (member == 0 && code != KERNEL_TYPES_NULL)) {
        return tosaic_fail(method, TOSAIC_BAD_VALUE, number);
    }
    value->kind = code - 1u;
    value->as.integer = 0;
    switch (code) {
        case KERNEL_TYPES_NULL:
            return TOSAIC_OK;
        case KERNEL_TYPES_INT:
        case KERNEL_TYPES_DOUBLE: /* its bits */
            value->as.integer = (int64_t)flat_get_u64(file, member, INT_INT_VAL);
            return TOSAIC_OK;
        case KERNEL_TYPES_BOOL:
            value->as.boolean = flat_get_u8(file, member, BOOL_BOOL_VAL) != 0;
            return TOSAIC_OK;
        case KERNEL_TYPES_STRING:
            value->as.string = tosaic_get_text(file, member, STRING_STRING_VAL);
            return TOSAIC_OK;
        case KERNEL_TYPES_TENSOR:
            return load_tensor(method, file, member, planned, number, value);
        default:
            return load_list(method, file, member, value);
    }
}

tosaic_status tosaic_load_values(tosaic_method *method, flat *file) {
    flat_vector rows = flat_get_vector(file, method->plan, EXECUTION_PLAN_VALUES, 4);
    void *memory;
    buffers planned = {0};
    tosaic_status status = tosaic_take_for(method, rows.count, sizeof(tosaic_value), &memory);
    if (status == TOSAIC_OK) {
        status = take_buffers(method, file, &planned);
    }
    method->values = memory;
    method->value_count = rows.count;
    for (uint32_t i = 0; i < rows.count && status == TOSAIC_OK; i++) {
        status = load_value(method, file, flat_get_item(file, rows, i), &planned, i);
        if (file->bad) {
            return tosaic_fail(method, TOSAIC_DAMAGED, file->bad_at);
        }
    }
    for (uint32_t i = 0; i < rows.count && status == TOSAIC_OK; i++) {
        if (!check_list(&method->values[i])) {
            return tosaic_fail(method, TOSAIC_BAD_VALUE, i);
        }
    }
    return status;
}
