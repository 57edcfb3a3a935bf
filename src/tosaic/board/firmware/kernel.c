/* Finds kernels, checks the arguments of their calls, and reads numbers for them. */
#include "kernel.h"

#include "method.h"

/* Moves `*at` behind `text`, if it begins with that. */
static bool skip(const char **at, tosaic_text text) {
    for (uint32_t i = 0; i < text.length; i++) {
        if ((*at)[i] == 0 || (*at)[i] != text.start[i]) {
            return false;
        }
    }
    *at += text.length;
    return true;
}

const tosaic_kernel *tosaic_find_kernel(const tosaic_setup *setup, tosaic_text name, tosaic_text overload) {
    for (uint32_t i = 0; i < setup->kernel_count; i++) {
        const char *at = setup->kernels[i].name;
        bool found = skip(&at, name) && (overload.length == 0 || (*at++ == '.' && skip(&at, overload)));
        if (found && *at == 0) {
            return &setup->kernels[i];
        }
    }
    return NULL;
}

/* Whether a letter of a signature stands for this kind of value. */
static bool has_kind(char letter, uint32_t kind) {
    switch (letter) {
        case 'T':
        case 'O':
        case 'V':
            return kind == TOSAIC_TENSOR;
        case 'i':
            return kind == TOSAIC_INT;
        case 'b':
            return kind == TOSAIC_BOOLEAN;
        case 'd':
        case 'r':
            return kind == TOSAIC_INT || kind == TOSAIC_DOUBLE || kind == TOSAIC_BOOLEAN;
        case 's':
            return kind == TOSAIC_STRING;
        case 'I':
            return kind == TOSAIC_INT_LIST;
        case 'D':
            return kind == TOSAIC_DOUBLE_LIST;
        case 'B':
            return kind == TOSAIC_BOOL_LIST;
        case 'L':
        case 'W':
            return kind == TOSAIC_TENSOR_LIST;
        case 'l':
            return kind == TOSAIC_OPTIONAL_TENSOR_LIST || kind == TOSAIC_TENSOR_LIST;
        default:
            return letter == '*';
    }
}

static tosaic_status check_tensor(const tosaic_tensor *tensor, bool is_written) {
    if (tensor->data == NULL && tensor->bytes != 0) {
        return TOSAIC_NO_DATA;
    }
    return is_written && tensor->access == TOSAIC_CONSTANT ? TOSAIC_BAD_ARGUMENT : TOSAIC_OK;
}

static tosaic_status check_argument(char letter, bool is_optional, const tosaic_value *value) {
    if (value->kind == TOSAIC_NONE && is_optional) {
        return TOSAIC_OK;
    }
    if (!has_kind(letter, value->kind)) {
        return TOSAIC_BAD_ARGUMENT;
    }
    bool is_written = letter == 'O' || letter == 'W';
    if (value->kind == TOSAIC_TENSOR) {
        return letter == 'V' ? TOSAIC_OK : check_tensor(value->as.tensor, is_written);
    }
    tosaic_status status = TOSAIC_OK;
    if (value->kind == TOSAIC_TENSOR_LIST || value->kind == TOSAIC_OPTIONAL_TENSOR_LIST) {
        for (uint32_t i = 0; i < value->as.list.count && status == TOSAIC_OK; i++) {
            const tosaic_value *item = value->as.list.items[i];
            status = item->kind == TOSAIC_TENSOR ? check_tensor(item->as.tensor, is_written) : TOSAIC_OK;
        }
    }
    return status;
}

tosaic_status tosaic_check_call(const tosaic_kernel *kernel, const tosaic_call *call, uint32_t *bad) {
    const char *signature = kernel->signature;
    for (*bad = 0; *signature != 0; (*bad)++) {
        char letter = *signature++;
        bool is_optional = *signature == '?';
        signature += is_optional ? 1 : 0;
        if (*bad >= call->count) {
            return TOSAIC_BAD_ARGUMENT;
        }
        tosaic_status status = check_argument(letter, is_optional, call->args[*bad]);
        if (status != TOSAIC_OK) {
            return status;
        }
    }
    return TOSAIC_OK;
}

float tosaic_float_at(const tosaic_call *call, uint32_t index) {
    const tosaic_value *value = call->args[index];
    switch (value->kind) {
        case TOSAIC_DOUBLE:
            return (float)value->as.number;
        case TOSAIC_INT:
            return (float)value->as.integer;
        default:
            return value->as.boolean ? 1.0f : 0.0f;
    }
}

int64_t tosaic_whole_at(const tosaic_call *call, uint32_t index) {
    const tosaic_value *value = call->args[index];
    if (value->kind == TOSAIC_INT) {
        return value->as.integer;
    }
    if (value->kind != TOSAIC_DOUBLE) {
        return value->as.boolean ? 1 : 0;
    }
    double number = value->as.number;
    if (!(number > -0x1p63)) {
        return INT64_MIN; /* and for no number */
    }
    return number >= 0x1p63 ? INT64_MAX : (int64_t)number;
}
